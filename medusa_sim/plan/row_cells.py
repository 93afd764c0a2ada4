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
    """Cells at the fullest batch of a row.

    cells: (B, S, 1) what the schedule runs where; every: (B, S, J) all configurations.
    """

    every: Cells
    batches: BatchRange
    question: Question

    @property
    def _surface(self) -> Surface:
        return self.every.surface

    @property
    def _configuration(self) -> int:
        return self.batches.configuration

    @property
    def _option(self) -> DraftOption | None:
        return self.every.configurations.option_of(self._configuration)

    @property
    def _places(self) -> slice:
        """Places of the row's batches."""
        return slice(self.batches.first, self.batches.last + 1)

    @property
    def searched(self) -> IntArray:
        """(batches,) batches of the row that were searched."""
        return self._surface.batch[self._places]

    @cached_property
    def _speedups(self) -> FloatArray:
        """(J,) of every configuration at the fullest batch."""
        return self.every.speedup_at(self.b, self.s)

    @cached_property
    def _steps_us(self) -> FloatArray:
        """(J,) step of every configuration at the fullest batch."""
        return np.asarray(self.every.step_us[self.b, self.s])

    @property
    def _tokens(self) -> FloatArray:
        """(J,) tokens per step."""
        return self.every.configurations.tokens_per_step

    @property
    def batch_max(self) -> int:
        """The largest batch, at which the row's figures are."""
        return int(self._surface.batch[self.b])

    @property
    def _best_drafting(self) -> int:
        """The configuration that gains most of those that draft."""
        return 1 + int(np.argmax(self._speedups[1:]))

    @cached_property
    def _shown(self) -> int:
        """The row's configuration, or of a plain row the best that drafts."""
        return self._best_drafting if self._configuration == PLAIN else self._configuration

    @cached_property
    def _shown_cells(self) -> Cells:
        """(B, S, 1) the configuration of `_shown` at every batch and length."""
        return (
            self.cells if self._configuration != PLAIN else self.every.with_index(np.array([[[self._shown]]]))
        )
