"""Array types by element, and the one conversion to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

IntArray: TypeAlias = npt.NDArray[np.int64]
FloatArray: TypeAlias = npt.NDArray[np.float64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]


NumberT = TypeVar("NumberT", bound=np.generic)


def as_float(values: npt.ArrayLike) -> FloatArray:
    """Numbers as an array of float64; not copied where they are one."""
    return np.asarray(values, dtype=np.float64)


def distinct(*values: Sequence[int] | IntArray) -> IntArray:
    """Rising whole numbers of some arrays, each once; `np.unique` would load numpy.ma, 0.03 s."""
    every = np.sort(np.concatenate(values))
    new = np.ones(every.size, dtype=np.bool_)
    new[1:] = every[1:] != every[:-1]
    return every[new]


def among(values: IntArray, some: Sequence[int] | IntArray) -> BoolArray:
    """Whether each whole number is one of some; as `np.isin`, which calls `np.unique`."""
    known = np.sort(np.asarray(some, dtype=np.int64))
    if not known.size:
        return np.zeros(values.shape, dtype=np.bool_)
    return np.asarray(known.take(np.searchsorted(known, values), mode="clip") == values)


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
    return distinct(every, beyond)


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
