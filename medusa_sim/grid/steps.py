"""The step of each cell: its time by parts, what bounds it, its tokens' energy; put together from passes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from medusa_sim.arrays import FloatArray, IntArray, NumberT
from medusa_sim.grid.cell_passes import CellPasses, part_us
from medusa_sim.grid.surface import Surface
from medusa_sim.latency.operator_time import Bound, CodeArray
from medusa_sim.step import compose
from medusa_sim.step.compose import COST_FIELDS, Cost
from medusa_sim.step.kernel_sums import WAITS
from medusa_sim.step.launch import PARTS, Part
from medusa_sim.step.pass_times import PassTimes, bound_codes
from medusa_sim.step.watts import launch_joules


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
        """Those of every configuration."""
        return cls(surface, np.arange(surface.configurations.candidates.size)[None, None, :])

    def spread(self, values: npt.NDArray[NumberT]) -> npt.NDArray[NumberT]:
        """(batches, lengths, cells) a number of each cell, from an array in which some stand once."""
        return np.broadcast_to(values, (*self.surface.shape, self.index.shape[-1]))

    @cached_property
    def passes(self) -> CellPasses:
        """The passes that each is made of."""
        return CellPasses(self.surface, self.index)

    @cached_property
    def time_us(self) -> FloatArray:
        """The whole step, spread."""
        names = ("device_us", "host_us", "exposed_us")
        parts = (self.passes.whole(attrgetter(f"cost.{name}")) for name in names)
        return self.spread(compose.step_us(*parts))

    @property
    def decode_us(self) -> FloatArray:
        """The plain step at the same batch and length."""
        return self.surface.decode.time_us

    @cached_property
    def cost(self) -> Cost:
        """Cost of the whole step, with the parts of its band."""
        return Cost(**{name: self.passes.whole(attrgetter(f"cost.{name}")) for name in COST_FIELDS})

    @property
    def target_us(self) -> FloatArray:
        """The target's pass, without drafting."""
        return np.asarray(self.passes.target(lambda times: times.time_us))

    @cached_property
    def attention_us(self) -> FloatArray:
        """Attention of the target, spread."""
        return self.spread(self.passes.target(part_us("attention")))

    @cached_property
    def parts_us(self) -> dict[Part, FloatArray]:
        """Kernels by what they are for, spread, in the order in which they stack; launch gaps apart."""
        known, passes = {*self.passes.parts, "drafter"}, self.passes

        def time_us(part: Part) -> FloatArray:
            read = passes.whole if part == "drafter" else passes.target
            return self.spread(read(part_us(part)))

        return {part: time_us(part) for part in PARTS if part in known}

    @cached_property
    def bound(self) -> CodeArray:
        """`Bound` codes."""

        def waits_us(code: Bound) -> FloatArray:
            return self.passes.whole(lambda times: times.waits_us[code])

        return bound_codes({code: waits_us(code) for code in WAITS}, self.cost)

    @cached_property
    def source(self) -> CodeArray:
        """Worst `Source` code of the kernels."""
        drafted = self.passes.drafting(lambda times: times.source).astype(np.int8)
        return np.asarray(np.maximum(self.passes.target(lambda times: times.source), drafted))

    @cached_property
    def joules(self) -> FloatArray:
        """Joules of one GPU above idle; nan where its power is not known."""
        gpu = self.surface.scenario.gpu
        power = gpu.power
        if power is None:
            return np.full((), np.nan)
        known: dict[int, FloatArray] = {}  # passes that were timed together have their kernels in common

        def joules(times: PassTimes) -> FloatArray:
            total = np.zeros(())
            for work in times.works:
                if id(work.launches) not in known:
                    known[id(work.launches)] = launch_joules(gpu, power, work.launches)
                total = total + work.share * work.alone(known[id(work.launches)])
            return total

        return self.passes.whole(joules)
