"""A row of a schedule: batches of one length that share a configuration, and what is known about it there.

A row is a cell, the one at its fullest batch: every quantity of it is read by name. Here stands what depends
on all of its batches, on what it drafts and on what it could. `others` compares it with other counts,
`sensitivity` has it under another acceptance.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from medusa_sim.acceptance.tree import Path
from medusa_sim.arrays import FloatArray
from medusa_sim.grid.cells import Cells
from medusa_sim.grid.configurations import PLAIN
from medusa_sim.plan.other_counts import OtherCounts
from medusa_sim.plan.quantities import OF_OTHERS, OF_SENSITIVITY
from medusa_sim.plan.row_cells import RowCells
from medusa_sim.plan.sensitivity import Sensitivity
from medusa_sim.plan.verdict import Verdict


@dataclass(frozen=True, kw_only=True, eq=False)
class ScheduleRow(RowCells):
    """A configuration that runs batches `batch_min..batch_max` at one length.

    Every figure is at `batch_max`, the row's fullest batch, unless it says otherwise. Where not every
    batch was searched, the sizes between two rows belong to the later one. A `plain_` figure is without
    speculation, a `speculative_` one with what the row drafts, of a plain row with the best that it
    could. Speedups, rates and times per token are the step's, and with the scenario's traffic those of its
    server.
    """

    @cached_property
    def others(self) -> OtherCounts:
        """It beside other counts at its fullest batch."""
        return OtherCounts(self)

    @cached_property
    def sensitivity(self) -> Sensitivity:
        """It with another acceptance or another step time."""
        return Sensitivity(self)

    def quantities(self, names: Iterable[str]) -> dict[str, Any]:
        """Some quantities by name, those of `others` and `sensitivity` among them."""
        homes = dict.fromkeys(OF_OTHERS, self.others) | dict.fromkeys(OF_SENSITIVITY, self.sensitivity)
        return {name: getattr(homes.get(name, self), name) for name in names}

    @property
    def batch_min(self) -> int:
        """The smallest batch: behind the row before it, or the first that was searched."""
        batch, first = self.surface.batch, self.batches.first
        return int(batch[first - 1]) + 1 if first and not self.batches.begins_at_first else int(batch[first])

    @cached_property
    def _speedup_by_batch(self) -> FloatArray:
        """(batches,) speedup of the configuration at each batch of the row."""
        return np.asarray(self.cells.speedup[self.places, self.s, 0])

    @property
    def speedup_lowest(self) -> float:
        """The lowest speedup of the row's batches."""
        return float(self._speedup_by_batch.min())

    @property
    def speedup_highest(self) -> float:
        """The highest speedup of the row's batches."""
        return float(self._speedup_by_batch.max())

    @property
    def speedup_at_batch_min(self) -> float:
        """Speedup at the first batch of the row that was searched."""
        return float(self._speedup_by_batch[0])

    @property
    def batch_lowest(self) -> int:
        """The batch at which the speedup is lowest."""
        return int(self.searched[np.argmin(self._speedup_by_batch)])

    def _band_by_batch(self, cells: Cells) -> list[FloatArray]:
        """(low, high) ends of the 80 % interval of the speedup, (batches,) each, of cells (B, S, 1)."""
        return [np.broadcast_to(end, cells.shape)[self.places, self.s, 0] for end in cells.band]

    @property
    def speedup_low(self) -> float:
        """The lowest end of the 80 % intervals over the row's batches."""
        return float(self._band_by_batch(self.cells)[0].min())

    @property
    def speedup_high(self) -> float:
        """The highest end of the 80 % intervals over the row's batches."""
        return float(self._band_by_batch(self.cells)[1].max())

    # What is drafted.

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

    @property
    def max_batch_without(self) -> int:
        """Largest batch that fits without speculation."""
        return int(self.surface.max_batch[self.s, PLAIN])

    @property
    def max_batch_with(self) -> int:
        """Largest batch that fits with the row's configuration."""
        return int(self.surface.max_batch[self.s, self.configuration])

    @property
    def meets_latency(self) -> bool | None:
        """Whether a token takes no longer than was asked; None where no limit was given."""
        limit_us = self.question.max_latency_us
        return None if limit_us is None else bool(self.tpot_us <= limit_us)

    # What speculates: the row's configuration, or of a plain row the best that could.

    @property
    def speculative_candidates(self) -> int:
        """Candidates of what is drafted, or of the best that could be."""
        return int(self.every.configurations.candidates[self.shown])

    @property
    def speculative_speedup(self) -> float:
        """Speedup of what is drafted, or of the best that could be, at the fullest batch."""
        return float(self.speedups[self.shown])

    @cached_property
    def _speculative_band(self) -> list[FloatArray]:
        return self._band_by_batch(self.shown_cells)

    @property
    def speculative_speedup_low(self) -> float:
        """Lower end of the 80 % interval of what is drafted, or of the best that could be."""
        return float(self._speculative_band[0][-1])

    @property
    def speculative_speedup_high(self) -> float:
        """Upper end of the 80 % interval of what is drafted, or of the best that could be."""
        return float(self._speculative_band[1][-1])

    @property
    def verdict(self) -> Verdict:
        """`pays` where all 80 % intervals lie above 1, `loses` where none reaches above, else `uncertain`."""
        low, high = self._speculative_band
        if bool((low > 1.0).all()):
            return "pays"
        return "loses" if bool((high <= 1.0).all()) else "uncertain"

    @property
    def uncertain(self) -> tuple[int, int] | None:
        """First and last batch whose 80 % interval holds a gain and a loss; None where none does."""
        low, high = self._speculative_band
        batches = self.searched[(low <= 1.0) & (high > 1.0)]
        return (int(batches[0]), int(batches[-1])) if batches.size else None
