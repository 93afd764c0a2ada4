"""The largest batch that fits and the best throughput, with speculation and without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from medusa_sim.arrays import BoolArray, IntArray, every_to
from medusa_sim.grid.cell import Cell
from medusa_sim.grid.cells import Cells, price
from medusa_sim.grid.configurations import PLAIN
from medusa_sim.grid.surface import in_groups
from medusa_sim.plan.coarse_search import EVERY_COARSE_TO, CoarseSearch
from medusa_sim.scenario.draft_options import DraftOption
from medusa_sim.scenario.scenario import Scenario

_CAPACITY_RATIO = 1.05
"""Beyond EVERY_COARSE_TO every 5 % is tried as long as it fits, and then each batch around the best."""
_NEAR = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The best throughput of one length with and without speculation, each at its own best batch.

    max_batch_with: of the configuration of `with_speculation`. gain: ratio of the two throughputs; None where
    not even one sequence fits.
    """

    seq_len: int
    max_batch_without: int
    max_batch_with: int
    without_speculation: Cell | None
    with_speculation: Cell | None

    @property
    def gain(self) -> float | None:
        """Throughput with speculation over throughput without."""
        if self.without_speculation is None or self.with_speculation is None:
            return None
        return float(self.with_speculation.tokens_per_s / self.without_speculation.tokens_per_s)


def batches_tried(largest: int) -> IntArray:
    """Batches at which throughput is looked at first, up to the largest that fits without speculation."""
    return every_to(EVERY_COARSE_TO, 1, largest, _CAPACITY_RATIO)


def capacities(
    scenario: Scenario,
    options: Sequence[DraftOption],
    coarse: Sequence[CoarseSearch],
    searched: Cells,
    max_latency_us: float | None = None,
) -> tuple[Capacity, ...]:
    """For each length of `searched` the best operating points among all batches that fit.

    coarse: the coarse search of each length, with the batches of `batches_tried` that were not searched.
    Batches around the best, and those that were searched, are looked at with every count. max_latency_us:
    longest time per output token of one user.
    """
    surface = searched.surface

    def best_points(group: slice, *, speculate: bool) -> list[Cell | None]:
        best = partial(best_operating_point, max_latency_us=max_latency_us, speculate=speculate)
        found, near = [], []
        for s in range(surface.seq_len.size)[group]:
            search, largest = coarse[s], int(surface.max_batch[s, PLAIN])
            tried = np.isin(search.cells.surface.batch, batches_tried(largest))
            points = best(search.cells, search.s, batches_allowed=tried), best(searched, s)
            found.append(most_tokens_per_s(*points))
            near.append(_batches_near(found[-1], largest))
        every = np.unique(np.concatenate(near))
        if not every.size:
            return found
        fine = price(scenario, every, surface.seq_len[group], options if speculate else ())
        allowed = [np.isin(fine.surface.batch, batches) for batches in near]
        return [
            most_tokens_per_s(point, point and best(fine, s, batches_allowed=allowed[s]))
            for s, point in enumerate(found)
        ]

    pairs = [
        pair
        for group in in_groups(surface.seq_len.size)
        for pair in zip(best_points(group, speculate=False), best_points(group, speculate=True), strict=True)
    ]
    return tuple(
        Capacity(
            seq_len=int(surface.seq_len[s]),
            max_batch_without=int(surface.max_batch[s, PLAIN]),
            max_batch_with=0 if best is None else best.max_batch,
            without_speculation=without,
            with_speculation=best,
        )
        for s, (without, best) in enumerate(pairs)
    )


def _batches_near(point: Cell | None, largest: int) -> IntArray:
    """Every batch around that of a point, up to the largest; none without a point."""
    if point is None:
        return np.empty(0, dtype=np.int64)
    return np.arange(max(1, point.batch - _NEAR), min(largest, point.batch + _NEAR) + 1)


def most_tokens_per_s(*points: Cell | None) -> Cell | None:
    """The point of the largest throughput; None where none is known."""
    known = [point for point in points if point is not None]
    return max(known, key=lambda point: point.tokens_per_s, default=None)


def best_of_lengths(cells: Cells, max_latency_us: float | None, *, speculate: bool) -> Cell | None:
    """The largest throughput of the cells that fit and keep the latency, at any length; None if none does."""
    return most_tokens_per_s(
        *(
            best_operating_point(cells, s, max_latency_us, speculate=speculate)
            for s in range(cells.surface.seq_len.size)
        )
    )


def best_operating_point(
    every: Cells,
    s: int,
    max_latency_us: float | None,
    *,
    speculate: bool,
    batches_allowed: BoolArray | bool = True,
) -> Cell | None:
    """The largest throughput at one length of the cells that fit and keep the latency; None if none does.

    batches_allowed: (batches,) those that count.
    """
    counts, by_count = slice(1, None) if speculate else slice(0, 1), every.by_count
    allowed = by_count.fits[:, s, counts] & np.reshape(batches_allowed, (-1, 1))
    if max_latency_us is not None:
        allowed = allowed & (by_count.tpot_us[:, s, counts] <= max_latency_us)
    if not allowed.any():
        return None
    rate = by_count.tokens_per_s[:, s, counts]
    b, k = np.unravel_index(int(np.argmax(np.where(allowed, rate, -np.inf))), rate.shape)
    return Cell(cells=by_count, b=int(b), s=s, k=int(k) + int(speculate))
