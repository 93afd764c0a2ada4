"""A table of head accuracies as a profile that holds a fit of its ranks: what wrote the shipped ones."""

import numpy as np

from medusa_sim.acceptance.heads import HeadAccuracy
from medusa_sim.acceptance.profile_file import SCHEMA, Agreement, FittedHeadRow, HeadTopkFile
from medusa_sim.arrays import FloatArray

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
