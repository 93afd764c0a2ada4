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
from typing import NamedTuple

import numpy as np

from medusa_sim.acceptance.heads import HeadAccuracy, chain_accuracy
from medusa_sim.errors import DataError, shown
from medusa_sim.reading.tables import csv_lines

_TOP_K = re.compile(r"(?:cum_)?top_?(\d{1,9})")


class _Row(NamedTuple):
    """A line of the table, and where it stands."""

    where: str
    cells: Mapping[str, str]
    """By column."""

    def number(self, column: str) -> float:
        """A finite number."""
        try:
            value = float(self.cells[column])
        except ValueError:
            raise DataError(f"{self._cell(column)} is not a number") from None
        if not math.isfinite(value):
            raise DataError(f"{self._cell(column)} is not finite")
        return value

    def place(self, column: str) -> int:
        """A place, counted from 0."""
        value = self.number(column)
        if value != int(value) or not 0 <= value < 1000:
            raise DataError(f"{self._cell(column)} must be a whole number from 0 to 999")
        return int(value)

    def sample_size(self, column: str) -> float:
        """A count from 1."""
        value = self.number(column)
        if value < 1.0:
            advice = f"give a count from 1, or leave column {column} out where it is unknown"
            raise DataError(f"{self._cell(column)} is no sample size; {advice}")
        return value

    @property
    def labels(self) -> set[float]:
        """The sample size of its head; none where the column is missing or empty."""
        return {self.sample_size("labels")} if self.cells.get("labels") else set()

    def _cell(self, column: str) -> str:
        return f"{self.where}: {column} {shown(self.cells[column])}"


def _rows(path: Path) -> tuple[list[str], list[_Row]]:
    """Column names, and every line below; strict about the number of cells."""
    lines = list(csv_lines(path, "a CSV file of accuracies"))
    if len(lines) < 2:
        raise DataError(f"{path}: no rows; expected a header and at least one line below it")
    columns = [cell.strip().lower() for cell in lines[0][1]]
    return columns, [
        _Row(f"{path} line {number}", dict(zip(columns, map(str.strip, cells), strict=True)))
        for number, cells in lines[1:]
    ]


def _per_head(path: Path, counts: Mapping[int, set[float]]) -> list[float] | None:
    """One sample size per head; None where the column is empty throughout."""
    if not any(counts.values()):
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


def _from_long(path: Path, rows: Sequence[_Row]) -> HeadAccuracy:
    table: dict[tuple[int, int], float] = {}
    counts: dict[int, set[float]] = {}
    ranks: dict[int, list[int]] = {}
    for row in rows:
        head, rank = row.place("head"), row.place("rank")
        if (head, rank) in table:
            raise DataError(f"{row.where}: head {head} rank {rank} is listed twice")
        table[head, rank] = row.number("accuracy")
        counts.setdefault(head, set()).update(row.labels)
        ranks.setdefault(head, []).append(rank)
    heads = _without_gaps(path, "head", list(ranks))
    accuracy = np.zeros((heads, max(_without_gaps(path, f"head {k}: rank", ranks[k]) for k in ranks)))
    for place, value in table.items():
        accuracy[place] = value
    return HeadAccuracy.checked(accuracy, _per_head(path, counts), where=str(path))


def _from_cumulative(
    path: Path, columns: Sequence[str], rows: Sequence[_Row], head_column: str
) -> HeadAccuracy:
    tops = sorted((int(match[1]), column) for column in columns if (match := _TOP_K.fullmatch(column)))
    if [k for k, _ in tops] != list(range(1, len(tops) + 1)):
        raise DataError(f"{path}: cumulative columns must be top1, top2, ... without gaps")
    by_head: dict[int, list[float]] = {}
    counts: dict[int, set[float]] = {}
    for row in rows:
        head = row.place(head_column)
        if head in by_head:
            raise DataError(f"{row.where}: head {head} is listed twice; give one model's rows only")
        by_head[head] = [row.number(column) for _, column in tops]
        counts[head] = row.labels
    table = [by_head[head] for head in range(_without_gaps(path, "head", list(by_head)))]
    return HeadAccuracy.from_cumulative(table, _per_head(path, counts), where=str(path))


def _from_chain(path: Path, columns: Sequence[str], rows: Sequence[_Row]) -> HeadAccuracy:
    conditional = "conditional_rate" in columns
    by_position = {row.place("position"): row for row in rows}
    if len(by_position) < len(rows):
        raise DataError(f"{path}: a position is listed twice")
    ordered = [by_position[place] for place in range(_without_gaps(path, "position", list(by_position)))]
    rates = [row.number("conditional_rate" if conditional else "unconditional_rate") for row in ordered]
    trials = [row.sample_size("trials") for row in ordered] if "trials" in columns else None
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
        known = sorted({row.cells.get("model", "") for row in rows})
        rows = [row for row in rows if row.cells.get("model") == model]
        if not rows:
            raise DataError(f"{path}: no rows of model {model!r} (known: {', '.join(known)[:100]})")
    names = set(columns)
    if {"head", "rank", "accuracy"} <= names:
        return _from_long(path, rows)
    head = next((name for name in columns if name == "head" or name.startswith("head_index")), None)
    if head and "top1" in {name.removeprefix("cum_") for name in names}:
        return _from_cumulative(path, columns, rows, head)
    if "position" in names and names & {"conditional_rate", "unconditional_rate"}:
        return _from_chain(path, columns, rows)
    raise DataError(
        f"{path}: columns {', '.join(columns)[:100]}: expected head,rank,accuracy[,labels] or "
        "head,top1,top2,...[,labels] or position,conditional_rate[,trials]"
    )
