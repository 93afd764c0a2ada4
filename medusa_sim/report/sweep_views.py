"""What the charts of counts show: one context length, every count from 1, some batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from medusa_sim.arrays import BoolArray, FloatArray, IntArray, among
from medusa_sim.plan.scenario import Scenario
from medusa_sim.plan.surface import Surface, price
from medusa_sim.report.figures.style import BESIDE
from medusa_sim.step.workload import Grid

MOST_BATCHES = 64


@dataclass(frozen=True, kw_only=True, eq=False)
class LengthView:
    """Steps and speedups at one length: arrays (batch, count) for every count described, from 1 up.

    grid_counts: the counts that were asked for. best: index into `counts` of the count that is marked, per
    batch; marked: what that is. speedup: over plain decoding, of the step, with traffic the server's; low,
    high: its 80 % interval. fits: in memory. verify_us: the whole step; parts_us: its slices, and what is
    beside its kernels; decode_us: (batch,) the plain step.
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
    verify_us: FloatArray
    decode_us: FloatArray
    parts_us: dict[str, FloatArray]


def length_view(
    scenario: Scenario, grid: Grid, seq_len: int, recommended: Mapping[int, int] | None = None
) -> LengthView:
    """The view of one length; of more than MOST_BATCHES batches an even choice is shown.

    recommended: counts of the grid by batch, marked instead of the best of the grid.
    """
    batch = evenly(grid.batch, MOST_BATCHES)
    surface = price(scenario, batch, [seq_len], scenario.options(max(int(grid.candidates.max()), 2)))
    return view_of(surface, seq_len, grid.candidates, recommended)


def view_of(
    surface: Surface,
    seq_len: int,
    asked: Sequence[int] | IntArray,
    recommended: Mapping[int, int] | None = None,
) -> LengthView:
    """One length of a surface. asked: counts of the map; those that the surface lacks are left out.

    recommended: batch -> count that is marked, of the batches shown; None: all of them, the best asked for.
    """
    found, s = surface.by_count, int(np.searchsorted(surface.seq_len, seq_len))
    lines = np.flatnonzero(among(surface.batch, list(recommended or surface.batch)))
    asked_for = among(found.counts, asked)

    def at(values: FloatArray) -> FloatArray:
        return np.asarray(np.broadcast_to(values, found.fits.shape)[lines, s])

    speedup, verify_us = at(surface.gain_by_count), at(found.step_us)
    if recommended is None:
        best = np.argmax(np.where(asked_for, speedup, -np.inf), axis=1)
    else:
        best = np.searchsorted(found.counts, [recommended[int(size)] for size in surface.batch[lines]])
    parts_us: dict[str, FloatArray] = {name: at(part) for name, part in found.parts_us.items()}
    return LengthView(
        seq_len=seq_len,
        batch=surface.batch[lines],
        counts=found.counts,
        grid_counts=found.counts[asked_for],
        best=best,
        marked="the best count of the grid" if recommended is None else "what is recommended",
        speedup=speedup,
        speedup_low=at(surface.band_by_count[0]),
        speedup_high=at(surface.band_by_count[1]),
        tokens_per_step=at(found.tokens_per_step),
        fits=np.asarray(found.fits[lines, s]),
        verify_us=verify_us,
        decode_us=np.asarray(found.decode_us[lines, s, 0]),
        parts_us=parts_us | {BESIDE: verify_us - sum(parts_us.values(), start=np.zeros(()))},
    )


def evenly(values: IntArray, most: int) -> IntArray:
    """At most `most` of the values, the first and the last among them."""
    if values.size <= most:
        return values
    return values[np.unique(np.linspace(0, values.size - 1, most).round().astype(np.int64))]
