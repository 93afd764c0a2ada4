"""The axes of a grid of configurations, and what a caller may give for them: one value or several."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np

from medusa_sim.arrays import IntArray
from medusa_sim.errors import UsageError, check_kind, shown

LARGEST = 10**12
"""On any axis: products of the three are counted in 64 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Axes of a sweep: whole numbers from 1, each axis in the order in which rows come out."""

    batch: IntArray
    seq_len: IntArray
    candidates: IntArray

    @classmethod
    def of(cls, batch: Sequence[int], seq_len: Sequence[int], candidates: Sequence[int]) -> Grid:
        """A grid of three lists. Raises UsageError for an empty axis or a value below 1."""
        axes = {"batch": batch, "seq_len": seq_len, "candidates": candidates}
        for name, values in axes.items():
            if len(values) == 0:
                raise UsageError(f"{name} is empty: give at least one whole number from 1")
            if min(values) < 1:
                raise UsageError(f"{name} {min(values)}: whole numbers from 1 are allowed")
            if max(values) > LARGEST:
                raise UsageError(f"{name} {max(values)}: whole numbers from 1 to {LARGEST:g} are allowed")
        return cls(**{name: np.asarray(values, dtype=np.int64) for name, values in axes.items()})

    @property
    def rows(self) -> int:
        """Configurations for one GPU and one model."""
        return self.batch.size * self.seq_len.size * self.candidates.size


Sizes = int | Iterable[int]
"""One whole number from 1, or several."""
_LARGEST = 2**53
"""Sizes are counted in double precision."""


def several(given: object) -> list[Any]:
    """One value or several, as a list; text is one."""
    return list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]


def whole_numbers(name: str, sizes: Sizes) -> list[int]:
    """Sizes as a list. Raises UsageError for text, and for fractions, which would be truncated silently."""
    given = several(sizes)
    for size in given:
        whole = isinstance(size, Integral) or (isinstance(size, float) and size.is_integer())
        if isinstance(size, bool) or not whole or abs(size) > _LARGEST:
            raise UsageError(f"{name} {shown(size)}: whole numbers from 1 are allowed, one or several")
    return [int(size) for size in given]


def names(name: str, given: object) -> tuple[str, ...]:
    """Names, one or several. Raises UsageError for what is none."""
    listed = several(given)
    for each in listed:
        check_kind(name, each, "a name, or several", (str,))
    return tuple(listed)


def numbers(name: str, given: float | Iterable[float]) -> list[float]:
    """Numbers as a list, each once. Raises UsageError for what is none, such as text."""
    listed = several(given)
    for number in listed:
        if isinstance(number, bool) or not isinstance(number, Real):
            raise UsageError(f"{name} {shown(number)}: numbers are allowed, one or several")
    return list(dict.fromkeys(float(number) for number in listed))
