"""Quantities as people read them: a number by its unit, a table by names (`grid.quantity`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from medusa_sim.grid.quantity import BY_NAME, Quantity, Unit
from medusa_sim.report.table import TextTable
from medusa_sim.report.words.numbers import NOTHING, duration, percent, significant, times, with_prefix
from medusa_sim.units import KILO

_WAYS: dict[Unit, Callable[[Quantity, float], str]] = {
    "us": lambda _, value: duration(value),
    "s": lambda quantity, value: significant(KILO * value, quantity.digits),
    "per_s": lambda quantity, value: significant(value, quantity.digits),
    "ratio": lambda _, value: f"{value:.2f}",
    "times": lambda _, value: times(value),
    "share": lambda quantity, value: percent(value, max(quantity.digits - 2, 0)),
    "bytes": lambda quantity, value: with_prefix(value, "B", quantity.digits),
    "": lambda quantity, value: significant(value, quantity.digits),
}


def quantity_text(name: str, value: Any) -> str:
    """A value of a quantity."""
    quantity = BY_NAME[name]
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if quantity.labels:
        return quantity.labels[int(value)]
    if isinstance(value, str) or (isinstance(value, int) and not quantity.unit):
        return str(value)
    return _WAYS[quantity.unit](quantity, float(value))


def titles(*names: str) -> tuple[str, ...]:
    """Headings of quantities."""
    return tuple(BY_NAME[name].title for name in names)


def quantity_table(
    columns: Mapping[str, Sequence[str]],
    *,
    words: Sequence[str] = (),
    expendable: Sequence[str] = (),
    title: str = "",
) -> TextTable:
    """A table whose columns are quantities, each with its cells; those without a value are left out.

    words: names of columns of words; expendable: names of columns that a narrow table leaves out, the first
    one first.
    """
    kept = {name: cells for name, cells in columns.items() if set(cells) - {NOTHING}}
    return TextTable.by_column(
        dict(zip(titles(*kept), kept.values(), strict=True)),
        words=titles(*(name for name in words if name in kept)),
        title=title,
        expendable=titles(*(name for name in expendable if name in kept)),
    )
