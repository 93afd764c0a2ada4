"""The step of each cell: its time by parts, what bounds it, its energy, read off the passes of a surface.

A surface has the plain step, verification of each number of candidates, and what each way of drafting adds.
The step of a cell is the plain one, or the verification of its count with its own drafting.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from medusa_sim.arrays import FloatArray, IntArray, NumberT
from medusa_sim.grid.surface import Surface
from medusa_sim.latency.operator_time import Bound, CodeArray
from medusa_sim.serving.watts import launch_joules
from medusa_sim.step import compose
from medusa_sim.step.compose import COST_FIELDS, Cost, along
from medusa_sim.step.launch import PARTS, Part
from medusa_sim.step.pass_times import PassTimes, bound_codes
from medusa_sim.step.timed_kernels import WAITS

NumberOf = Callable[[PassTimes], Any]
"""Reads a number of a pass."""


@dataclass(frozen=True, eq=False)
class Steps:
    """The steps of some configurations at every batch and length of a surface.

    index: configuration of each. Arrays are (batches, lengths, cells); what is the same along an axis may
    stand there once. Times are microseconds.
    """

    surface: Surface
    index: IntArray

    @classmethod
    def every(cls, surface: Surface) -> Steps:
        """Steps of every configuration."""
        return cls(surface, surface.configurations.indices)

    def spread(self, values: npt.NDArray[NumberT]) -> npt.NDArray[NumberT]:
        """(batches, lengths, cells) a number of each cell, from an array in which some stand once."""
        return np.broadcast_to(values, (*self.surface.shape, self.index.shape[-1]))

    # Numbers, read off the passes that the surface has priced.

    def whole(self, number_of: NumberOf) -> FloatArray:
        """A number that adds up over a step: of the plain one, or of verification and drafting."""
        return np.asarray(self.target(number_of) + self.drafting(number_of))

    def target(self, number_of: NumberOf) -> npt.NDArray[Any]:
        """A number of the target's pass: of the plain step, or of verification."""
        columns = self.surface.configurations.counts.size
        plain, verify = (np.asarray(number_of(times)) for times in (self.surface.decode, self.surface.verify))
        if columns == 1 or (plain.size == verify.size == 1 and plain.flat[0] == verify.flat[0]):
            return plain
        shape = np.broadcast_shapes(plain.shape, verify.shape, (columns,))
        both = np.broadcast_to(verify, shape).copy()
        both[..., :1] = plain
        return picked(both, self._column)

    def drafting(self, number_of: NumberOf) -> npt.NDArray[Any]:
        """A number of the drafting, 0 where nothing is drafted or a drafter costs nothing."""
        configurations = self.surface.configurations
        values = [
            np.zeros(()) if times is None else np.asarray(number_of(times)) for times in self.surface.drafting
        ]
        if not any(value.any() for value in values):
            return np.zeros(())
        lead = np.broadcast_shapes(*(value.shape[:-1] for value in values))
        table = np.zeros((*lead, configurations.candidates.size))
        for value, counts in zip(values, configurations.option_slices, strict=True):
            table[..., counts] = along(value, configurations.column[counts])
        return picked(table, self.index)

    @cached_property
    def _column(self) -> IntArray:
        """Index of each cell among the columns of verification."""
        columns = self.surface.configurations.column[self.index]
        first = columns[:1, :1]
        return first if np.array_equal(np.broadcast_to(first, columns.shape), columns) else columns

    # What a step takes.

    @cached_property
    def time_us(self) -> FloatArray:
        """(batches, lengths, cells) time of the whole step, microseconds."""
        names = ("device_us", "host_us", "exposed_us")
        parts = (self.whole(attrgetter(f"cost.{name}")) for name in names)
        return self.spread(compose.step_us(*parts))

    @property
    def decode_us(self) -> FloatArray:
        """The plain step at the same batch and length."""
        return self.surface.decode.time_us

    @cached_property
    def cost(self) -> Cost:
        """Cost of the whole step, with the parts of its band."""
        return Cost(**{name: self.whole(attrgetter(f"cost.{name}")) for name in COST_FIELDS})

    @property
    def target_us(self) -> FloatArray:
        """The target's pass, without drafting."""
        return np.asarray(self.target(lambda times: times.time_us))

    @cached_property
    def attention_us(self) -> FloatArray:
        """Attention of the target, spread."""
        return self.spread(self.target(part_us("attention")))

    @cached_property
    def parts_us(self) -> dict[Part, FloatArray]:
        """Kernels by what they are for, spread, in the order in which they stack; launch gaps apart."""
        passes = (self.surface.decode, self.surface.verify, *self.surface.drafting)
        parts = {"drafter", *(part for times in passes if times is not None for part in times.parts_us)}

        def time_us(part: Part) -> FloatArray:
            read = self.whole if part == "drafter" else self.target
            return self.spread(read(part_us(part)))

        return {part: time_us(part) for part in PARTS if part in parts}

    @cached_property
    def bound(self) -> CodeArray:
        """`Bound` codes: what each step waits for."""

        def waits_us(code: Bound) -> FloatArray:
            return self.whole(lambda times: times.waits_us[code])

        return bound_codes({code: waits_us(code) for code in WAITS}, self.cost)

    @cached_property
    def source(self) -> CodeArray:
        """Worst `Source` code of the kernels."""
        drafted = self.drafting(lambda times: times.source).astype(np.int8)
        return np.asarray(np.maximum(self.target(lambda times: times.source), drafted))

    @cached_property
    def joules(self) -> FloatArray:
        """Joules of one GPU above idle; nan where its power is not known."""
        gpu = self.surface.scenario.gpu
        power = gpu.power
        if power is None:
            return np.full((), np.nan)
        joules_of: dict[int, FloatArray] = {}  # passes that were timed together have their kernels in common

        def joules(times: PassTimes) -> FloatArray:
            total = np.zeros(())
            for kernels in times.passes:
                launches = kernels.work.launches
                if id(launches) not in joules_of:
                    joules_of[id(launches)] = launch_joules(gpu, power, launches)
                total = total + kernels.share * kernels.alone(joules_of[id(launches)])
            return total

        return self.whole(joules)


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
