"""Array types by element, 80 % intervals of arrays, spans of whole numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

IntArray: TypeAlias = npt.NDArray[np.int64]
FloatArray: TypeAlias = npt.NDArray[np.float64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]


NumberT = TypeVar("NumberT", bound=np.generic)


def as_float(values: npt.ArrayLike) -> FloatArray:
    """Numbers as an array of float64; not copied where they are one."""
    return np.asarray(values, dtype=np.float64)


def every_to(dense: int, low: int, high: int, ratio: float) -> IntArray:
    """Whole numbers from low to high: every one to `dense`, then each about `ratio` times the one before.

    >>> every_to(4, 1, 16, 1.5).tolist()
    [1, 2, 3, 4, 6, 8, 11, 16]
    """
    every = np.arange(low, min(high, max(dense, low)) + 1)
    if not every.size or every[-1] >= high:
        return every
    steps = int(np.ceil(np.log(high / every[-1]) / np.log(ratio)))
    beyond = np.rint(np.geomspace(every[-1], high, 1 + steps)).astype(np.int64)
    return np.union1d(every, beyond)


def once(values: npt.NDArray[NumberT]) -> npt.NDArray[NumberT]:
    """Without what broadcasting repeats along an axis: one of it."""
    return values[tuple(slice(None, None if step else 1) for step in values.strides)]


def in_quadrature(first: FloatArray, second: FloatArray) -> FloatArray:
    """sqrt(a^2 + b^2), ten times as fast as `np.hypot`, which also holds where squares overflow."""
    return root(first * first, second * second)


def root(first: FloatArray, second: FloatArray) -> FloatArray:
    """sqrt(a + b) of squares, each in a shape as small as it can be."""
    square: FloatArray = np.asarray(first + second)
    return np.sqrt(square, out=square)


class Band(NamedTuple):
    """Ends of an interval that holds 80 % of measurements."""

    low: FloatArray
    high: FloatArray

    @property
    def of_inverse(self) -> Band:
        """That of one over the quantity."""
        return Band(1.0 / self.high, 1.0 / self.low)

    @property
    def half(self) -> FloatArray:
        """Half its width on the logarithm."""
        return np.asarray(np.log(self.high / self.low) / 2.0)


def conditional(rates: FloatArray) -> FloatArray:
    """(K,) rates given that those before held, 0 where none did. rates: (K,) of each with all before it."""
    before = np.concatenate([[1.0], rates[:-1]])
    return as_float(np.divide(rates, before, out=np.zeros(rates.shape), where=before > 0.0))


def evenly(values: IntArray, most: int) -> IntArray:
    """At most `most` of the values, the first and the last among them."""
    if values.size <= most:
        return values
    return values[np.unique(np.linspace(0, values.size - 1, most).round().astype(np.int64))]


class Span(NamedTuple):
    """Whole numbers from the first to the last."""

    first: int
    last: int

    @property
    def width(self) -> float:
        """Ratio of its ends: as many times more requests as it spans."""
        return (self.last + 1) / self.first

    def part_in(self, other: Span) -> Span | None:
        """What both hold; None where that is nothing."""
        first, last = max(self.first, other.first), min(self.last, other.last)
        return Span(first, last) if first <= last else None


def joined(spans: Iterable[tuple[int, int]]) -> tuple[Span, ...]:
    """Spans in rising order, those that meet or adjoin as one."""
    found: list[Span] = []
    for first, last in sorted(spans):
        if found and first <= found[-1].last + 1:
            found[-1] = Span(found[-1].first, max(found[-1].last, last))
        else:
            found.append(Span(first, last))
    return tuple(found)


class Halves(NamedTuple):
    """Half-widths of such an interval on the logarithm of the quantity that they are named for."""

    down: FloatArray
    """Towards its lower end."""
    up: FloatArray
    """Towards its upper end."""

    @classmethod
    def within(cls, low: FloatArray, value: FloatArray, high: FloatArray) -> Halves:
        """Those of a value between the ends of its interval."""
        return cls(np.asarray(np.log(value / low)), np.asarray(np.log(high / value)))

    @property
    def of_inverse(self) -> Halves:
        """Those of one over the quantity: where a step may be longer, a speedup may be smaller."""
        return Halves(self.up, self.down)

    def times(self, share: FloatArray | float) -> Halves:
        """Those of the quantity to the power of `share`: of what it moves by that share of its error."""
        return Halves(share * self.down, share * self.up)

    def joined_by(self, other: Halves) -> Halves:
        """Those of a product with another quantity, whose errors are independent."""
        return Halves(in_quadrature(self.down, other.down), in_quadrature(self.up, other.up))

    def ratios(self) -> Band:
        """Ends of the interval as ratios to the value."""
        return Band(np.exp(-self.down), np.exp(self.up))
