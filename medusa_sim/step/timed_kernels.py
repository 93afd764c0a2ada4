"""The kernels of a pass with their times, and what a step adds up over them: slices, waits, source, band."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from medusa_sim.arrays import FloatArray, once
from medusa_sim.latency.model import LatencyModel
from medusa_sim.latency.operator_time import Bound, CodeArray, OperatorTime, Source
from medusa_sim.operators.kinds import KIND_OF
from medusa_sim.step.kernels import decomposed, kernel_time
from medusa_sim.step.launch import Launch, Part
from medusa_sim.step.pass_work import PassWork

WAITS = (Bound.MEMORY, Bound.COMPUTE)
"""What kernels wait for; the rest of a step's time is latency."""
_BORROWED = int(Source.BORROWED)
"""A plain number, as codes are compared with here: numpy is slow to compare with a member of an enum."""
_EVERY_KERNEL = "every kernel"
"""Group of kernels that err together whatever their kind."""


class KernelBand(NamedTuple):
    """80 % half-widths of a sum of kernels, by how their errors add up."""

    below_square: FloatArray
    """Squared half-width downwards of kernels that were measured on this GPU, independent of each other."""
    above_square: FloatArray
    """The same upwards."""
    shared: dict[str, tuple[FloatArray, FloatArray]]
    """Half-widths (downwards, upwards) of what kernels share, by group: borrowed ones of a kind
    (`Fit.together`); all others that were not measured on it, and those of one law of the device."""

    @property
    def squares(self) -> tuple[FloatArray, FloatArray]:
        """(downwards, upwards) squared half-widths of all of them."""
        below, above = self.below_square, self.above_square
        for shared_below, shared_above in self.shared.values():
            below, above = below + shared_below**2, above + shared_above**2
        return below, above


