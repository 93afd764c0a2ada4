"""The simulator against the decoder, as tables for people."""

from __future__ import annotations

from collections.abc import Sequence

from medusa_sim.report.numbers import percent
from medusa_sim.report.text import TextTable
from medusa_sim.validate.comparison import ALLOWANCE, CountChoice, Deviation
from medusa_sim.validate.steps import DecoderValidation


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
