"""Scores of predicted times as tables for people."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from medusa_sim.report.numbers import NOTHING, percent
from medusa_sim.report.text import TextTable
from medusa_sim.validate.operators import Regret, Score

if TYPE_CHECKING:
    import pandas as pd


def score_table(found: Sequence[Score], file: str) -> TextTable:
    """One line for each group of rows, errors in per cent."""
    rows = [
        (
            score.op,
            score.kernels if ":" in score.kernels else score.dtype,
            score.size,
            str(score.rows),
            percent(score.mean),
            percent(score.median),
            percent(score.p90),
            percent(score.worst, 0),
            NOTHING if math.isnan(score.bias) else f"{100.0 * score.bias:+.1f} %",
            percent(score.ratio),
            percent(score.within_band, 0),
            score.worst_at,
        )
        for score in found
    ]
    return TextTable(
        headers=(
            "operator",
            "dtype",
            "size",
            "rows",
            "mean",
            "median",
            "p90",
            "worst",
            "bias",
            "T(m)/T(1)",
            "in band",
            "worst row",
        ),
        rows=tuple(rows),
        right=(False, False, False, True, True, True, True, True, True, True, True, False),
        title=f"{file}: error of the predicted time",
    )


def tree_table(summary: Mapping[str, Mapping[str, float]], comparison: pd.DataFrame) -> TextTable:
    """Tokens per step of trees, one line a kind: signed, absolute and worst error, and the worst run."""
    kept = comparison[comparison["left_out"] == ""]
    rows = []
    for kind, score in summary.items():
        of_kind = kept if kind == "all" else kept[kept["kind"] == kind]
        worst = of_kind.to_dict("records")[int(of_kind["error"].abs().to_numpy().argmax())]
        rows.append(
            (
                kind,
                f"{score['runs']:.0f}",
                f"{100.0 * score['signed_mean']:+.1f} %",
                percent(score["mean_absolute"]),
                percent(score["worst"]),
                f"{worst['draft']}, {worst['growmap']}, T {worst['temperature']:g}: "
                f"{worst['predicted']:.3f} for {worst['measured']:.3f}",
            )
        )
    return TextTable(
        headers=("trees", "runs", "signed mean", "mean", "worst", "worst run"),
        rows=tuple(rows),
        right=(False, True, True, True, True, False),
        title="error of the predicted tokens per step",
    )


def regret_table(found: Sequence[Regret]) -> TextTable:
    """Speedup given away, one line a model."""
    rows = [
        (
            regret.model,
            str(regret.cases),
            percent(regret.mean),
            percent(regret.worst),
            regret.worst_at,
            percent(regret.always_64, 0),
        )
        for regret in found
    ]
    return TextTable(
        headers=("model", "batches", "mean", "worst", "chosen for best", "always 64"),
        rows=tuple(rows),
        right=(False, True, True, True, False, True),
        title="choice regret: share of the attainable speedup lost by choosing with predicted times",
    )
