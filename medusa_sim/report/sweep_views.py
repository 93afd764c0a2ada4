"""What the charts of counts show: one context length, every count from 1, some batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from medusa_sim.arrays import BoolArray, FloatArray, IntArray, among
from medusa_sim.plan.best_by_count import ByCount
from medusa_sim.plan.insights import cliffs
from medusa_sim.plan.scenario import Scenario
from medusa_sim.plan.surface import Surface, price
from medusa_sim.report.figures.style import BESIDE
from medusa_sim.step.workload import Grid

MOST_BATCHES = 64


@dataclass(frozen=True, kw_only=True, eq=False)
class LengthView:
    """Steps and speedups at one length: arrays (batch, count) for every count described, from 1 up.

    surface: what they are read from, at rows `lines` and place `length`. grid_counts: the counts that were
    asked for. best: index into `counts` of the count that is marked, per batch; marked: what that is.
    """

    surface: Surface
    lines: IntArray
    length: int
    seq_len: int
    batch: IntArray
    grid_counts: IntArray
    best: IntArray
    marked: str

    @property
    def found(self) -> ByCount:
        """The best drafting of each count."""
        return self.surface.by_count

    def _at(self, values: FloatArray) -> FloatArray:
        return np.asarray(np.broadcast_to(values, self.found.fits.shape)[self.lines, self.length])

    @property
    def counts(self) -> IntArray:
        """Every count."""
        return self.found.counts

    @cached_property
    def speedup(self) -> FloatArray:
        """Over plain decoding: the step's, with traffic the server's."""
        return self._at(self.surface.gain_by_count)

    @property
    def speedup_low(self) -> FloatArray:
        """Lower end of the 80 % interval."""
        return self._at(self.surface.band_by_count[0])

    @property
    def speedup_high(self) -> FloatArray:
        """Upper end."""
        return self._at(self.surface.band_by_count[1])

    @property
    def tokens_per_step(self) -> FloatArray:
        """Of each count."""
        return self._at(self.found.tokens_per_step)

    @property
    def fits(self) -> BoolArray:
        """Whether it fits in memory."""
        return np.asarray(self.found.fits[self.lines, self.length])

    @cached_property
    def verify_us(self) -> FloatArray:
        """The whole step."""
        return self._at(self.found.step_us)

    @cached_property
    def decode_us(self) -> FloatArray:
        """(batch,) the plain step."""
        return np.asarray(self.found.decode_us[self.lines, self.length, 0])

    @cached_property
    def parts_us(self) -> dict[str, FloatArray]:
        """Slices of the step, and what is beside its kernels."""
        parts: dict[str, FloatArray] = {name: self._at(part) for name, part in self.found.parts_us.items()}
        return parts | {BESIDE: self.verify_us - sum(parts.values(), start=np.zeros(()))}

    @property
    def decode_parts_us(self) -> dict[str, FloatArray]:
        """(batch,) slices of the plain step."""
        return {name: part[:, 0] for name, part in self.parts_us.items()}

    @cached_property
    def cliffs(self) -> tuple[IntArray, ...]:
        """Per batch, counts after which the next one costs clearly more."""
        return tuple(cliffs(row) for row in self.verify_us)


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
    by_count, s = surface.by_count, int(np.searchsorted(surface.seq_len, seq_len))
    lines = np.flatnonzero(among(surface.batch, list(recommended or surface.batch)))
    asked_for = among(by_count.counts, asked)
    if recommended is None:
        gain = np.broadcast_to(surface.gain_by_count, by_count.fits.shape)[:, s]
        best = np.argmax(np.where(asked_for, gain, -np.inf), axis=1)
    else:
        best = np.searchsorted(by_count.counts, [recommended[int(size)] for size in surface.batch[lines]])
    return LengthView(
        surface=surface,
        lines=lines,
        length=s,
        seq_len=seq_len,
        batch=surface.batch[lines],
        grid_counts=by_count.counts[asked_for],
        best=best,
        marked="the best count of the grid" if recommended is None else "what is recommended",
    )


def evenly(values: IntArray, most: int) -> IntArray:
    """At most `most` of the values, the first and the last among them."""
    if values.size <= most:
        return values
    return values[np.unique(np.linspace(0, values.size - 1, most).round().astype(np.int64))]
