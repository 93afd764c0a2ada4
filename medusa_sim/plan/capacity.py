"""The largest batch that fits and the best throughput, with speculation and without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from medusa_sim.arrays import IntArray, every_to
from medusa_sim.grid.cell import Cell, best_cell
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
    """For each length of `searched` the largest throughput among all batches that fit.

    coarse: the coarse search of each length, with the batches of `batches_tried` that were not searched.
    Batches around the best, and those that were searched, are looked at with every count. max_latency_us:
    longest time per output token of one user.
    """
    surface = searched.surface
    plain, drafting = (
        _best_of_lengths(coarse, searched, max_latency_us, drafts=drafts) for drafts in (False, True)
    )
    return tuple(
        Capacity(
            seq_len=int(surface.seq_len[s]),
            max_batch_without=int(surface.max_batch[s, PLAIN]),
            max_batch_with=0 if best is None else best.max_batch,
            without_speculation=without,
            with_speculation=best,
        )
        for s, (without, best) in enumerate(zip(plain, drafting, strict=True))
    )


def _best_of_lengths(
    coarse: Sequence[CoarseSearch], searched: Cells, max_latency_us: float | None, *, drafts: bool
) -> list[Cell | None]:
    """The best cell of each length: of the batches tried and searched, then of every batch around that one.

    drafts: of the cells that draft, or of those that do not.
    """

    def best(cells: Cells, s: int, batches: IntArray) -> Cell | None:
        by_count = cells.by_count
        asked = np.isin(by_count.batch, batches) & ((by_count.candidates > 1) == drafts)
        allowed = asked & by_count.fits_in_time(max_latency_us)
        return best_cell(by_count, allowed, by_count.tokens_per_s, s)

    surface = searched.surface
    options = searched.configurations.options if drafts else ()
    largest = surface.max_batch[:, PLAIN].tolist()
    found: list[Cell | None] = []
    for group in in_groups(len(coarse)):
        tried = [
            _most_tokens_per_s(
                best(search.cells, search.s, batches_tried(largest[s])), best(searched, s, surface.batch)
            )
            for s, search in enumerate(coarse[group], group.start)
        ]
        near = [_batches_near(cell, most) for cell, most in zip(tried, largest[group], strict=True)]
        fine = price(searched.scenario, np.unique(np.concatenate(near)), surface.seq_len[group], options)
        found += [
            _most_tokens_per_s(cell, best(fine, place, batches)) if batches.size else cell
            for place, (cell, batches) in enumerate(zip(tried, near, strict=True))
        ]
    return found


def _batches_near(cell: Cell | None, largest: int) -> IntArray:
    """Every batch around that of a cell, up to the largest; none without a cell."""
    if cell is None:
        return np.empty(0, dtype=np.int64)
    return np.arange(max(1, cell.batch - _NEAR), min(largest, cell.batch + _NEAR) + 1)


def _most_tokens_per_s(*cells: Cell | None) -> Cell | None:
    """The cell of the largest throughput; None where none is known."""
    known = [cell for cell in cells if cell is not None]
    return max(known, key=lambda cell: cell.tokens_per_s, default=None)
