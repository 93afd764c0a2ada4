"""How a table of operators names an operator: what `operators.table` reads of its rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSchema:
    """Columns of the rows of one family of operators."""

    numbers: tuple[str, ...] = ()
    """Columns of whole numbers that every row must fill; empty: the operator's COLUMNS."""
    optional: Mapping[str, float] = field(default_factory=dict)
    """Further numbers from 0, with the meaning of a blank cell: a number for a column of whole counts, NaN
    for one of measurements."""
    words: Mapping[str, str] = field(default_factory=dict)
    """Text columns with the meaning of a blank cell."""
    splits: tuple[str, ...] = ()
    """Text columns that make rows different operators."""
    blank_dtype: str = ""
    """Meaning of a blank `dtype`; empty: a row must give one."""
