"""The step of every cell: at every batch and length some configurations, each put together from a surface.

Arrays broadcast with (B, S, K): K cells at each of B batches and S lengths.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from medusa_sim.arrays import FloatArray, IntArray
from medusa_sim.grid.configurations import Configurations
from medusa_sim.grid.surface import Surface
from medusa_sim.latency.base import Bound, CodeArray
from medusa_sim.scenario.draft_options import DraftOption
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.step.compose import COST_FIELDS, Cost, along, step_us
from medusa_sim.step.kernels import WAITS
from medusa_sim.step.step import StepTime, bound_codes
from medusa_sim.step.watts import launch_joules
from medusa_sim.step.workload import PARTS, Part

Field = Callable[[StepTime], Any]
"""A number of a step."""


@dataclass(frozen=True, eq=False)
class CellSteps:
    """Steps of the cells of a surface. index: configuration of each cell, broadcasts with (B, S, K)."""

    surface: Surface
    index: IntArray

    @property
    def scenario(self) -> Scenario:
        """What was priced."""
        return self.surface.scenario

    @property
    def configurations(self) -> Configurations:
        """What the index names."""
        return self.surface.configurations

    @property
    def shape(self) -> tuple[int, int, int]:
        """(B, S, K)."""
        return *self.surface.shape, self.index.shape[-1]

    @property
    def batch(self) -> IntArray:
        """(B, 1, 1) sequences of a step."""
        return self.surface.batch[:, None, None]

    @property
    def seq_len(self) -> IntArray:
        """(1, S, 1) committed tokens of each sequence."""
        return self.surface.seq_len[None, :, None]

    @cached_property
    def candidates(self) -> IntArray:
        """Tokens that a step verifies for each sequence, root included."""
        return self.configurations.candidates[self.index]

    @property
    def drafts(self) -> IntArray:
        """Draft length (Medusa: heads run); 0 of plain decoding."""
        return self.configurations.depth[self.index]

    def option_at(self, at: int, s: int, cell: int = 0) -> DraftOption | None:
        """How a cell drafts; None for plain decoding."""
        return self.configurations.option_of(self.configuration_at(at, s, cell))

    def configuration_at(self, at: int, s: int, cell: int = 0) -> int:
        """Which configuration a cell has."""
        return int(np.broadcast_to(self.index, self.shape)[at, s, cell])

    def candidates_at(self, at: int, s: int, cell: int = 0) -> int:
        """Candidates of a cell."""
        return int(self.configurations.candidates[self.configuration_at(at, s, cell)])

    # What a step takes.

    @cached_property
    def cost(self) -> Cost:
        """Of the plain step, or of verification and drafting."""
        return Cost(**{name: self._sum(_cost_field(name)) for name in COST_FIELDS})

    @cached_property
    def step_us(self) -> FloatArray:
        """The whole step."""
        parts = (self._sum(_cost_field(name)) for name in ("device_us", "host_us", "exposed_us"))
        return np.broadcast_to(step_us(*parts), self.shape)

    @property
    def decode_us(self) -> FloatArray:
        """The plain step at the same batch and length, broadcasts with (B, S, 1)."""
        return self.surface.decode.time_us

    @cached_property
    def parts_us(self) -> dict[Part, FloatArray]:
        """Kernels of the step by what they are for, in the order in which they stack; launch gaps apart."""
        steps = [self.surface.decode, self.surface.verify, *self._drafting_steps]
        known = {part for step in steps for part in step.parts_us}
        return {
            part: np.broadcast_to((self._sum if part == "drafter" else self._target)(_part(part)), self.shape)
            for part in PARTS
            if part in known or part == "drafter"
        }

    @cached_property
    def bound(self) -> CodeArray:
        """`Bound` codes."""
        waits = {code: self._sum(_waits(code)) for code in WAITS}
        return bound_codes(waits, self.cost)

    @cached_property
    def source(self) -> CodeArray:
        """Worst `Source` code of the step's kernels."""
        drafted = self._drafting(lambda step: step.source).astype(np.int8)
        return np.asarray(np.maximum(self._target(lambda step: step.source), drafted))

    @property
    def target_us(self) -> FloatArray:
        """The target's pass alone, without drafting."""
        return np.asarray(self._target(lambda step: step.time_us))

    @cached_property
    def attention_us(self) -> FloatArray:
        """Attention of the target in the step."""
        return np.broadcast_to(self._target(_part("attention")), self.shape)

    @cached_property
    def joules(self) -> FloatArray:
        """Joules of one GPU above idle in a step; nan where its power is not known."""
        gpu, power = self.scenario.gpu, self.scenario.gpu.power
        if power is None:
            return np.full((), np.nan)
        known: dict[int, FloatArray] = {}  # drafts of every length share their first passes

        def joules(step: StepTime) -> FloatArray:
            for work in step.works:
                if id(work) not in known:
                    known[id(work)] = launch_joules(gpu, power, work.launches)
            return sum((known[id(work)] for work in step.works), start=np.zeros(()))

        return self._sum(joules)

    # How numbers of steps are put together.

    @cached_property
    def _column(self) -> IntArray:
        """Place of each cell among the columns of verification."""
        columns = self.configurations.column[self.index]
        first = columns[:1, :1]
        return first if np.array_equal(np.broadcast_to(first, columns.shape), columns) else columns

    @property
    def _drafting_steps(self) -> list[StepTime]:
        return [step for step in self.surface.drafting if step is not None]

    def _sum(self, field: Field) -> FloatArray:
        """What adds up over a step: of the plain one, or of verification and drafting."""
        return np.asarray(self._target(field) + self._drafting(field))

    def _target(self, field: Field) -> npt.NDArray[Any]:
        """A number of the plain step, or of verification."""
        columns = self.configurations.counts.size
        plain, verify = np.asarray(field(self.surface.decode)), np.asarray(field(self.surface.verify))
        if columns == 1 or (plain.size == verify.size == 1 and plain.flat[0] == verify.flat[0]):
            return plain
        shape = np.broadcast_shapes(plain.shape, verify.shape, (columns,))
        both = np.broadcast_to(verify, shape).copy()
        both[..., :1] = plain
        return picked(both, self._column)

    def _drafting(self, field: Field) -> npt.NDArray[Any]:
        """A number of the drafting, 0 where nothing is drafted or a drafter costs nothing."""
        if not self._drafting_steps:
            return np.zeros(())
        configurations = self.configurations
        values = [np.zeros(()) if step is None else np.asarray(field(step)) for step in self.surface.drafting]
        if not any(value.any() for value in values):
            return np.zeros(())
        lead = np.broadcast_shapes(*(value.shape[:-1] for value in values))
        table = np.zeros((*lead, configurations.candidates.size))
        for value, place in zip(values, configurations.places, strict=True):
            table[..., place] = along(value, configurations.column[place])
        return picked(table, self.index)


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


def _cost_field(name: str) -> Field:
    return lambda step: getattr(step.cost, name)


def _waits(code: Bound) -> Field:
    return lambda step: step.waits_us[code]


def _part(name: Part) -> Field:
    return lambda step: step.parts_us.get(name, np.zeros(()))
