"""Tables and figures of papers for people: the cells of one beside those printed, and the errors of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from medusa_sim.lab.reproduce.published import Reproduction
from medusa_sim.report.screen import Fact, Screen
from medusa_sim.report.table import TextTable
from medusa_sim.report.words.numbers import NOTHING, percent, significant, with_prefix

if TYPE_CHECKING:
    import pandas as pd

PUBLISHED = "published_"
PREDICTED = "predicted_"
"""How names of columns begin that hold what a paper prints, and what is predicted for it."""


def target_screen(result: Reproduction) -> Screen | None:
    """Every printed cell with its error; None where the paper's values are not here."""
    columns = compared(result.frame)
    if columns is None:
        return None
    published, predicted = columns
    frame = result.frame.dropna(subset=published)
    errors = (frame[predicted] / frame[published] - 1.0).to_numpy(dtype=np.float64)
    worst = int(np.argmax(np.abs(errors)))
    keys = {name: frame[name].tolist() for name in keys_of(frame)}
    where = ", ".join(f"{name} {values[worst]}" for name, values in keys.items() if len(set(values)) > 1)
    results = {
        "published": [_value_text(published, value) for value in frame[published]],
        "predicted": [_value_text(published, value) for value in frame[predicted]],
        "error": [f"{100.0 * error:+.1f} %" for error in errors],
    }
    table = TextTable.rounded({**keys, **results}, quantity_of(published), fold_constants=True)
    are_right = [right or name in results for name, right in zip(table.headers, table.right, strict=True)]
    return Screen(
        asked=result.title,
        answer=(f"No cell is further off than {percent(float(np.abs(errors[worst])))} ({where}).",),
        tables=(replace(table, right=tuple(are_right)),),
        facts=(
            Fact("Source", result.source),
            Fact("Note", result.caveat),
            Fact("Next", "--wide or --format csv: every column of every cell; --plot FILE.png: a picture"),
        ),
    )


def compared(frame: pd.DataFrame) -> tuple[str, str] | None:
    """The first printed column and the predicted one beside it; None where nothing printed is here."""
    for published in frame.columns:
        if published.startswith(PUBLISHED) and frame[published].notna().any():
            name = published.removeprefix(PUBLISHED)
            beside = (f"{PREDICTED}{name}", f"{name}_fixed", name)
            if predicted := next((each for each in beside if each in frame.columns), ""):
                return published, predicted
    return None


def keys_of(frame: pd.DataFrame) -> list[str]:
    """Columns that say which cell a row is: whole numbers and words before the first result."""
    columns = list(frame.columns)
    first = next(place for place, name in enumerate(columns) if name.startswith((PUBLISHED, PREDICTED)))
    return [name for name in columns[:first] if frame[name].dtype.kind != "f" and frame[name].notna().any()]


def quantity_of(published: str) -> str:
    """What a printed column holds, in words.

    >>> quantity_of("published_tokens_per_s"), quantity_of("published_us")
    ('tokens/s', 'time in us')
    """
    name = published.removeprefix(PUBLISHED)
    known = {"us": "time in us", "flops_per_s": "FLOP/s"}
    return known.get(name) or name.replace("_per_", "/").replace("_", " ")


def _value_text(published: str, value: float) -> str:
    """A printed or predicted value; rates of arithmetic with a prefix."""
    return with_prefix(value, "FLOP/s") if published.endswith("flops_per_s") else significant(value)


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
