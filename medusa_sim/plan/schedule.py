"""Batches -> few ranges that share one configuration, because engines pay for switching.

A range may hold a batch as long as one configuration gives it at least its own best speedup less
the tolerance, and as long as speculating pays at all of the range or at none of it: a range never
crosses break-even. Any part of such a range is one as well, so taking the longest range from the
smallest batch on gives the fewest ranges.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from medusa_sim.arrays import BoolArray, FloatArray, IntArray
from medusa_sim.errors import UsageError
from medusa_sim.plan import SWITCHING_GAIN

_TIE = 1e-12
"""Log speedups that differ by rounding alone are the same: a chain is the tree of its count at times."""


@dataclass(frozen=True, slots=True)
class BatchRange:
    """Places `first` to `last` (inclusive) on the batch axis, all run with one configuration."""

    first: int
    last: int
    configuration: int


def merge_batches(
    speedup: FloatArray,
    allowed: BoolArray | None = None,
    gain: float = SWITCHING_GAIN,
    apart: IntArray | None = None,
) -> tuple[BatchRange, ...]:
    """The fewest ranges in which no batch loses `gain` or more against its own best configuration.

    speedup: (batches, configurations), column 0 plain decoding (1.0). allowed: the same shape, False where
    a configuration does not fit in memory; plain decoding is allowed where nothing else is. apart:
    (batches,) numbers of which a range has one only. A batch speculates where an allowed configuration gives
    it more than 1, and then with one that does: its verdict is the same in every range that it is asked in.
    Within a range the configuration with the largest mean log speedup is taken, ties to the first.
    Raises UsageError for a gain outside [0, 1).
    """
    if not 0.0 <= gain < 1.0:
        raise UsageError(f"switching gain {gain:g}: from 0 to below 1 is allowed (0.03 is 3 %)")
    log_speedup = np.log(speedup)
    if allowed is not None:
        usable = allowed.copy()
        usable[:, 0] |= ~usable.any(axis=1)
        log_speedup = np.where(usable, log_speedup, -np.inf)
    good = log_speedup > log_speedup.max(axis=1, keepdims=True) + np.log1p(-gain)
    good |= log_speedup == log_speedup.max(axis=1, keepdims=True)
    pays = np.asarray((log_speedup[:, 1:] > 0.0).any(axis=1))
    good[pays] &= log_speedup[pays] > 0.0
    good[~pays] = np.arange(speedup.shape[1]) == 0
    alike = pays[1:] == pays[:-1] if apart is None else (pays[1:] == pays[:-1]) & (apart[1:] == apart[:-1])
    ranges = []
    first = 0
    while first < good.shape[0]:
        common = good[first]
        last = first
        while last + 1 < good.shape[0] and alike[last] and (common & good[last + 1]).any():
            last += 1
            common = common & good[last]
        mean = np.full(common.shape, -np.inf)  # columns that are left out may hold -inf
        mean[common] = log_speedup[first : last + 1, common].sum(axis=0)
        best = np.argmax(mean >= mean.max() - _TIE * (last + 1 - first))
        ranges.append(BatchRange(first, last, int(best)))
        first = last + 1
    return tuple(ranges)
