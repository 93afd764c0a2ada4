"""Batches -> few ranges that share one configuration, because engines pay for switching.

The smallest batch of a range runs what the answer for that batch alone would run.
The batches after it keep that as long as another configuration gains no more than a switch is worth: a
tolerance, or the doubt about the two where that is larger. Two counts of one set-up share most of what is
uncertain: the larger one makes the same first guesses, and its kernels take the rows of the smaller one and
more. What it adds is taken as independent of what both have, so that

    (R12) doubt = |h_1^2 - h_2^2|^(1/2)        h: half-widths of both speedups, on the logarithm

Plain decoding has no width of its own, so that against it the whole interval counts.

Where a switch is worth it, it is made at the first batch from which the next configuration is at least as
fast all the way: there are as few ranges as before, and none waits until it has lost a whole tolerance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from medusa_sim.arrays import BoolArray, FloatArray, IntArray
from medusa_sim.errors import UsageError
from medusa_sim.grid.configurations import PLAIN
from medusa_sim.scenario.defaults import SWITCHING_GAIN

_TIE = 1e-12
"""Log speedups that differ by rounding alone are the same: a chain is the tree of its count at times."""


@dataclass(frozen=True, slots=True)
class BatchRange:
    """Indices `first` to `last` (inclusive) of batches that are run with one configuration."""

    first: int
    last: int
    configuration: int
    begins_at_first: bool = False
    """Whether it begins at its first batch, and not right after the searched one before it."""

    @property
    def slice(self) -> slice:
        """Its part of an array over batches."""
        return slice(self.first, self.last + 1)

    def __contains__(self, b: int) -> bool:
        """Whether it holds the b-th batch."""
        return self.first <= b <= self.last


def configuration_at(ranges: Sequence[BatchRange], b: int) -> int:
    """The configuration that runs at the b-th batch."""
    return next(one.configuration for one in ranges if b in one)


def merge_batches(
    speedup: FloatArray,
    allowed: BoolArray | None = None,
    switching_gain: float = SWITCHING_GAIN,
    groups: IntArray | None = None,
    *,
    drafted: BoolArray | None = None,
    halves: FloatArray | None = None,
) -> tuple[BatchRange, ...]:
    """Few ranges, each of which runs what is best at its first batch.

    speedup: (batches, configurations), column 0 plain decoding (1.0). allowed: the same shape, False where
    a configuration does not fit in memory; plain decoding is allowed where nothing else is. groups:
    (batches,) a range never spans two of them. drafted: (batches,) where drafts are made, and a range never
    crosses an end of that; None: where an allowed configuration gives more than 1. halves: half-widths of
    the speedups' intervals, on the logarithm; None: known exactly.

    A configuration stands as long as it gains wherever another does, and the best one gains over it
    - less than `switching_gain`, or
    - no more than the doubt about the two.
    Where it no longer stands the range ends; the next begins at the first batch where that loses nothing.

    Raises UsageError for a switching gain outside [0, 1).
    """
    if not 0.0 <= switching_gain < 1.0:
        raise UsageError(f"switch gain {switching_gain:g}: from 0 to below 1 is allowed (0.03 is 3 %)")
    log_speedup = np.log(speedup)
    if allowed is not None:
        usable = allowed.copy()
        usable[:, 0] |= ~usable.any(axis=1)
        log_speedup = np.where(usable, log_speedup, -np.inf)
    top = log_speedup[:, 1:].max(axis=1, initial=-np.inf)
    pays = top > 0.0 if drafted is None else drafted & np.isfinite(top)
    best = np.where(pays, 1 + _first_of_largest(log_speedup[:, 1:], top), 0)
    joins = pays[1:] == pays[:-1] if groups is None else (pays[1:] == pays[:-1]) & (groups[1:] == groups[:-1])
    ranges: list[BatchRange] = []
    first = 0
    while first < best.size:
        configuration, last = int(best[first]), first
        stands = _stands(log_speedup, configuration, best, switching_gain, halves)
        while last + 1 < best.size and joins[last] and stands[last + 1]:
            last += 1
        start = first
        if ranges and joins[first - 1]:
            start = _earliest_switch(ranges[-1], configuration, log_speedup, best)
            ranges[-1] = replace(ranges[-1], last=start - 1)
        ranges.append(BatchRange(start, last, configuration))
        first = last + 1
    return tuple(ranges)


def _earliest_switch(before: BatchRange, configuration: int, log_speedup: FloatArray, best: IntArray) -> int:
    """The batch from which `configuration` follows a range: the first at which it is best, if it is no slower
    than the range's own from there on. The range keeps its first batch.
    """
    inside = slice(before.first + 1, before.last + 1)
    slower = log_speedup[inside, configuration] < log_speedup[inside, before.configuration]
    no_slower_from = inside.start + (int(np.flatnonzero(slower)[-1]) + 1 if slower.any() else 0)
    is_best = np.flatnonzero(best[no_slower_from : inside.stop] == configuration)
    return no_slower_from + int(is_best[0]) if is_best.size else inside.stop


def _first_of_largest(log_speedup: FloatArray, top: FloatArray) -> IntArray:
    """(batches,) the first configuration that is as fast as the fastest."""
    if not log_speedup.shape[1]:
        return np.zeros(top.shape, dtype=np.int64)
    return np.asarray(np.argmax(log_speedup >= top[:, None] - _TIE, axis=1))


def _stands(
    log_speedup: FloatArray,
    configuration: int,
    best: IntArray,
    switching_gain: float,
    halves: FloatArray | None,
) -> BoolArray:
    """(batches,) whether a configuration stands against the best one."""
    rows = np.arange(best.size)
    kept, largest = log_speedup[:, configuration], log_speedup[rows, best]
    with np.errstate(invalid="ignore"):  # nothing is gained over what is not allowed
        lost = np.where(np.isfinite(kept), largest - kept, np.inf)
    doubt = (
        0.0 if halves is None else np.sqrt(np.abs(halves[:, configuration] ** 2 - halves[rows, best] ** 2))
    )
    is_small = kept > largest + np.log1p(-switching_gain)
    is_doubtful = lost <= np.maximum(doubt, _TIE)
    gains = (kept > 0.0) | (largest <= 0.0) | (configuration == PLAIN)
    return np.asarray((is_small | is_doubtful) & gains)
