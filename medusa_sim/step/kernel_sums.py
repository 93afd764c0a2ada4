"""What is added up over the timed kernels of a pass: time, band, slices, what they wait for, source."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from medusa_sim.arrays import FloatArray, once
from medusa_sim.engines.runtime import Runtime
from medusa_sim.latency.model import LatencyModel
from medusa_sim.latency.operator_time import Bound, CodeArray, OperatorTime, Source
from medusa_sim.operators.kinds import KIND_OF
from medusa_sim.step.kernels import kernel_time
from medusa_sim.step.launch import Launch, Part

WAITS = (Bound.MEMORY, Bound.COMPUTE)
"""What kernels wait for; the rest of a step's time is latency."""
_BORROWED = int(Source.BORROWED)
"""A plain number, as codes are compared with here: numpy is slow to compare with a member of an enum."""


class Spread(NamedTuple):
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
class TimedLaunches:
    """Timed launches, smallest arrays first: none is broadcast early. Sums are in microseconds."""

    timed: tuple[tuple[Launch, OperatorTime], ...]

    @cached_property
    def device_us(self) -> FloatArray:
        """All of them one after another."""
        total = np.zeros(())
        for _, _, time_us in self._counted:
            total = total + time_us
        return total

    @cached_property
    def spread(self) -> Spread:
        """Half-widths of their band, without what no ratio has."""
        below, above = np.zeros(()), np.zeros(())
        shared: dict[str, tuple[FloatArray, FloatArray]] = {}
        for launch, time in self.timed:
            less, more = _half_widths_us(launch, time)
            alike = _alike(launch, time)
            if alike is None:
                below, above = below + less**2, above + more**2
                continue
            shared_less, shared_more = shared.get(alike.group, (np.zeros(()), np.zeros(())))
            shared[alike.group] = shared_less + alike.part * less, shared_more + alike.part * more
        return Spread(below, above, shared)

    @cached_property
    def device_half_us(self) -> FloatArray:
        """Half-width by which they are off together, as every kernel of the device is."""
        total = np.zeros(())
        for _, time, time_us in self._counted:
            if time.device_half:
                total = total + time.device_half * time_us
        return total

    @cached_property
    def parts_us(self) -> dict[Part, FloatArray]:
        """Their time by slice of the step."""
        parts: dict[Part, FloatArray] = {}
        for launch, _, time_us in self._counted:
            parts[launch.part] = parts.get(launch.part, 0.0) + time_us
        return parts

    @cached_property
    def waits_us(self) -> dict[Bound, FloatArray]:
        """Their time by what bounds it, WAITS."""
        waits = dict.fromkeys(WAITS, np.zeros(()))
        for _, time, time_us in self._counted:
            for code in WAITS:
                if (waiting := time.bound == int(code)).any():
                    waits[code] = waits[code] + time_us * waiting
        return waits

    @cached_property
    def source(self) -> CodeArray:
        """Worst `Source` code among them."""
        worst: CodeArray = np.zeros((), dtype=np.int8)
        for _, time in self.timed:
            worst = np.maximum(worst, once(time.source))
        return worst

    @cached_property
    def _counted(self) -> tuple[tuple[Launch, OperatorTime, FloatArray], ...]:
        """With the time of all launches of each."""
        return tuple((launch, time, launch.count * time.time_us) for launch, time in self.timed)


class Sums(NamedTuple):
    """What a step tells of its kernels, where a pass stands for several or is one of many."""

    parts_us: dict[Part, FloatArray]
    waits_us: dict[Bound, FloatArray]
    source: CodeArray

    @classmethod
    def of(
        cls,
        kernels: TimedLaunches | Sums,
        change: Callable[[FloatArray], FloatArray],
        sources: Callable[[CodeArray], CodeArray],
    ) -> Sums:
        """Sums of kernels that `change` and `sources` have gone over."""
        return cls(
            parts_us={part: change(time_us) for part, time_us in kernels.parts_us.items()},
            waits_us={code: change(time_us) for code, time_us in kernels.waits_us.items()},
            source=sources(kernels.source),
        )


def timed(latency: LatencyModel, runtime: Runtime, launches: Iterable[Launch]) -> TimedLaunches:
    """The launches with their times."""
    pairs = ((launch, kernel_time(latency, runtime, launch)) for launch in launches)
    return TimedLaunches(timed=tuple(sorted(pairs, key=lambda pair: pair[1].time_us.size)))


def _half_widths_us(launch: Launch, time: OperatorTime) -> tuple[FloatArray, FloatArray]:
    """(downwards, upwards) of all launches of a kernel, without what every kernel of the device shares."""
    if not time.device_half:
        return launch.count * (time.time_us - time.low_us), launch.count * (time.high_us - time.time_us)
    half = np.sqrt(np.maximum(np.log(time.high_us / time.time_us) ** 2 - time.device_half**2, 0.0))
    all_us = launch.count * time.time_us
    return all_us * -np.expm1(-half), all_us * np.expm1(half)


class _Alike(NamedTuple):
    """Which kernels share an error with this one, and how much of it."""

    group: str
    """Key of `Spread.shared`."""
    part: float
    """Of its half-width."""


_WITH_EVERY_KERNEL = _Alike("every kernel", 1.0)


def _alike(launch: Launch, time: OperatorTime) -> _Alike | None:
    """Kernels that were not measured on this GPU err with others; None: the error is independent."""
    source = once(time.source)
    is_measured = not source.size or source.min() < _BORROWED
    if is_measured and not time.device_half:
        return None
    if time.device_half or source.max() > _BORROWED:
        return _WITH_EVERY_KERNEL
    return _Alike(KIND_OF[launch.operator.kind].section, time.together)
