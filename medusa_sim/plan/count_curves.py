"""Readings of a curve over counts: free counts, jumps, counts near the best."""

from __future__ import annotations

import numpy as np

from medusa_sim.arrays import BoolArray, FloatArray, IntArray
from medusa_sim.scenario.defaults import FREE_WITHIN

CLIFF = 0.05
"""Rise of the step between two neighbouring counts that is called a cliff."""
QUICKER = 0.01
"""Share by which the step of a larger count is shorter at least where it is called quicker."""
NEAR_BEST = 0.01
"""Speedups within this share of the best are as good: the model is not that exact."""


def free_count(counts: IntArray, overhead: FloatArray, within: float = FREE_WITHIN) -> IntArray:
    """Largest of `counts` such that every one up to it has overhead <= `within`; the first where none has.

    counts: ascending, the first plain decoding. overhead: (..., counts); the result has shape (...).
    """
    beyond = overhead > within * (1.0 + 1e-12)
    free = np.where(beyond.any(axis=-1), np.argmax(beyond, axis=-1), counts.size)
    return np.asarray(counts[np.maximum(free, 1) - 1])


def cliffs(step_us: FloatArray) -> IntArray:
    """Counts n (from 1) after which the next one costs at least CLIFF more, out of line with its neighbours.

    step_us by count from 1. A steady climb, where every token costs as much, has no cliffs.
    """
    growth = step_us[1:] / step_us[:-1] - 1.0
    near = _sum_of_five(np.abs(growth)) - np.abs(growth)
    neighbours = _sum_of_five(np.ones_like(growth)) - 1.0
    return np.flatnonzero((growth >= CLIFF) & (growth * neighbours > 2.0 * near)) + 1


def _sum_of_five(values: FloatArray) -> FloatArray:
    """Each value with up to two neighbours on either side."""
    return np.convolve(values, np.ones(5))[2 : 2 + values.size] if values.size else values


def quicker_pairs(candidates: IntArray, step_us: FloatArray) -> list[tuple[int, int]]:
    """(count, larger count whose step is at least 1 % shorter), for counts in ascending order."""
    least = np.minimum.accumulate(step_us[::-1])[::-1]  # of a count and those after it
    pairs = []
    for i in np.flatnonzero(least < step_us * (1.0 - QUICKER)):
        last = np.flatnonzero(step_us[i + 1 :] < step_us[i] * (1.0 - QUICKER))[-1]
        pairs.append((int(candidates[i]), int(candidates[i + 1 + last])))
    return pairs


def near_best(counts: IntArray, speedup: FloatArray, fits: BoolArray, best: int) -> tuple[int, int]:
    """(smallest, largest) count around the `best` one whose speedups all lie within NEAR_BEST of it.

    counts ascending, speedup and fits by count; best: its index. Plain decoding stands alone.
    """
    good = (speedup >= speedup[best] * (1.0 - NEAR_BEST)) & fits & (counts > 1)
    if not good[best]:
        return int(counts[best]), int(counts[best])
    ends = np.flatnonzero(~good)
    place = int(np.searchsorted(ends, best))
    low = int(ends[place - 1]) + 1 if place else 0
    high = int(ends[place]) - 1 if place < ends.size else counts.size - 1
    return int(counts[low]), int(counts[high])
