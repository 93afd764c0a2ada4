"""Scores of predicted times, and the simulator against the decoder, as tables for people."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from medusa_sim.report.text import NOTHING, TextTable, percent
from medusa_sim.validate.comparison import ALLOWANCE, CountChoice, Deviation
from medusa_sim.validate.operators import Regret, Score
from medusa_sim.validate.steps import DecoderValidation

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


def comparison_table(found: DecoderValidation) -> TextTable:
    """Steps: one line a quantity, errors in per cent of the measured value."""
    title = f"{found.meta.environment.device} ({found.meta.launched}): error of the prediction"
    return comparisons_table(found.comparisons, title)


def comparisons_table(comparisons: Sequence[Deviation], title: str) -> TextTable:
    """One line a quantity, errors in per cent of the measured value."""
    rows = [
        (
            each.quantity,
            str(each.cells),
            percent(each.mean),
            percent(each.worst, 0),
            f"{100.0 * each.bias:+.1f} %",
            percent(each.floor),
            percent(each.within, 0),
            each.worst_at,
        )
        for each in comparisons
    ]
    return TextTable(
        headers=(
            "quantity",
            "cells",
            "mean",
            "worst",
            "bias",
            "passes differ",
            f"within that + {percent(ALLOWANCE, 0)}",
            "worst cell",
        ),
        rows=tuple(rows),
        right=(False, True, True, True, True, True, True, False),
        title=title,
    )


def floor_line(found: DecoderValidation) -> str:
    """How exactly these steps can judge anything, in one line."""
    speedups = [each for each in found.comparisons if each.quantity == "speedup"]
    passes = max(len(cell.passes_us) for cell in found.cells)
    if not speedups or passes == 1:
        return (
            "one pass over the grid: how far a second would differ is not known, nothing can be judged here"
        )
    floor, effect = speedups[0].floor, found.effect
    told = (
        f"halves of the {passes} passes differ by {percent(floor)} in the mean over the speedups; "
        f"the best tree of a batch changes its throughput by {percent(effect)}"
    )
    return f"{told}: cannot be judged here" if floor >= effect else told


def choice_table(choices: Sequence[CountChoice]) -> TextTable:
    """Best counts, predicted and measured; 1 is "do not enable". A verdict where passes were compared."""
    judged = any(each.floor is not None for each in choices)
    rows = [
        (
            each.model,
            str(each.batch),
            _count(each.predicted),
            _count(each.measured),
            str(each.grid_steps),
            percent(each.regret),
            *((f"{each.gain or 0.0:.2f}x", percent(each.floor or 0.0), each.verdict) if judged else ()),
        )
        for each in choices
    ]
    more = ("gain of the best tree", "passes differ", "verdict") if judged else ()
    return TextTable(
        headers=("model", "batch", "predicted best", "measured best", "grid steps", "regret", *more),
        rows=tuple(rows),
        right=(False, True, True, True, True, True, *((True, True, False) if judged else ())),
        title="candidates to choose",
    )


def _count(candidates: int) -> str:
    return "do not enable" if candidates == 1 else str(candidates)
