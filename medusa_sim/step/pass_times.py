"""Times of passes: their cost, their kernels by what they are for, what bounds them and who says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from medusa_sim.arrays import FloatArray
from medusa_sim.latency.operator_time import Bound, CodeArray
from medusa_sim.step.compose import Cost
from medusa_sim.step.launch import Part
from medusa_sim.step.timed_kernels import WAITS, TimedKernels, at_last, mean_of_cases


@dataclass(frozen=True, kw_only=True)
class PassTimes:
    """Passes that run one after another and what they take together, microseconds, for every shape of a grid.

    One pass (`pass_cost.timed_pass`), those of a drafter (`drafting.drafting_times`), or a whole step
    (`step.step`), which is the sum of its passes: they add with `+`.
    """

    cost: Cost
    """Device, host and engine, which give the time and its 80 % band."""
    passes: tuple[TimedKernels, ...] = ()
    """The kernels of each."""

    @property
    def device_us(self) -> FloatArray:
        """Kernels and the gaps between them."""
        return self.cost.device_us

    @property
    def host_us(self) -> FloatArray:
        """What the host needs to launch them."""
        return self.cost.host_us

    @property
    def time_us(self) -> FloatArray:
        """Device, host and engine together (`compose.step_us`)."""
        return self.cost.time_us

    @property
    def low_us(self) -> FloatArray:
        """Lower end of the 80 % band."""
        return self.cost.low_us

    @property
    def high_us(self) -> FloatArray:
        """Upper end of the 80 % band."""
        return self.cost.high_us

    @cached_property
    def gaps_us(self) -> float:
        """Gaps between kernels, of each pass in its share of the steps."""
        return sum(kernels.gaps_us for kernels in self.passes)

    @property
    def no_kernels_us(self) -> FloatArray:
        """What is no kernel: gaps between them, and what of host and engine they do not hide."""
        return self.time_us - sum(self.parts_us.values(), start=np.zeros(()))

    @cached_property
    def parts_us(self) -> dict[Part, FloatArray]:
        """Kernel time by slice, each in the smallest shape that holds it."""
        parts: dict[Part, FloatArray] = {}
        for kernels in self.passes:
            for part, time_us in kernels.parts_us.items():
                parts[part] = parts.get(part, 0.0) + time_us
        return parts

    @cached_property
    def waits_us(self) -> dict[Bound, FloatArray]:
        """Device time by what bounds it, WAITS; the gaps and the rest of the kernels are latency."""
        waits = dict.fromkeys(WAITS, np.zeros(()))
        for kernels in self.passes:
            waits = {code: waits[code] + kernels.waits_us[code] for code in WAITS}
        return waits

    @cached_property
    def source(self) -> CodeArray:
        """Worst `Source` code among the kernels."""
        worst: CodeArray = np.zeros((), dtype=np.int8)
        for kernels in self.passes:
            worst = np.maximum(worst, kernels.source)
        return worst

    @cached_property
    def bound(self) -> CodeArray:
        """`Bound` codes: what takes the largest share; the host where the device waits for it."""
        return bound_codes(self.waits_us, self.cost)

    def one_of(self, index: int) -> PassTimes:
        """One of several passes that were timed together, along a last axis."""
        return self._counted(lambda values: np.asarray(at_last(values, index)), index=index)

    def mean_over(self, chances: FloatArray) -> PassTimes:
        """Its mean over cases along a last axis, (..., cases) with these probabilities."""
        return self._counted(lambda values: mean_of_cases(values, chances), chances=chances)

    def in_share(self, share: float) -> PassTimes:
        """Its mean over steps, if so large a share of them runs it."""
        return self._counted(lambda values: values * share, share=share)

    def _counted(self, change: Callable[[FloatArray], FloatArray], **counted: Any) -> PassTimes:
        """A pass as steps have it (fields of `TimedKernels`), its cost changed to that."""
        passes = tuple(replace(kernels, **counted) for kernels in self.passes)
        return PassTimes(cost=self.cost.mapped(change), passes=passes)

    def with_kernels_share(self, share: float) -> PassTimes:
        """With every kernel taking this share of its time; gaps between them stay."""
        cost = replace(
            self.cost,
            device_us=share * (self.device_us - self.gaps_us) + self.gaps_us,
            below_square=share**2 * self.cost.below_square,
            above_square=share**2 * self.cost.above_square,
        )
        return PassTimes(cost=cost, passes=tuple(kernels.taking(share) for kernels in self.passes))

    def __add__(self, other: PassTimes) -> PassTimes:
        """Both one after the other."""
        return PassTimes(cost=self.cost + other.cost, passes=self.passes + other.passes)


def bound_codes(waits_us: dict[Bound, FloatArray], cost: Cost) -> CodeArray:
    """`Bound` codes of steps that wait so long for memory and compute, and cost so much."""
    memory, compute = (waits_us[code] for code in WAITS)
    latency = cost.device_us - (memory + compute)
    code = np.maximum(
        np.int8(Bound.COMPUTE) * (compute > memory),
        np.int8(Bound.LATENCY) * (latency > np.maximum(memory, compute)),
    )
    waits = cost.host_us + cost.exposed_us > cost.device_us
    return np.asarray(np.maximum(code, np.int8(Bound.HOST) * waits))
