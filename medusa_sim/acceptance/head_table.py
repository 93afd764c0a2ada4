"""Head and chain accuracies from tables: what a user's own measurement looks like as CSV.

Three layouts, told apart by their header: `head,rank,accuracy[,labels]` (accuracy of exactly that
rank, 0-based), `head,top1,top2,...[,labels]` (cumulative), and `position,conditional_rate[,trials]` or
`position,unconditional_rate[,trials]` (a chain). Lines that start with # are comments.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from medusa_sim.acceptance.heads import HeadAccuracy, chain_accuracy
from medusa_sim.errors import DataError, shown
from medusa_sim.reading.tables import csv_lines

_TOP_K = re.compile(r"(?:cum_)?top_?(\d{1,9})")
Row = Mapping[str, str]


def _rows(path: Path) -> tuple[list[str], list[tuple[int, Row]]]:
    """Column names, and (line number, row) of every line; strict about the number of cells."""
    lines = list(csv_lines(path, "a CSV file of accuracies"))
    if len(lines) < 2:
        raise DataError(f"{path}: no rows; expected a header and at least one line below it")
    columns = [cell.strip().lower() for cell in lines[0][1]]
    rows: list[tuple[int, Row]] = [
        (number, dict(zip(columns, map(str.strip, cells), strict=True))) for number, cells in lines[1:]
    ]
    return columns, rows


def _number(path: Path, line: int, row: Row, column: str) -> float:
    try:
        value = float(row[column])
    except ValueError:
        raise DataError(f"{path} line {line}: {column} {shown(row[column])} is not a number") from None
    if not math.isfinite(value):
        raise DataError(f"{path} line {line}: {column} {shown(row[column])} is not finite")
    return value


def _sample_size(path: Path, line: int, row: Row, column: str) -> float:
    value = _number(path, line, row, column)
    if value < 1.0:
        raise DataError(
            f"{path} line {line}: {column} {shown(row[column])} is no sample size; give a count from 1, or "
            f"leave column {column} out where it is unknown"
        )
    return value


def _index(path: Path, line: int, row: Row, column: str) -> int:
    value = _number(path, line, row, column)
    if value != int(value) or not 0 <= value < 1000:
        raise DataError(
            f"{path} line {line}: {column} {shown(row[column])} must be a whole number from 0 to 999"
        )
    return int(value)


def _per_head(path: Path, counts: Mapping[int, set[float]]) -> list[float] | None:
    """One sample size per head; None where the column is empty throughout."""
    if all(not values for values in counts.values()):
        return None
    for head, values in counts.items():
        if len(values) != 1:
            raise DataError(
                f"{path}: head {head} has {len(values)} different sample sizes (column labels), one is needed"
            )
    return [values.copy().pop() for _, values in sorted(counts.items())]


def _without_gaps(path: Path, what: str, places: Sequence[int]) -> int:
    missing = set(range(max(places) + 1)) - set(places)
    if missing:
        raise DataError(f"{path}: {what} {min(missing)} is missing; count from 0 without gaps")
    return max(places) + 1


def _from_long(path: Path, columns: Sequence[str], rows: Sequence[tuple[int, Row]]) -> HeadAccuracy:
    table: dict[tuple[int, int], float] = {}
    counts: dict[int, set[float]] = {}
    for line, row in rows:
        head, rank = _index(path, line, row, "head"), _index(path, line, row, "rank")
        if (head, rank) in table:
            raise DataError(f"{path} line {line}: head {head} rank {rank} is listed twice")
        table[head, rank] = _number(path, line, row, "accuracy")
        labelled = "labels" in columns and row["labels"] != ""
        counts.setdefault(head, set()).update([_sample_size(path, line, row, "labels")] if labelled else [])
    ranks: dict[int, list[int]] = {}
    for head, rank in table:
        ranks.setdefault(head, []).append(rank)
    heads = _without_gaps(path, "head", list(ranks))
    for head, listed in ranks.items():
        _without_gaps(path, f"head {head}: rank", listed)
    accuracy = np.zeros((heads, 1 + max(rank for _, rank in table)))
    for (head, rank), value in table.items():
        accuracy[head, rank] = value
    return HeadAccuracy.checked(accuracy, _per_head(path, counts), where=str(path))


def _from_cumulative(
    path: Path, columns: Sequence[str], rows: Sequence[tuple[int, Row]], head_column: str
) -> HeadAccuracy:
    tops = sorted((int(match[1]), column) for column in columns if (match := _TOP_K.fullmatch(column)))
    if [k for k, _ in tops] != list(range(1, len(tops) + 1)):
        raise DataError(f"{path}: cumulative columns must be top1, top2, ... without gaps")
    by_head: dict[int, list[float]] = {}
    counts: dict[int, set[float]] = {}
    for line, row in rows:
        head = _index(path, line, row, head_column)
        if head in by_head:
            raise DataError(f"{path} line {line}: head {head} is listed twice; give one model's rows only")
        by_head[head] = [_number(path, line, row, column) for _, column in tops]
        labelled = "labels" in columns and row["labels"] != ""
        counts[head] = {_sample_size(path, line, row, "labels")} if labelled else set()
    heads = _without_gaps(path, "head", list(by_head))
    table = [by_head[head] for head in range(heads)]
    return HeadAccuracy.from_cumulative(table, _per_head(path, counts), where=str(path))


def _from_chain(path: Path, columns: Sequence[str], rows: Sequence[tuple[int, Row]]) -> HeadAccuracy:
    conditional = "conditional_rate" in columns
    column = "conditional_rate" if conditional else "unconditional_rate"
    ordered = sorted((_index(path, line, row, "position"), line, row) for line, row in rows)
    if len({position for position, _, _ in ordered}) < len(ordered):
        raise DataError(f"{path}: a position is listed twice")
    _without_gaps(path, "position", [position for position, _, _ in ordered])
    rates = [_number(path, line, row, column) for _, line, row in ordered]
    counted = "trials" in columns
    trials = [_sample_size(path, line, row, "trials") for _, line, row in ordered] if counted else None
    return chain_accuracy(rates, trials, conditional=conditional, where=str(path))


def read_accuracies(path: Path, model: str | None = None) -> HeadAccuracy:
    """Accuracies from a CSV file in any of the three layouts.

    `model`: keep only the rows with this value in a `model` column.

    Raises:
        DataError: a file that cannot be read, missing columns, text in numbers, gaps or duplicates.
        SpecError: numbers that are no accuracies.
    """
    columns, rows = _rows(path)
    if model is not None:
        known = sorted({row.get("model", "") for _, row in rows})
        rows = [(line, row) for line, row in rows if row.get("model") == model]
        if not rows:
            raise DataError(f"{path}: no rows of model {model!r} (known: {', '.join(known)[:100]})")
    names = set(columns)
    if {"head", "rank", "accuracy"} <= names:
        return _from_long(path, columns, rows)
    head = next((name for name in columns if name == "head" or name.startswith("head_index")), None)
    if head and "top1" in {name.removeprefix("cum_") for name in names}:
        return _from_cumulative(path, columns, rows, head)
    if "position" in names and names & {"conditional_rate", "unconditional_rate"}:
        return _from_chain(path, columns, rows)
    raise DataError(
        f"{path}: columns {', '.join(columns)[:100]}: expected head,rank,accuracy[,labels] or "
        "head,top1,top2,...[,labels] or position,conditional_rate[,trials]"
    )