@dataclass(frozen=True, kw_only=True, eq=False)
class TimedKernels:
    """The kernels of a pass with their times. Sums are microseconds in a step.

    Along a last axis times may hold several passes that were timed together, or several cases of one.
    """

    work: PassWork
    times: tuple[tuple[Launch, OperatorTime], ...]
    index: int | None = None
    """Which pass of the last axis it is; None: the axis holds no other."""
    chances: FloatArray | None = None
    """(..., cases) probabilities of the cases along the last axis, whose mean a step takes; None: it holds
    none."""
    share: float = 1.0
    """Share of the steps in which it runs: below 1 where drafts end at the first that a drafter is not sure
    of."""

    def alone(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Of numbers of passes that were timed together those of this one."""
        return values if self.index is None else at_last(values, self.index)

    @cached_property
    def own_times(self) -> tuple[tuple[Launch, OperatorTime], ...]:
        """Kernels and times of this pass alone, in the order of their launches."""
        if self.index is None:
            return self.times
        return tuple((launch, time.every(self.alone)) for launch, time in self.times)

    @cached_property
    def device_us(self) -> FloatArray:
        """All of them one after another."""
        return sum((time_us for _, _, time_us in self._counted), start=np.zeros(()))

    @property
    def gaps_us(self) -> float:
        """Gaps on the device between them."""
        return self.share * self.work.gaps_us

    @cached_property
    def parts_us(self) -> dict[Part, FloatArray]:
        """Their time by slice of the step."""
        parts: dict[Part, FloatArray] = {}
        for launch, _, time_us in self._counted:
            parts[launch.part] = parts.get(launch.part, 0.0) + time_us
        return {part: self._in_a_step(time_us) for part, time_us in parts.items()}

    @cached_property
    def waits_us(self) -> dict[Bound, FloatArray]:
        """Their time by what bounds it, WAITS."""
        waits = dict.fromkeys(WAITS, np.zeros(()))
        for _, time, time_us in self._counted:
            for code in WAITS:
                if (waiting := time.bound == int(code)).any():
                    waits[code] = waits[code] + time_us * waiting
        return {code: self._in_a_step(time_us) for code, time_us in waits.items()}

    @cached_property
    def source(self) -> CodeArray:
        """Worst `Source` code among them."""
        worst: CodeArray = np.zeros((), dtype=np.int8)
        for _, time, _ in self._counted:
            worst = np.maximum(worst, once(time.source))
        return worst if self.chances is None or not worst.ndim else np.asarray(worst.max(axis=-1))

    @cached_property
    def band(self) -> KernelBand:
        """Half-widths of their band, without what no ratio has."""
        below, above = np.zeros(()), np.zeros(())
        shared: dict[str, tuple[FloatArray, FloatArray]] = {}
        for launch, time, _ in self._counted:
            less, more = _half_widths_us(launch, time)
            common = _shared_error(launch, time)
            if common is None:
                below, above = below + less**2, above + more**2
                continue
            group, part = common
            shared_less, shared_more = shared.get(group, (np.zeros(()), np.zeros(())))
            shared[group] = shared_less + part * less, shared_more + part * more
        return KernelBand(below, above, shared)

    @cached_property
    def device_half_us(self) -> FloatArray:
        """Half-width by which they are off together, as every kernel of the device is."""
        halves = (time.device_half * time_us for _, time, time_us in self._counted if time.device_half)
        return sum(halves, start=np.zeros(()))

    def taking(self, share: float) -> TimedKernels:
        """The same kernels, each taking this share of its time."""
        times = tuple((launch, time.mapped(lambda us: share * us)) for launch, time in self.times)
        return replace(self, times=times)

    @cached_property
    def _counted(self) -> tuple[tuple[Launch, OperatorTime, FloatArray], ...]:
        """With the time of all launches of each, smallest arrays first: none is broadcast early."""
        pairs = sorted(self.own_times, key=lambda pair: pair[1].time_us.size)
        return tuple((launch, time, launch.count * time.time_us) for launch, time in pairs)

    def _in_a_step(self, time_us: FloatArray) -> FloatArray:
        """What a step has of it: its share, and of several cases their mean."""
        mean_us = time_us if self.chances is None else mean_of_cases(time_us, self.chances)
        return mean_us if self.share == 1.0 else self.share * mean_us


def timed_kernels(latency: LatencyModel, work: PassWork) -> TimedKernels:
    """The kernels of a pass, by what the latency model has kernels of, with their times."""
    work = replace(work, launches=tuple(decomposed(latency, work.launches)))
    times = tuple((launch, kernel_time(latency, work.runtime, launch)) for launch in work.launches)
    return TimedKernels(work=work, times=times)


def at_last(values: npt.NDArray[Any], index: int) -> npt.NDArray[Any]:
    """values[..., index]; what does not vary along the last axis has one entry there, or no axis."""
    return values[..., index if values.shape[-1] > 1 else 0] if values.ndim else values


def mean_of_cases(values: FloatArray, chances: FloatArray) -> FloatArray:
    """Mean over the last axis, whose cases have these probabilities (..., cases)."""
    if not values.ndim:
        return values
    return np.asarray(values[..., 0] if values.shape[-1] == 1 else (values * chances).sum(axis=-1))


def _half_widths_us(launch: Launch, time: OperatorTime) -> tuple[FloatArray, FloatArray]:
    """(downwards, upwards) of all launches of a kernel, without what every kernel of the device shares."""
    if not time.device_half:
        return launch.count * (time.time_us - time.low_us), launch.count * (time.high_us - time.time_us)
    half = np.sqrt(np.maximum(np.log(time.high_us / time.time_us) ** 2 - time.device_half**2, 0.0))
    all_us = launch.count * time.time_us
    return all_us * -np.expm1(-half), all_us * np.expm1(half)


def _shared_error(launch: Launch, time: OperatorTime) -> tuple[str, float] | None:
    """(kernels that err with this one, part of its half-width that they share); None: its error is its own.

    Kernels that were not measured on this GPU err with others.
    """
    source = once(time.source)
    is_measured = not source.size or source.min() < _BORROWED
    if is_measured and not time.device_half:
        return None
    if time.device_half or source.max() > _BORROWED:
        return _EVERY_KERNEL, 1.0
    return KIND_OF[launch.operator.kind].section, time.together
