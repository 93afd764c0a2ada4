"""Predicted acceptance beside what was counted, by model, pair, prompts: tables of docs/validation.md.

    python benchmarks/acceptance.py                  what the project ships, ten minutes of one core
    python benchmarks/acceptance.py --seeds 21 22    other sets of prompts
    python benchmarks/acceptance.py --write          into the page

Nothing here was fitted to: profiles of the shipped heads come from other prompts, pairs are predicted from
short chains of their own (and, where it says so, one tree), and the evaluations of the public heads were kept
out of every fit. One row of that evaluation needs the public trees, which lie beside a checkout.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import torch
from common.draft_pairs import TREE, compared
from common.pages import write_tables
from common.script import ROOT, command_line
from common.study import measured, named_rows, table
from decoder import fresh_sets

from medusa_sim.acceptance.heads import expected_tokens_per_step
from medusa_sim.acceptance.profile import load_acceptance
from medusa_sim.acceptance.tree_file import parsed_tree
from medusa_sim.lab.decoder.checkpoint import load_checkpoint
from medusa_sim.lab.reproduce.recursive import own_pair_table, published_table
from medusa_sim.report.words.numbers import percent

CHECKPOINTS = ("python-stdlib-medusa-1", "python-stdlib-medusa-2")
SIZES = (4, 16, 64)
PROMPTS = 64
FIRST_PARTY = {"7b": 2.565, "13b": 2.639, "33b": 2.514}
"""Tokens a step of the public Medusa-1 heads on MT-bench, as their authors evaluated them on an A100."""


def _score(found: pd.DataFrame) -> tuple[str, ...]:
    """Rates, mean error, worst, bias, share in band."""
    size, bias = found["error"].abs(), f"{100 * found['error'].mean():+.1f} %"
    held = percent(found["inside"].mean(), 0)
    return str(size.size), percent(size.mean()), percent(size.max()), bias, held


def _heads(seeds: Sequence[int]) -> pd.DataFrame:
    """Rates of both checkpoints on every set."""
    rows = []
    for name in CHECKPOINTS:
        path, known = ROOT / "profiles" / "checkpoints" / name, load_acceptance(name)
        target = load_checkpoint(path)
        assert target.heads is not None
        found = fresh_sets(
            target.model, target.heads, path, known, seeds=seeds, count=PROMPTS, sizes=SIZES
        )  # fmt: skip
        rows.append(found.assign(checkpoint=name, error=found["predicted"] / found["measured"] - 1.0))
    return pd.concat(rows, ignore_index=True)


def _head_row(found: pd.DataFrame) -> tuple[str, ...]:
    """Sets, range of what was counted, prediction, mean error, bias, share in band."""
    sets, mean, _, bias, inside = _score(found)
    counted = f"{found['measured'].min():.2f}-{found['measured'].max():.2f}"
    return sets, counted, f"{found['predicted'].iloc[0]:.2f}", mean, bias, inside


def _public() -> pd.DataFrame:
    path = measured("acceptance/medusa_trees.json")
    text = path.read_text(encoding="utf-8")
    rows = []
    for model, counted in FIRST_PARTY.items():
        profile = load_acceptance(f"medusa1-vicuna-{model}")
        tree = parsed_tree(text, name=f"vicuna_{model}_stage1", where=f"tree {path}")
        if profile.heads is None:
            raise SystemExit(f"medusa1-vicuna-{model} has no accuracies of heads")
        predicted = float(expected_tokens_per_step(tree, profile.heads))
        low, high = (float(end) / float(profile.tokens_per_step(64)) * predicted for end in profile.band(64))
        name, error = f"Vicuna-{model.upper()}", predicted / counted - 1.0
        rows.append((name, counted, predicted, error, low <= counted <= high))
    return pd.DataFrame(rows, columns=["model", "counted", "predicted", "error", "inside"])


def tables(seeds: Sequence[int]) -> list[str]:
    """All rates in sum, then pairs, shipped heads and public heads."""
    public, heads = _public(), _heads(seeds)
    paper, own = published_table(), own_pair_table()
    both = f"chains, {' '.join(TREE)}"
    sets = [
        ("RSD paper's seven pairs", "chains", compared(paper, None), "3 %"),
        ("RSD paper's seven pairs", both, compared(paper, TREE), "3 %"),
        ("the shipped pair", "chains", compared(own, None), "-"),
        ("the shipped pair", both, compared(own, TREE), "5 %"),
    ]
    summary = [
        (f"{name}, from {seen}: {kind}", *_score(frame[(frame["group"] == "long chain") == is_long]), asked)
        for name, seen, frame, asked in sets
        for kind, is_long in (("trees", False), ("long chains", True))
    ]
    summary += [(f"{name}, other prompts", *_score(own), "-") for name, own in heads.groupby("checkpoint")]
    summary.append(("public Medusa-1 heads, MT-bench", *_score(public), "4 %"))
    errors = "rates | mean error | worst | bias | in band"
    return [
        table(f"what | {errors} | asked, mean", 1, summary),
        table(f"pairs | observed | rows of | {errors}", 3, [
            (name, seen, group, *_score(found))
            for name, seen, frame, _ in sets for group, found in frame.groupby("group")
        ]),
        table("checkpoint | candidates | sets | counted | predicted | mean error | bias | in band", 1, [
            (*key, *_head_row(found)) for key, found in heads.groupby(["checkpoint", "candidates"])
        ]),
        table("model | counted | predicted | error | in band", 1, [
            (row.model, f"{row.counted:.3f}", f"{row.predicted:.3f}", f"{100 * row.error:+.1f} %",
             "yes" if row.inside else "no") for row in named_rows(public)
        ]),
    ]  # fmt: skip


def main() -> None:
    """Count and compare; write where asked."""
    parser = command_line(__doc__, writes="the tables into docs/validation.md")
    parser.add_argument("--seeds", type=int, nargs="+", default=[16, 17, 18, 19])
    given = parser.parse_args()
    torch.set_num_threads(1)
    found = tables(given.seeds)
    print("\n".join(found))
    if given.write:
        write_tables("validation.md", "acceptance", found)


if __name__ == "__main__":
    main()
