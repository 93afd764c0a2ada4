"""Public heads and trees, and profiles that hold a fit of accuracies: what wrote the shipped ones."""

from pathlib import Path

import numpy as np

from medusa_sim.acceptance.head_table import read_accuracies
from medusa_sim.acceptance.heads import HeadAccuracy
from medusa_sim.acceptance.profile_file import SCHEMA, Agreement, FittedHeadRow, HeadTopkFile
from medusa_sim.acceptance.tree import CandidateTree
from medusa_sim.acceptance.tree_file import parsed_tree
from medusa_sim.arrays import FloatArray
from medusa_sim.errors import DataError
from medusa_sim.outside.limits import SPEC_BYTES
from medusa_sim.reading.documents import json_of
from medusa_sim.reading.files import read_text

RANKS = 10
"""The public code gives every head ten guesses; the public accuracies end at five."""
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
DIGITS = 4
"""Fitted numbers are stored to this many digits, far below what the labels resolve."""


def fitted_rows(heads: HeadAccuracy) -> tuple[list[FittedHeadRow], float]:
    """(rows, error): rank 0 as it is, ranks behind it as `scale (i + 1)^-exponent` (as in `with_tail`).

    `error`: mean absolute difference of fitted and given accuracy over heads and ranks behind 0.

    Raises:
        CoverageError: fewer than three ranks above zero.
    """
    wide = heads.with_tail(heads.ranks + 2)
    i = np.array([heads.ranks + 1.0, heads.ranks + 2.0])
    tail = wide.accuracy[:, -2:]
    exponent = -np.log(tail[:, 1] / tail[:, 0]) / np.log(i[1] / i[0])
    scale = tail[:, 0] * i[0] ** exponent
    rank = np.arange(2.0, heads.ranks + 1.0)
    fitted: FloatArray = scale[:, None] * rank ** -exponent[:, None]
    error = float(np.abs(fitted - heads.accuracy[:, 1:]).mean())
    rows = [
        FittedHeadRow(
            top1=round(float(a), DIGITS), scale=round(float(c), DIGITS), exponent=round(float(s), DIGITS)
        )
        for a, c, s in zip(heads.accuracy[:, 0], scale, exponent, strict=True)
    ]
    return rows, error


def compact_profile(
    heads: HeadAccuracy,
    *,
    title: str,
    source: str,
    agreement: Agreement,
    ranks: int,
    correlation: float = 0.0,
    model_error: float = 0.0,
) -> HeadTopkFile:
    """A `head-topk` profile that holds the fit instead of the measured table."""
    rows, error = fitted_rows(heads)
    return HeadTopkFile(
        schema=SCHEMA, title=title, source=source, agreement=agreement, fitted_heads=rows, ranks=ranks,
        measured_ranks=heads.ranks, fit_error=round(error, DIGITS + 1),
        correlation=round(correlation, DIGITS), model_error=model_error,
    )  # fmt: skip


def read_public_trees(path: Path) -> dict[str, CandidateTree]:
    """Every tree of a file of named lists of paths."""
    text = read_text(path, SPEC_BYTES, "a JSON object of named trees", DataError)
    names = json_of(text, path, "a JSON object of named trees", DataError)
    return {name: parsed_tree(text, name=name, where=f"tree {path}") for name in names}


def medusa_1_profile(model: str, accuracies: Path) -> HeadTopkFile:
    """The shipped profile `medusa1-vicuna-<model>` from the public table: what regenerates the file."""
    return compact_profile(
        read_accuracies(accuracies, model=model), title=f"Medusa-1 heads of Vicuna-{model.upper()} v1.3",
        source=ACCURACY_SOURCE + INDEPENDENCE_SOURCE, agreement="teacher-forced", ranks=RANKS,
        correlation=0.0, model_error=MODEL_ERROR,
    )  # fmt: skip
