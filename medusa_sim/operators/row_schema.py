"""How a table of operators names an operator: what `operators.table` reads of its rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSchema:
    """Columns of the rows of one family of operators."""

    numbers: tuple[str, ...] = ()
    """Whole numbers that every row has; none: the operator's COLUMNS."""
    optional: Mapping[str, float] = field(default_factory=dict)
    """Further numbers, 0 or more, and what a blank cell means: one that means a number is a count and whole,
    one that means NaN a measurement."""
    words: Mapping[str, str] = field(default_factory=dict)
    """Text columns, and what a blank one means."""
    splits: tuple[str, ...] = ()
    """Those words whose rows are different operators."""
    blank_dtype: str = ""
    """What a blank `dtype` means; empty: it must be said."""
