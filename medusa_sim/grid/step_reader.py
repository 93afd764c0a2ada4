"""Numbers of the step of each cell, put together from the steps of a surface.

A surface has the plain step, verification by number of candidates, and what each way of drafting adds. The
step of a cell is the plain one, or the verification of its count with its own drafting.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from medusa_sim.arrays import FloatArray, IntArray
from medusa_sim.grid.surface import Surface
from medusa_sim.step.compose import along
from medusa_sim.step.pass_time import StepTime

Field = Callable[[StepTime], Any]
"""A number of a step."""


@dataclass(frozen=True, eq=False)
class StepReader:
    """Reads numbers of steps for cells. index: configuration of each cell, broadcasts with (B, S, K)."""

    surface: Surface
    index: IntArray

    def whole(self, field: Field) -> FloatArray:
        """What adds up over a step: of the plain one, or of verification and drafting."""
        return np.asarray(self.target(field) + self.drafting(field))

    def target(self, field: Field) -> npt.NDArray[Any]:
        """A number of the target's pass: of the plain step, or of verification."""
        columns = self.surface.configurations.counts.size
        plain, verify = np.asarray(field(self.surface.decode)), np.asarray(field(self.surface.verify))
        if columns == 1 or (plain.size == verify.size == 1 and plain.flat[0] == verify.flat[0]):
            return plain
        shape = np.broadcast_shapes(plain.shape, verify.shape, (columns,))
        both = np.broadcast_to(verify, shape).copy()
        both[..., :1] = plain
        return picked(both, self._column)

    def drafting(self, field: Field) -> npt.NDArray[Any]:
        """A number of the drafting, 0 where nothing is drafted or a drafter costs nothing."""
        if not self.drafting_steps:
            return np.zeros(())
        configurations = self.surface.configurations
        values = [np.zeros(()) if step is None else np.asarray(field(step)) for step in self.surface.drafting]
        if not any(value.any() for value in values):
            return np.zeros(())
        lead = np.broadcast_shapes(*(value.shape[:-1] for value in values))
        table = np.zeros((*lead, configurations.candidates.size))
        for value, place in zip(values, configurations.places, strict=True):
            table[..., place] = along(value, configurations.column[place])
        return picked(table, self.index)

    @property
    def drafting_steps(self) -> list[StepTime]:
        """Those of the drafters that cost anything."""
        return [step for step in self.surface.drafting if step is not None]

    @cached_property
    def _column(self) -> IntArray:
        """Place of each cell among the columns of verification."""
        columns = self.surface.configurations.column[self.index]
        first = columns[:1, :1]
        return first if np.array_equal(np.broadcast_to(first, columns.shape), columns) else columns


def picked(table: npt.NDArray[Any], index: IntArray) -> npt.NDArray[Any]:
    """table[b, s, index[b, s, k]]; what does not vary along an axis has one entry there."""
    if table.ndim == 0 or table.shape[-1] == 1:
        return table
    columns = table.shape[-1]
    if index.shape[:-1] == (1, 1):
        is_whole = np.array_equal(index[0, 0], np.arange(columns))
        return table if is_whole else np.asarray(table[..., index[0, 0]])
    rows = np.arange(table.size // columns).reshape(*table.shape[:-1], 1)
    return np.asarray(table.ravel().take(columns * rows + index))
