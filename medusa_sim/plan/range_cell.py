"""A cell that runs a range of batches at one length: what it runs and drafts there, and what that gains.

It is the cell at the fullest batch, of which every quantity of cells is read by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from medusa_sim.acceptance.tree import Path
from medusa_sim.arrays import Band, FloatArray, IntArray, Span
from medusa_sim.grid.cell import Cell
from medusa_sim.grid.cells import Cells
from medusa_sim.grid.configurations import PLAIN
from medusa_sim.grid.surface import Surface
from medusa_sim.plan.batch_ranges import BatchRange
from medusa_sim.plan.verdict import Verdict, verdict_of
from medusa_sim.scenario.question import Question


@dataclass(frozen=True, kw_only=True, eq=False)
class RangeCell(Cell):
    """A configuration that runs batches `batch_min..batch_max` at one length.

    Every figure is at `batch_max`, its fullest batch, unless it says otherwise. Where not every batch was
    searched, the sizes between two ranges belong to the later one. A `plain_` figure is without speculation,
    a `speculative_` one with what it drafts, or would draft if it is plain.
    Speedups, rates and times per token are the step's, and with the scenario's traffic those of its server.

    cells: configurations that are the best of their count somewhere, its own at `k`; every: all of them.
    batch_range: among the batches that were searched.
    """

    every: Cells
    batch_range: BatchRange
    question: Question

    @property
    def surface(self) -> Surface:
        """Surface that the search has priced."""
        return self.every.surface

    # Its batches.

    @property
    def batches(self) -> IntArray:
        """Its batches that were searched, one after another."""
        return self.surface.batch[self.batch_range.slice]

    @property
    def batch_min(self) -> int:
        """The smallest batch: the one after the range before it, or the first that was searched."""
        batch, first = self.surface.batch, self.batch_range.first
        is_after_another = first > 0 and not self.batch_range.begins_at_first
        return int(batch[first - 1]) + 1 if is_after_another else int(batch[first])

    @property
    def batch_max(self) -> int:
        """The largest batch, at which its figures are."""
        return self.batch

    @property
    def max_batch_without(self) -> int:
        """Largest batch that fits without speculation."""
        return int(self.surface.max_batch[self.s, PLAIN])

    @property
    def max_batch_with(self) -> int:
        """Largest batch that fits with its configuration."""
        return int(self.surface.max_batch[self.s, self.configuration])

    @property
    def meets_latency(self) -> bool | None:
        """Whether a token takes no longer than was asked; None where no limit was given."""
        limit_us = self.question.max_latency_us
        return None if limit_us is None else bool(self.tpot_us <= limit_us)

    # What it runs.

    @property
    def paths(self) -> tuple[Path, ...] | None:
        """Paths of the tree, root implied; None where the acceptance profile knows no shapes."""
        return () if self.option is None else self.option.paths(self.candidates)

    @property
    def drafts(self) -> int:
        """Draft length (Medusa: heads to run); 0 of plain decoding."""
        return 0 if self.option is None else self.option.drafts(self.candidates)

    @property
    def width(self) -> int:
        """Children that a drafter keeps on each level of its tree; 0: all of them."""
        return 0 if self.option is None else self.option.width

    @property
    def chain(self) -> bool:
        """Whether its tree is a chain."""
        return self.option is not None and self.option.is_chain(self.candidates)

    # What that gains.

    @cached_property
    def speedup_by_batch(self) -> FloatArray:
        """Speedup at each of its batches."""
        return np.asarray(self.cells.speedup[self.batch_range.slice, self.s, self.k])

    @cached_property
    def band_by_batch(self) -> Band:
        """80 % interval of the speedup at each of its batches."""
        return self._band_of(self)

    def _band_of(self, cell: Cell) -> Band:
        """The same with the drafts of a cell."""
        ends = map(cell.cells.spread, cell.cells.speedup_band)
        return Band(*(end[self.batch_range.slice, self.s, cell.k] for end in ends))

    @property
    def speedup_lowest(self) -> float:
        """The lowest speedup of its batches."""
        return float(self.speedup_by_batch.min())

    @property
    def speedup_highest(self) -> float:
        """The highest speedup of its batches."""
        return float(self.speedup_by_batch.max())

    @property
    def speedup_at_batch_min(self) -> float:
        """Speedup at the first batch of its that was searched."""
        return float(self.speedup_by_batch[0])

    @property
    def batch_lowest(self) -> int:
        """The batch at which the speedup is lowest."""
        return int(self.batches[np.argmin(self.speedup_by_batch)])

    @property
    def interval_low(self) -> float:
        """The lowest end of the speedup's 80 % intervals over its batches."""
        return float(self.band_by_batch.low.min())

    @property
    def interval_high(self) -> float:
        """The highest end of the speedup's 80 % intervals over its batches."""
        return float(self.band_by_batch.high.max())

    # What speculates: its configuration, or where that is plain the best that could.

    @cached_property
    def speculative(self) -> Cell:
        """Itself; if it is plain, what gains most of all that draft, at its fullest batch."""
        if self.configuration != PLAIN:
            return self
        best = 1 + int(np.argmax(self.speedups[1:]))
        return Cell(cells=self.every.with_index(np.array([[[best]]])), b=self.b, s=self.s)

    @property
    def speculative_candidates(self) -> int:
        """Candidates of what is drafted, or of the best that could be."""
        return self.speculative.candidates

    @property
    def speculative_speedup(self) -> float:
        """Speedup of what is drafted, or of the best that could be, at the fullest batch."""
        return float(self.speedups[self.speculative.configuration])

    @cached_property
    def _speculative_band(self) -> Band:
        return self._band_of(self.speculative)

    @property
    def speculative_speedup_low(self) -> float:
        """Lower end of the 80 % interval of what is drafted, or of the best that could be."""
        return float(self._speculative_band.low[-1])

    @property
    def speculative_speedup_high(self) -> float:
        """Upper end of the 80 % interval of what is drafted, or of the best that could be."""
        return float(self._speculative_band.high[-1])

    @property
    def verdict(self) -> Verdict:
        """What is certain at all of its batches."""
        return verdict_of(*self._speculative_band)

    @property
    def span(self) -> Span:
        """Its batches, those that were not searched with them."""
        return Span(self.batch_min, self.batch_max)

    @property
    def uncertain(self) -> Span | None:
        """First and last batch whose 80 % interval holds a gain and a loss; None where none does."""
        low, high = self._speculative_band
        batches = self.batches[(low <= 1.0) & (high > 1.0)]
        return Span(int(batches[0]), int(batches[-1])) if batches.size else None

    # Every configuration at its fullest batch.

    @cached_property
    def speedups(self) -> FloatArray:
        """(configurations,) speedup at its fullest batch."""
        return self.every.speedup_at(self.b, self.s)

    @cached_property
    def steps_us(self) -> FloatArray:
        """(configurations,) step time at its fullest batch, microseconds."""
        return np.asarray(self.every.steps.time_us[self.b, self.s])
