"""Errors of every table and figure of the papers, for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from medusa_sim.report.screen import Fact, Screen
from medusa_sim.report.table import TextTable
from medusa_sim.report.words.numbers import NOTHING, percent, significant

if TYPE_CHECKING:
    import pandas as pd


def score_screen(scores: pd.DataFrame, targets: Sequence[str]) -> Screen:
    """A row a target and quantity. scores: errors by target; targets: all that can be asked for."""
    rows = scores.to_dict("records")
    relative = [row for row in rows if not _is_difference(row)]
    mean = [float(row["mean_error"]) for row in relative]
    worst = max(relative, key=lambda row: float(row["worst_error"]))
    return Screen(
        asked="tables and figures of the papers, predicted and published",
        answer=(
            f"Mean errors lie between {percent(min(mean))} and {percent(max(mean))}; the "
            f"worst cell is {percent(float(worst['worst_error']), 0)} off ({worst['target']}, "
            f"{worst['quantity']}).",
        ),
        tables=(
            TextTable.by_column(
                {
                    "target": [str(row["target"]) for row in rows],
                    "quantity": [str(row["quantity"]) for row in rows],
                    "baseline": [str(row["baseline"] or NOTHING) for row in rows],
                    "cells": [str(row["cells"]) for row in rows],
                    "mean": [_error(row, "mean_error") for row in rows],
                    "worst": [_error(row, "worst_error") for row in rows],
                    "worst cell": [str(row["worst_cell"]) for row in rows],
                },
                words=("target", "quantity", "baseline", "worst cell"),
            ),
        ),
        facts=(
            Fact("Columns", "baseline: what speedups are over, the same shape or the paper's one step"),
            Fact("Next", f"TARGET shows each cell: {', '.join(targets)}"),
        ),
    )


def _is_difference(row: Mapping[Any, Any]) -> bool:
    """Whether an error is a difference, of speedups or overheads, and no share of one."""
    return str(row["quantity"]).endswith("difference")


def _error(row: Mapping[Any, Any], name: str) -> str:
    value = float(row[name])
    return significant(value, 3) if _is_difference(row) else percent(value)
