"""A record of the engine as Markdown: the section `run` of docs/validation-engines.md.

python benchmarks/engine_page.py profiles/engines/*            # the page
python benchmarks/engine_page.py profiles/engines/* --write    # into the section

Records are those that `make validate-engine` keeps.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np
from common.pages import filled, write_section
from common.script import command_line
from common.steps_compared import FIT_BATCHES, FIT_DRAFTS, EngineValidation, tokens_per_step, validate_engine
from common.study import table

SOURCES = ("vLLM", "decoder", "predicted", "decoder, latest copy")
METHODS = {"draft": "draft model", "ngram": "n-gram"}


def page(found: EngineValidation) -> str:
    """One record: what was fitted, errors of what was predicted, choices, acceptance."""
    meta, terms = found.record.meta, asdict(found.terms)
    named = {f"step of {target}": value for target, value in terms.pop("step").items()} | terms
    heads = " | ".join(name.replace("_", " ") for name in named)
    passes = {cell.step.target: cell.passes for cell in found.cells}
    regret = [choice.regret for _, choice in found.choices]
    return filled(
        "engine_page",
        meta=meta,
        steadiness=_steadiness(found),
        batches=" and ".join(map(str, FIT_BATCHES)), drafts=FIT_DRAFTS, first=meta.targets[0],
        terms=table(heads, 0, [[f"{value:.1f}" for value in named.values()]]),
        scores=table("target | quantity | cells | mean | worst | bias | passes differ | worst cell", 2, [
            (target, s.quantity, s.cells, f"{s.mean:.1%}", f"{s.worst:.1%}", f"{s.bias:+.1%}",
             f"{s.floor:.1%}" if passes[target] > 1 else "one pass", s.worst_at)
            for target, s in found.scores
        ]),
        apart=max(choice.grid_steps for _, choice in found.choices),
        worst_regret=max(regret), regret=sum(regret) / len(regret),
        choices=_choices(found),
        break_even=table("target | method | drafts | predicted | measured", 3, [
            (row.target, METHODS[row.method], row.drafts, _batch(row.predicted), _batch(row.measured))
            for row in found.break_even
        ]),
        texts="\n".join(
            f"- {METHODS.get(text.method, 'plain')}: {text.same} of {text.texts} texts are the decoder's to "
            f"the last token ({text.common_tokens / text.tokens:.1%} of the tokens before a first "
            "difference)."
            for text in found.record.texts
        ),
        acceptance=_acceptance(found),
    )  # fmt: skip


def _steadiness(found: EngineValidation) -> str:
    told = f"The passes differ by {found.passes_differ:.1%} of a step on average"
    if found.record.meta.passes < 2:
        told = "One pass only, with nothing to compare it with"
    told += f"; other programs made the wall clock run {found.wall_share:.2f} times as long"
    if found.is_steady:
        return f"{told}."
    return f"**{told}: too much to judge anything below. End other programs and run it again.**"


def _choices(found: EngineValidation) -> str:
    by_row: dict[tuple[str, str], dict[int, str]] = {}
    for method, choice in found.choices:
        told = f"{choice.predicted}"
        told += f" ({choice.measured})" if choice.predicted != choice.measured else ""
        by_row.setdefault((choice.model, METHODS[method]), {})[choice.batch] = told
    batches = sorted({choice.batch for _, choice in found.choices})
    heads = " | ".join(["target", "method", *map(str, batches)])
    return table(heads, 2, [(*key, *(told[batch] for batch in batches)) for key, told in by_row.items()])


def _batch(value: float) -> str:
    return "never pays" if value == 0.0 else f"{value:.1f}" if np.isfinite(value) else "always pays"


def _acceptance(found: EngineValidation) -> str:
    accepted = found.record.accepted
    longest = max(row.position for row in accepted)
    rows = []
    for method, title in METHODS.items():
        for source in SOURCES:
            cells = {row.position: row for row in accepted if row.method == method and row.source == source}
            if cells:
                told = [f"{cells[i].share:.3f} ± {cells[i].error:.3f}" for i in range(1, longest + 1)]
                tokens = tokens_per_step(accepted, method, source, longest)
                rows.append((title, source, *told, f"{tokens:.3f}"))
    heads = ["method", "source", *map(str, range(1, longest + 1)), "tokens per step"]
    return table(" | ".join(heads), 2, rows)


def main() -> None:
    """The section from the records that are named."""
    parser = command_line(__doc__, writes="`run` of docs/validation-engines.md")
    parser.add_argument("records", nargs="+", type=Path, metavar="FOLDER", help="of make validate-engine")
    given = parser.parse_args()
    text = "\n".join(page(validate_engine(folder)) for folder in given.records)
    print(text)
    if given.write:
        write_section("validation-engines.md", "run", f"# A served engine on a CPU\n\n{text}")


if __name__ == "__main__":
    main()
