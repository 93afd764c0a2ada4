"""Fits collectives (`latency.collective`) to measured rows of one GPU and kernel.

Where a library changes its algorithm is a property of the library: the ranges are found by dynamic
programming over the sizes that were measured at the fewest and at the most ranks, the times within a range
by least squares of relative errors with non-negative coefficients, all exactly. Held-out errors leave out
sizes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from medusa_sim.arrays import BoolArray, FloatArray, as_float
from medusa_sim.gpus.fitted_links import FEWEST_RANKS, CollectiveKernel, CollectiveRegime
from medusa_sim.gpus.gpu import Gpu
from medusa_sim.lab.calibrate.driver import UNFITTED, Budget, FitDriver
from medusa_sim.lab.calibrate.rows import Rows, require_rows
from medusa_sim.latency.collective import collective_time, sent_bytes
from medusa_sim.operators.collective import Collective
from medusa_sim.units import HALVES, US_PER_S

ONE_SHOT_BYTES = 2**20
"""Custom all-reduce kernels send whole messages in one step up to some such size (vLLM's
custom_all_reduce.cuh: 512 KiB of up to four ranks, 256 KiB of eight, any size of two)."""
RINGS = ("nccl", "rccl")
"""Libraries whose small messages go through rings and trees as well."""

IN_SWITCH = {"hopper": 1.23, "blackwell": 1.5}
"""What a byte of an all-reduce in the switch (NVLink SHARP) costs over a ring's, by architecture: from the
16-bit and the 8-bit all-reduce of eight ranks, of which NCCL leaves the second to rings."""
SWITCH_BYTES = 2**23
"""From such messages on libraries leave an all-reduce to NCCL and NCCL to the switch."""
_SWITCH_LINK = 3e11
"""Bytes a second above which a link leads to an NVLink switch."""

_REGIME_COST = 0.1
"""Relative error, summed over rows, that a further regime must save."""
_SAME_END_COST = 0.02
_NO_WORSE = 0.02
"""Relative errors, summed over rows: of a range that ends at the same size for all ranks, where one-shot
kernels do not; and what a sum in the switch may miss more than a ring, being the likelier."""
_LEAST_SIZES = 2
"""Of a range, at the fewest ranks and at the most."""
_FARTHEST = 2.0
"""How many powers of two the ends of a range may be apart at the fewest and at the most ranks."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A regime of some rows, and the sum of their relative errors."""

    regime: CollectiveRegime
    error: float


def fit_collective(rows: Rows[Collective], gpu: Gpu, *, source: str) -> CollectiveKernel:
    """Kernel parameters of measured rows, with `fit` filled in.

    Deterministic, a few seconds. Raises DataError for fewer than 20 rows.
    """
    require_rows(rows, source)
    kernel = _search(rows, gpu)
    driver: FitDriver[Collective, CollectiveKernel] = FitDriver(gpu, collective_time, Budget(folds=3))
    return driver.with_fit(kernel, rows, lambda _, part: _search(part, gpu), source=source)


def _search(rows: Rows[Collective], gpu: Gpu) -> CollectiveKernel:
    """The regimes of the least error, a further one costing _REGIME_COST."""
    message, ranks = as_float(rows.operator.message_bytes), as_float(rows.operator.ranks)
    fewest, most = float(ranks.min()), float(ranks.max())
    sizes = [np.unique(message[ranks == count]) for count in (fewest, most)]
    switch = IN_SWITCH.get(gpu.architecture, 0.0)
    if rows.operator.kind != "all_reduce" or rows.operator.dtype not in HALVES:
        switch = 0.0
    if gpu.link_bandwidth_bytes_per_s <= _SWITCH_LINK:
        switch = 0.0
    may_be_one_shot = rows.operator.kind == "all_reduce" and not rows.kernel.lower().startswith(RINGS)

    parts: dict[tuple[int, int, int, int], _Part] = {}

    def part(low: int, high: int, low_most: int, high_most: int) -> _Part:
        """Sizes low..high - 1 at the fewest ranks, and at the most."""
        key = (low, high, low_most, high_most)
        if key not in parts:
            keep = (ranks == fewest) & (message >= sizes[0][low]) & (message <= sizes[0][high - 1])
            keep |= (ranks == most) & (message >= sizes[1][low_most]) & (message <= sizes[1][high_most - 1])
            one_shot = may_be_one_shot and bool(sizes[0][high - 1] <= ONE_SHOT_BYTES)
            parts[key] = _regime(rows.where(keep), gpu, one_shot=one_shot)
            if switch > 0.0 and sizes[0][low] >= SWITCH_BYTES:
                added = _regime(rows.where(keep), gpu, in_switch=switch)
                if added.error <= parts[key].error + _NO_WORSE:
                    parts[key] = added
        return parts[key]

    ways = _cheapest(sizes, lambda *ends: part(*ends).error + _REGIME_COST, at_most_as_far=may_be_one_shot)
    regimes = []
    for low, high, low_most, high_most in ways:
        regime = part(low, high, low_most, high_most).regime
        if high < len(sizes[0]):
            ends = [
                np.sqrt(bytes_[end - 1] * bytes_[end])
                for bytes_, end in zip(sizes, (high, high_most), strict=True)
            ]
            growth = np.log(ends[1] / ends[0]) / np.log(most / fewest) if most > fewest else 0.0
            largest = ends[0] / (fewest / FEWEST_RANKS) ** growth
            regime = replace(regime, bytes_max=float(largest), growth=float(growth))
        regimes.append(regime)
    return CollectiveKernel(regimes=tuple(regimes), fit=UNFITTED, name=rows.kernel)


