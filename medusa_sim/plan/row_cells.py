"""The cells of a row of a schedule: what runs there beside everything that was searched."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from medusa_sim.arrays import FloatArray, IntArray
from medusa_sim.grid.cell import Cell
from medusa_sim.grid.cells import Cells
from medusa_sim.grid.configurations import PLAIN
from medusa_sim.grid.surface import Surface
from medusa_sim.plan.batch_ranges import BatchRange
from medusa_sim.scenario.draft_options import DraftOption
from medusa_sim.scenario.question import Question


@dataclass(frozen=True, kw_only=True, eq=False)
class RowCells(Cell):
    """The cell at the fullest batch of a row, with what was searched.

    cells: (B, S, 1) what the schedule runs where; every: (B, S, J) all configurations. batches: the row's
    places among those searched.
    """

    every: Cells
    batches: BatchRange
    question: Question

    @property
    def surface(self) -> Surface:
        """What was priced."""
        return self.every.surface

    @property
    def configuration(self) -> int:
        """The configuration that runs."""
        return self.batches.configuration

    @property
    def option(self) -> DraftOption | None:
        """The way in which it drafts; None for plain decoding."""
        return self.every.configurations.option_of(self.configuration)

    @property
    def places(self) -> slice:
        """Places of the row's batches."""
        return slice(self.batches.first, self.batches.last + 1)

    @property
    def searched(self) -> IntArray:
        """(batches,) batches of the row that were searched."""
        return self.surface.batch[self.places]

    @cached_property
    def speedups(self) -> FloatArray:
        """(J,) of every configuration at the fullest batch."""
        return self.every.speedup_at(self.b, self.s)

    @cached_property
    def steps_us(self) -> FloatArray:
        """(J,) step of every configuration at the fullest batch."""
        return np.asarray(self.every.step_us[self.b, self.s])

    @property
    def tokens(self) -> FloatArray:
        """(J,) tokens per step."""
        return self.every.configurations.tokens_per_step

    @property
    def batch_max(self) -> int:
        """The largest batch, at which the row's figures are."""
        return int(self.surface.batch[self.b])

    @property
    def _best_drafting(self) -> int:
        """The configuration that gains most of those that draft."""
        return 1 + int(np.argmax(self.speedups[1:]))

    @cached_property
    def shown(self) -> int:
        """The row's configuration, or of a plain row the best that drafts."""
        return self._best_drafting if self.configuration == PLAIN else self.configuration

    @cached_property
    def shown_cells(self) -> Cells:
        """(B, S, 1) the configuration of `shown` at every batch and length."""
        return (
            self.cells if self.configuration != PLAIN else self.every.with_index(np.array([[[self.shown]]]))
        )
