"""What the public Medusa-1 head accuracies promise for the public trees, beside what was published."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from compact import compact_profile

from medusa_sim.acceptance.head_table import fitted_correlation, read_accuracies
from medusa_sim.acceptance.heads import HeadAccuracy, expected_tokens_per_step
from medusa_sim.acceptance.profile_file import HeadTopkFile
from medusa_sim.acceptance.tree import CandidateTree
from medusa_sim.acceptance.tree_file import parsed_tree
from medusa_sim.errors import DataError, SpecError
from medusa_sim.reading import SPEC_BYTES, json_of, read_text

if TYPE_CHECKING:
    import pandas as pd

RANKS = 10
"""The public code gives every head ten guesses; the public accuracies end at five."""

MEDUSA_1_SPEEDUP_AND_OVERHEAD: dict[str, tuple[float, float]] = {"7b": (2.18, 1.22), "13b": (2.33, 1.23)}
"""Medusa paper: Medusa-1 speedup (Figure 3a) and the overhead of a step with 64 candidates (Table 1)."""
MEDUSA_1_TREE: dict[str, str] = {"7b": "vicuna_7b_stage1", "13b": "vicuna_13b_stage1"}
"""The public tree that was made for those heads."""
MEDUSA_2_ACCELERATION_RATE: dict[str, float] = {"7b": 3.47, "13b": 3.51, "33b": 3.01}
"""Table 1, for comparison: other heads (trained with the backbone), typical acceptance."""

ACCURACY_SOURCE = (
    "accuracies: FasterDecoding/Medusa (github), assets/medusa_acc.csv, cumulative top-1..5 of heads 0..4, "
    "teacher-forced on training text; here as fitted per head: rank 0, then a power law of the rank. "
)
INDEPENDENCE_SOURCE = (
    "correlation: none, since measured trees are met under independence (docs/method-acceptance.md, "
    "T5); a value fitted to speedup times overhead of the Medusa paper (0.174) overshoots what these "
    "heads accepted on MT-bench by 5 to 13 %. model_error: 6 % (80 %) for accuracies on training text "
    "used for generated text, as far as evaluated rates lie away"
)
MODEL_ERROR = 0.06


def medusa_1_acceleration_rate(model: str) -> float | None:
    """Speedup times overhead (appendix B turned round): the paper gives no rate for Medusa-1 itself."""
    pair = MEDUSA_1_SPEEDUP_AND_OVERHEAD.get(model)
    return None if pair is None else pair[0] * pair[1]


def read_public_trees(path: Path) -> dict[str, CandidateTree]:
    """Every tree of a file of named lists of paths. SpecError or DataError when it holds none."""
    text = read_text(path, SPEC_BYTES, "a JSON object of named trees", DataError)
    names = json_of(text, path, "a JSON object of named trees", DataError)
    if not isinstance(names, dict) or not names:
        raise SpecError(f"{path}: holds no tree; give a JSON object of named trees")
    return {name: parsed_tree(text, name=name, where=f"tree {path}") for name in names}


def public_correlation(accuracies: Path, trees: Path) -> float:
    """The correlation at which the Medusa-1 heads of Vicuna-7B and 13B meet the paper's rates."""
    named = read_public_trees(trees)
    cases = [
        (
            read_accuracies(accuracies, model=model).with_tail(RANKS),
            named[MEDUSA_1_TREE[model]],
            speedup * cost,
        )
        for model, (speedup, cost) in MEDUSA_1_SPEEDUP_AND_OVERHEAD.items()
    ]
    return fitted_correlation(cases)


def public_tree_scores(
    accuracies: Path, trees: Path, models: tuple[str, ...] = ("7b", "13b", "33b")
) -> pd.DataFrame:
    """Expected tokens per step of every public tree with every model's heads.

    Columns: model, tree, candidates, depth, tail_zero (ranks behind the fifth never right: the lower
    bound), with_tail (power-law tail), tail_share (of the accepted tokens), correlated (with the
    correlation fitted on 7B and 13B), medusa_1_published (on the tree made for those heads, else NaN),
    medusa_2_published.
    """
    import pandas as pd

    named, rho = read_public_trees(trees), public_correlation(accuracies, trees)
    rows = []
    for model in models:
        measured: HeadAccuracy = read_accuracies(accuracies, model=model)
        zero, tail = measured.with_zeros(RANKS), measured.with_tail(RANKS)
        for name, tree in named.items():
            low, independent = expected_tokens_per_step(tree, zero), expected_tokens_per_step(tree, tail)
            own = MEDUSA_1_TREE.get(model) == name
            rows.append(
                {
                    "model": model,
                    "tree": name,
                    "candidates": tree.candidates,
                    "depth": tree.depth,
                    "tail_zero": low,
                    "with_tail": independent,
                    "tail_share": (independent - low) / (independent - 1.0),
                    "correlated": expected_tokens_per_step(tree, tail.with_correlation(rho)),
                    "medusa_1_published": medusa_1_acceleration_rate(model) if own else float("nan"),
                    "medusa_2_published": MEDUSA_2_ACCELERATION_RATE.get(model, float("nan")),
                }
            )
    return pd.DataFrame(rows)


def medusa_1_profile(model: str, accuracies: Path) -> HeadTopkFile:
    """The shipped profile `medusa1-vicuna-<model>` from the public table: what regenerates the file."""
    return compact_profile(
        read_accuracies(accuracies, model=model), title=f"Medusa-1 heads of Vicuna-{model.upper()} v1.3",
        source=ACCURACY_SOURCE + INDEPENDENCE_SOURCE, agreement="teacher-forced", ranks=RANKS,
        correlation=0.0, model_error=MODEL_ERROR,
    )  # fmt: skip