def _cheapest(
    sizes: list[FloatArray], cost: Callable[[int, int, int, int], float], *, at_most_as_far: bool
) -> list[tuple[int, int, int, int]]:
    """The cut of both rows of sizes into the same number of ranges that has the least cost.

    at_most_as_far: whether a range ends at the most ranks no later than at the fewest, as one-shot ones do.
    """
    last = (len(sizes[0]), len(sizes[1]))
    best: dict[tuple[int, int], tuple[float, tuple[int, int]]] = {(0, 0): (0.0, (0, 0))}
    for low, low_most in itertools.product(range(last[0]), range(last[1])):
        if (low, low_most) not in best:
            continue
        before = best[low, low_most][0]
        for high in range(low + _LEAST_SIZES, last[0] + 1):
            for high_most in range(low_most + _LEAST_SIZES, last[1] + 1):
                if not _may_end(sizes, high, high_most, at_most_as_far=at_most_as_far):
                    continue
                total = before + cost(low, high, low_most, high_most)
                if at_most_as_far and sizes[0][high - 1] <= sizes[1][high_most - 1] < sizes[1][-1]:
                    total += _SAME_END_COST
                if (high, high_most) not in best or total < best[high, high_most][0]:
                    best[high, high_most] = (total, (low, low_most))
    ways, end = [], last
    while end != (0, 0):
        start = best[end][1]
        ways.append((start[0], end[0], start[1], end[1]))
        end = start
    return ways[::-1]


def _may_end(sizes: list[FloatArray], high: int, high_most: int, *, at_most_as_far: bool) -> bool:
    """Whether a range may end there: both or neither at their last size, and not far apart."""
    lasts = (high == len(sizes[0]), high_most == len(sizes[1]))
    if any(lasts):
        return all(lasts)
    left = (len(sizes[0]) - high, len(sizes[1]) - high_most)
    apart = float(np.log2(sizes[0][high - 1] / sizes[1][high_most - 1]))
    if at_most_as_far and apart < 0.0:
        return False
    return min(left) >= _LEAST_SIZES and abs(apart) <= _FARTHEST


def _regime(rows: Rows[Collective], gpu: Gpu, *, one_shot: bool = False, in_switch: float = 0.0) -> _Part:
    """Coefficients that are not negative and bring the squares of the relative errors to the least (C3)."""
    from scipy.optimize import nnls

    ranks = as_float(rows.operator.ranks)
    line_us = US_PER_S / gpu.link_bandwidth_bytes_per_s
    columns = np.stack(
        [
            np.ones_like(ranks),
            ranks - FEWEST_RANKS,
            rows.operator.size * line_us,
            sent_bytes(rows.operator, one_shot=one_shot, in_switch=in_switch) * line_us,
        ],
        axis=1,
    )
    identified: BoolArray = np.asarray([True, ranks.max() > ranks.min(), ranks.max() > ranks.min(), True])
    relative = columns / rows.time_us[:, None]
    values = np.zeros(len(identified))
    values[identified] = nnls(relative[:, identified], np.ones(len(ranks)))[0]
    start_us, rank_us, copy_passes, link_passes = values.tolist()
    regime = CollectiveRegime(
        start_us=start_us,
        rank_us=rank_us,
        copy_passes=copy_passes,
        link_passes=link_passes,
        one_shot=one_shot,
        in_switch=in_switch,
    )
    return _Part(regime, float(np.sum(np.abs(relative @ values - 1.0))))
