"""An axis as a caller in Python gives it: one value or several."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any

from medusa_sim.errors import UsageError, check_kind, shown

Sizes = int | Iterable[int]
"""One whole number from 1, or several."""
_EXACT_TO = 2**53
"""Sizes are counted in double precision."""


def as_list(given: object) -> list[Any]:
    """One value or several, as a list; text is one."""
    return list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]


def whole_numbers(name: str, sizes: Sizes) -> list[int]:
    """Sizes as a list. Raises UsageError for text, and for fractions, which would be truncated silently."""
    given = as_list(sizes)
    for size in given:
        whole = isinstance(size, Integral) or (isinstance(size, float) and size.is_integer())
        if isinstance(size, bool) or not whole or abs(size) > _EXACT_TO:
            raise UsageError(f"{name} {shown(size)}: whole numbers from 1 are allowed, one or several")
    return [int(size) for size in given]


def names(name: str, given: object) -> tuple[str, ...]:
    """Names, one or several. Raises UsageError for anything else."""
    listed = as_list(given)
    for each in listed:
        check_kind(name, each, "a name, or several", (str,))
    return tuple(listed)


def numbers(name: str, given: float | Iterable[float]) -> list[float]:
    """Numbers as a list, each once. Raises UsageError for anything else, such as text."""
    listed = as_list(given)
    for number in listed:
        if isinstance(number, bool) or not isinstance(number, Real):
            raise UsageError(f"{name} {shown(number)}: numbers are allowed, one or several")
    return list(dict.fromkeys(float(number) for number in listed))
