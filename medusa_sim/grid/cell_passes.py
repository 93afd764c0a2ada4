"""Numbers of whole steps, read off the passes that a surface has priced.

A surface has the plain step, verification of each number of candidates, and what each way of drafting adds.
The step of a cell is the plain one, or the verification of its count with its own drafting.
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
from medusa_sim.step.launch import Part
from medusa_sim.step.pass_times import PassTimes

NumberOf = Callable[[PassTimes], Any]
"""Reads a number of a pass."""


@dataclass(frozen=True, eq=False)
class CellPasses:
    """The passes that make up the step of each cell.

    index: (batches, lengths, cells) configuration of each cell; numbers broadcast with it.
    """

    surface: Surface
    index: IntArray

    def whole(self, number_of: NumberOf) -> FloatArray:
        """A number that adds up over a step: of the plain one, or of verification and drafting."""
        return np.asarray(self.target(number_of) + self.drafting(number_of))

    def target(self, number_of: NumberOf) -> npt.NDArray[Any]:
        """A number of the target's pass: of the plain step, or of verification."""
        columns = self.surface.configurations.counts.size
        plain, verify = (np.asarray(number_of(each)) for each in (self.surface.decode, self.surface.verify))
        if columns == 1 or (plain.size == verify.size == 1 and plain.flat[0] == verify.flat[0]):
            return plain
        shape = np.broadcast_shapes(plain.shape, verify.shape, (columns,))
        both = np.broadcast_to(verify, shape).copy()
        both[..., :1] = plain
        return picked(both, self._column)

    def drafting(self, number_of: NumberOf) -> npt.NDArray[Any]:
        """A number of the drafting, 0 where nothing is drafted or a drafter costs nothing."""
        if not self.drafting_times:
            return np.zeros(())
        configurations = self.surface.configurations
        values = [
            np.zeros(()) if times is None else np.asarray(number_of(times)) for times in self.surface.drafting
        ]
        if not any(value.any() for value in values):
            return np.zeros(())
        lead = np.broadcast_shapes(*(value.shape[:-1] for value in values))
        table = np.zeros((*lead, configurations.candidates.size))
        for value, place in zip(values, configurations.places, strict=True):
            table[..., place] = along(value, configurations.column[place])
        return picked(table, self.index)

    @property
    def drafting_times(self) -> list[PassTimes]:
        """Times of the drafters that cost anything."""
        return [times for times in self.surface.drafting if times is not None]

    @property
    def parts(self) -> set[Part]:
        """What kernels of any of these passes are for."""
        times = [self.surface.decode, self.surface.verify, *self.drafting_times]
        return {part for each in times for part in each.parts_us}

    @cached_property
    def _column(self) -> IntArray:
        """Place of each cell among the columns of verification."""
        columns = self.surface.configurations.column[self.index]
        first = columns[:1, :1]
        return first if np.array_equal(np.broadcast_to(first, columns.shape), columns) else columns


def part_us(part: Part) -> NumberOf:
    """Reads the time of the kernels of a part, 0 where a pass has none."""
    return lambda times: times.parts_us.get(part, np.zeros(()))


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
