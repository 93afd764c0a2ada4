"""The largest batch that fits and the best throughput, with speculation and without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from medusa_sim.arrays import IntArray, every_to
from medusa_sim.grid.cell import Cell
from medusa_sim.grid.cells import Cells, price
from medusa_sim.grid.configurations import PLAIN
from medusa_sim.grid.surface import in_groups
from medusa_sim.plan.coarse_search import EVERY_COARSE_TO, CoarseSearch

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
    coarse: Sequence[CoarseSearch], searched: Cells, max_latency_us: float | None = None
) -> tuple[Capacity, ...]:
    """For each length of `searched` the best operating points among all batches that fit.

    coarse: the coarse search of each length, with the batches of `batches_tried` that were not searched.
    Batches around the best, and those that were searched, are looked at with every count. max_latency_us:
    longest time per output token of one user.
    """
    surface = searched.surface
    plain, speculating = (
        _best_points(coarse, searched, max_latency_us, speculate=speculate) for speculate in (False, True)
    )
    return tuple(
        Capacity(
            seq_len=int(surface.seq_len[s]),
            max_batch_without=int(surface.max_batch[s, PLAIN]),
            max_batch_with=0 if best is None else best.max_batch,
            without_speculation=without,
            with_speculation=best,
        )
        for s, (without, best) in enumerate(zip(plain, speculating, strict=True))
    )


def _best_points(
    coarse: Sequence[CoarseSearch], searched: Cells, max_latency_us: float | None, *, speculate: bool
) -> list[Cell | None]:
    """The best operating point of each length: of the batches tried, then of every batch around that one."""
    surface, best = searched.surface, partial(best_operating_point, speculate=speculate)
    points, near = [], []
    for s, search in enumerate(coarse):
        largest = int(surface.max_batch[s, PLAIN])
        tried = best(search.cells, search.s, max_latency_us, among=batches_tried(largest))
        points.append(most_tokens_per_s(tried, best(searched, s, max_latency_us)))
        near.append(_batches_near(points[s], largest))
    options = searched.configurations.options if speculate else ()
    for group in in_groups(len(points)):
        batches = np.unique(np.concatenate(near[group]))
        fine = price(searched.scenario, batches, surface.seq_len[group], options)
        for at, s in enumerate(range(len(points))[group]):
            if near[s].size:
                around = best(fine, at, max_latency_us, among=near[s])
                points[s] = most_tokens_per_s(points[s], around)
    return points


def _batches_near(point: Cell | None, largest: int) -> IntArray:
    """Every batch around that of a point, up to the largest; none without a point."""
    if point is None:
        return np.empty(0, dtype=np.int64)
    return np.arange(max(1, point.batch - _NEAR), min(largest, point.batch + _NEAR) + 1)


def most_tokens_per_s(*points: Cell | None) -> Cell | None:
    """The point of the largest throughput; None where none is known."""
    given = [point for point in points if point is not None]
    return max(given, key=lambda point: point.tokens_per_s, default=None)


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
    among: IntArray | None = None,
) -> Cell | None:
    """The largest throughput at one length of the cells that fit and keep the latency; None if none does.

    among: batches that count; None: all.
    """
    counts, by_count = slice(1, None) if speculate else slice(0, 1), every.by_count
    allowed = by_count.fits[:, s, counts]
    if among is not None:
        allowed = allowed & np.isin(every.surface.batch, among)[:, None]
    if max_latency_us is not None:
        allowed = allowed & (by_count.served.tpot_us[:, s, counts] <= max_latency_us)
    if not allowed.any():
        return None
    rate = by_count.tokens_per_s[:, s, counts]
    b, k = np.unravel_index(int(np.argmax(np.where(allowed, rate, -np.inf))), rate.shape)
    return Cell(cells=by_count, b=int(b), s=s, k=int(k) + int(speculate))
