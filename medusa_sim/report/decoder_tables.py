"""The simulator against the decoder, as tables for people."""

from __future__ import annotations

from collections.abc import Sequence

from medusa_sim.report.numbers import percent
from medusa_sim.report.text import TextTable
from medusa_sim.validate.comparison import ALLOWANCE, Choice, Comparison
from medusa_sim.validate.steps import DecoderValidation


def comparison_table(found: DecoderValidation) -> TextTable:
    """Steps: one line a quantity, errors in per cent of the measured value."""
    title = f"{found.meta.environment.device} ({found.meta.launched}): error of the prediction"
    return comparisons_table(found.comparisons, title)


def comparisons_table(comparisons: Sequence[Comparison], title: str) -> TextTable:
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


def choice_table(choices: Sequence[Choice]) -> TextTable:
    """Best counts, predicted and measured; 1 is "do not enable"."""
    rows = [
        (
            each.model,
            str(each.batch),
            _count(each.predicted),
            _count(each.measured),
            str(each.grid_steps),
            percent(each.regret),
        )
        for each in choices
    ]
    return TextTable(
        headers=("model", "batch", "predicted best", "measured best", "grid steps", "regret"),
        rows=tuple(rows),
        right=(False, True, True, True, True, True),
        title="candidates to choose",
    )


def _count(candidates: int) -> str:
    return "do not enable" if candidates == 1 else str(candidates)
