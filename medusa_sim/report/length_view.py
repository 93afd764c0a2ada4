"""One length, every count and some batches: what charts of a sweep and of a recommendation draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from medusa_sim.arrays import BoolArray, FloatArray, IntArray, evenly
from medusa_sim.grid.axes import Grid
from medusa_sim.grid.cells import Cells, price
from medusa_sim.report.palette import BESIDE
from medusa_sim.scenario.defaults import CANDIDATES_MAX
from medusa_sim.scenario.scenario import Scenario

MOST_BATCHES = 64


T = TypeVar("T", bound=np.generic)


@dataclass(frozen=True, kw_only=True, eq=False)
class LengthView:
    """Steps and speedups at one length: arrays (batch, count) for every count described, from 1 up.

    grid_counts: the counts that were asked for. best: index into `counts` of the count that is marked, per
    batch; marked: what that is. speedup: over plain decoding, of the step, with traffic the server's; low,
    high: its 80 % interval. fits: in memory. step_us: the whole step; parts_us: its slices, and what is
    besides its kernels; decode_us: (batch,) the plain step.
    """

    seq_len: int
    batch: IntArray
    counts: IntArray
    grid_counts: IntArray
    best: IntArray
    marked: str
    speedup: FloatArray
    speedup_low: FloatArray
    speedup_high: FloatArray
    tokens_per_step: FloatArray
    fits: BoolArray
    step_us: FloatArray
    decode_us: FloatArray
    parts_us: dict[str, FloatArray]


def length_view(
    scenario: Scenario,
    grid: Grid,
    seq_len: int,
    recommended: Mapping[int, int] | None = None,
    *,
    among: IntArray | None = None,
) -> LengthView:
    """The view of one length; of more than MOST_BATCHES batches an even choice is shown.

    recommended, among: what is marked, as in `view_of`.
    """
    batch = evenly(grid.batch, MOST_BATCHES)
    options = scenario.options(max(int(grid.candidates.max()), CANDIDATES_MAX))
    by_count = price(scenario, batch, [seq_len], options).by_count
    return view_of(by_count, seq_len, grid.candidates, recommended, among=among)


def view_of(
    by_count: Cells,
    seq_len: int,
    asked: Sequence[int] | IntArray,
    recommended: Mapping[int, int] | None = None,
    *,
    among: IntArray | None = None,
) -> LengthView:
    """One length of every count. asked: counts of the map; those that nothing drafts are left out.

    recommended: batch -> count that is marked, of the batches shown; None: all of them, the best that fits of
    the counts `among` (None: of all), as in the sweep's table and in a recommendation for that batch. What is
    marked is on the map as well.
    """
    surface, counts = by_count.surface, by_count.configurations.counts
    s = int(np.searchsorted(surface.seq_len, seq_len))
    lines = np.flatnonzero(np.isin(surface.batch, list(recommended or surface.batch)))
    if recommended is None:
        worth = None if among is None else np.where(np.isin(counts, among), by_count.speedup, -np.inf)
        best = by_count.best_k(worth)[lines, s]
    else:
        best = np.searchsorted(counts, [recommended[int(size)] for size in surface.batch[lines]])
    asked_for = np.isin(counts, asked)
    asked_for[best] = True
    # up to the largest that was asked for or is marked
    width = counts.size if recommended is not None else 1 + int(np.flatnonzero(asked_for)[-1])

    def at(values: npt.NDArray[T]) -> npt.NDArray[T]:
        return np.asarray(by_count.spread(values)[lines, s, :width])

    speedup, step_us = at(by_count.speedup), at(by_count.steps.time_us)
    parts_us: dict[str, FloatArray] = {name: at(part) for name, part in by_count.steps.parts_us.items()}
    return LengthView(
        seq_len=seq_len,
        batch=surface.batch[lines],
        counts=counts[:width],
        grid_counts=counts[asked_for],
        best=best,
        marked="the best count" if recommended is None else "what is recommended",
        speedup=speedup,
        speedup_low=at(by_count.speedup_band.low),
        speedup_high=at(by_count.speedup_band.high),
        tokens_per_step=at(by_count.tokens_per_step),
        fits=at(by_count.fits),
        step_us=step_us,
        decode_us=at(by_count.steps.decode_us)[:, 0],
        parts_us=parts_us | {BESIDE: step_us - sum(parts_us.values(), start=np.zeros(()))},
    )
