"""Launches -> their times, and what is added up over them.

(N4)  choice   = sampling_us + r V sampling_bytes / B a token for each of r rows of V logits
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from medusa_sim.arrays import FloatArray, once
from medusa_sim.latency.base import (
    Bound,
    CodeArray,
    LatencyModel,
    OperatorTime,
    Source,
    filled,
    known_time,
    roofline_time_us,
)
from medusa_sim.operators.experts import Experts
from medusa_sim.operators.kinds import KIND_OF
from medusa_sim.operators.operator import Elementwise, Gemm, Size
from medusa_sim.specs.engine import Engine
from medusa_sim.specs.gpu import Gpu
from medusa_sim.specs.runtime import Runtime
from medusa_sim.step.launch import Launch, Part
from medusa_sim.units import US_PER_S

_BORROWED = int(Source.BORROWED)
WAITS = (Bound.MEMORY, Bound.COMPUTE)
"""What kernels wait for; the rest of a step's time is latency."""


class Spread(NamedTuple):
    """80 % half-widths of a sum of kernels, by how their errors add up."""

    below_square: FloatArray
    """Squared half-width downwards of kernels that were measured on this GPU, independent of each other."""
    above_square: FloatArray
    """The same upwards."""
    shared: dict[str, tuple[FloatArray, FloatArray]]
    """Half-widths (downwards, upwards) of what is off together: borrowed kernels by kind (`Fit.together`);
    under no name others that were not measured on it, and those of one law of the device."""

    def mapped(self, change: Callable[[FloatArray], FloatArray]) -> Spread:
        """With every array replaced by what `change` makes of it."""
        shared = {kind: (change(below), change(above)) for kind, (below, above) in self.shared.items()}
        return Spread(change(self.below_square), change(self.above_square), shared)

    @property
    def squares(self) -> tuple[FloatArray, FloatArray]:
        """(downwards, upwards) squared half-widths of all of them."""
        below, above = self.below_square, self.above_square
        for less, more in self.shared.values():
            below, above = below + less**2, above + more**2
        return below, above


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """What is added up over kernels; each as the property of `Kernels` of that name."""

    device_us: FloatArray
    spread: Spread
    device_half_us: FloatArray
    parts_us: dict[Part, FloatArray]
    waits_us: dict[Bound, FloatArray]
    source: CodeArray


@dataclass(frozen=True, kw_only=True, eq=False)
class Kernels:
    """Timed launches, smallest arrays first: none is broadcast early. Sums are made when asked for."""

    timed: tuple[tuple[Launch, OperatorTime], ...]
    rest: Sums | None = None
    """Sums of kernels that are timed already, which come on top."""

    @cached_property
    def device_us(self) -> FloatArray:
        """All of them one after another."""
        total = np.zeros(()) if self.rest is None else self.rest.device_us
        for _, _, time_us in self._counted:
            total = total + time_us
        return total

    @cached_property
    def _counted(self) -> tuple[tuple[Launch, OperatorTime, FloatArray], ...]:
        """With the time of all launches of each."""
        return tuple((launch, time, launch.count * time.time_us) for launch, time in self.timed)

    @cached_property
    def spread(self) -> Spread:
        """Half-widths of their band, without what no ratio has (`device_half_us`)."""
        none = np.zeros(())
        below, above, known = (none, none, {}) if self.rest is None else self.rest.spread
        shared = dict(known)
        for launch, time in self.timed:
            less, more = time.time_us - time.low_us, time.high_us - time.time_us
            if time.device_half:
                half = np.sqrt(
                    np.maximum(np.log(time.high_us / time.time_us) ** 2 - time.device_half**2, 0.0)
                )
                less, more = time.time_us * -np.expm1(-half), time.time_us * np.expm1(half)
            less *= launch.count
            more *= launch.count
            source = once(time.source)
            if time.device_half or (source.size and source.min() >= _BORROWED):
                is_borrowed = not time.device_half and source.max() == _BORROWED
                part, kind = (
                    (time.together, KIND_OF[launch.operator.kind].section) if is_borrowed else (1.0, "")
                )
                own_less, own_more = shared.get(kind, (none, none))
                shared[kind] = own_less + part * less, own_more + part * more
            else:
                less *= less
                more *= more
                below, above = below + less, above + more
        return Spread(below, above, shared)

    @cached_property
    def device_half_us(self) -> FloatArray:
        """Half-width by which they are off together, as every kernel of the device is."""
        total = np.zeros(()) if self.rest is None else self.rest.device_half_us
        for _, time, time_us in self._counted:
            if time.device_half:
                total = total + time.device_half * time_us
        return total

    @cached_property
    def parts_us(self) -> dict[Part, FloatArray]:
        """Their time by slice of the step."""
        parts = {} if self.rest is None else dict(self.rest.parts_us)
        for launch, _, time_us in self._counted:
            parts[launch.part] = parts.get(launch.part, 0.0) + time_us
        return parts

    @cached_property
    def waits_us(self) -> dict[Bound, FloatArray]:
        """Their time by what bounds it."""
        waits = dict.fromkeys(WAITS, np.zeros(())) if self.rest is None else dict(self.rest.waits_us)
        for _, time, time_us in self._counted:
            for code in WAITS:
                if (waiting := time.bound == code).any():
                    waits[code] = waits[code] + time_us * waiting
        return waits

    @cached_property
    def source(self) -> CodeArray:
        """Worst `Source` code among them."""
        worst: CodeArray = np.zeros((), dtype=np.int8) if self.rest is None else self.rest.source
        for _, time in self.timed:
            worst = np.maximum(worst, once(time.source))
        return worst

    def mapped(self, change: Callable[[FloatArray], FloatArray]) -> Kernels:
        """The sums with every array replaced by what `change` makes of it."""
        sums = Sums(
            device_us=change(self.device_us),
            device_half_us=change(self.device_half_us),
            spread=self.spread.mapped(change),
            parts_us={part: change(time_us) for part, time_us in self.parts_us.items()},
            waits_us={code: change(time_us) for code, time_us in self.waits_us.items()},
            source=change(self.source.astype(np.float64)).astype(np.int8),
        )
        return Kernels(timed=(), rest=sums)

    def with_source(self, source: CodeArray) -> Kernels:
        """The sums with another source."""
        return Kernels(timed=(), rest=replace(self.sums, source=source))

    @property
    def sums(self) -> Sums:
        """All of them."""
        return Sums(
            device_us=self.device_us,
            device_half_us=self.device_half_us,
            spread=self.spread,
            parts_us=self.parts_us,
            waits_us=self.waits_us,
            source=self.source,
        )


def timed(latency: LatencyModel, runtime: Runtime, launches: Iterable[Launch]) -> Kernels:
    """The launches with their times."""
    pairs = ((launch, kernel_time(latency, runtime, launch)) for launch in launches)
    return Kernels(timed=tuple(sorted(pairs, key=lambda pair: pair[1].time_us.size)))


_SHARES: dict[Part, str] = {
    **dict.fromkeys(("qkv", "o_proj", "mlp"), "linear_share"),
    "attention": "attention_share",
    "exchange": "exchange_share",
}
"""Slices of a step whose kernels an engine's own take a share of, and the term that says how much."""


def kernel_time(latency: LatencyModel, runtime: Runtime, launch: Launch) -> OperatorTime:
    """One launch; a serving engine chooses tokens with kernels of its own and merges small ones."""
    operator, engine = launch.operator, runtime.engine
    if engine is None or runtime.local:
        return launch_time(latency, launch)
    if isinstance(operator, Elementwise) and operator.kind == "next_token":
        time_us = choice_us(engine, latency.gpu, operator.m, int(np.max(operator.n)))
        band = engine.sampling_bytes_per_logit.band
        known = Source.ROOFLINE if latency.name == "roofline" else Source.CALIBRATED
        return OperatorTime(
            time_us=time_us,
            low_us=time_us / (1.0 + band),
            high_us=time_us * (1.0 + band),
            bound=np.asarray(Bound.MEMORY, dtype=np.int8),
            source=np.asarray(known, dtype=np.int8),
        )
    time = launch_time(latency, launch)
    share, beside = launch.share * engine.kernels_share.value, 0.0
    if (own := _SHARES.get(launch.part)) is not None:
        share *= getattr(engine, own).value
    if isinstance(operator, Gemm) and operator.dtype == operator.stored_dtype == "fp8":
        beside = engine.quantise_us.value
    if isinstance(operator, Experts):
        share *= engine.experts_share.value
        is_spread = np.any(np.asarray(operator.local_experts) < np.asarray(operator.experts))
        beside = engine.expert_parallel_us_per_layer.value * float(is_spread)
        beside += engine.experts_us_per_layer.value
    if share == 1.0 and not beside:
        return time
    if share < 1.0 and isinstance(
        operator, Experts
    ):  # an engine's kernels read weights no faster than memory
        floor_us = roofline_time_us(latency.gpu, operator)
        return time.mapped(
            lambda kernel_us: np.maximum(share * kernel_us, np.minimum(kernel_us, floor_us)) + beside
        )
    return time.mapped(lambda kernel_us: share * kernel_us + beside)


def choice_us(engine: Engine, gpu: Gpu, rows: Size, vocab: int) -> FloatArray:
    """(N4): logits to fp32 and the largest of each row."""
    read = np.asarray(rows, dtype=np.float64) * vocab * engine.sampling_bytes_per_logit.value
    return engine.sampling_us.value + read / gpu.bandwidth_bytes_per_s * US_PER_S


def decomposed(latency: LatencyModel, launches: Iterable[Launch]) -> Iterator[Launch]:
    """The launches that the latency model has kernels of: instead of others what they are composed of."""
    for launch in launches:
        if launch.composed and known_time(latency, launch.operator) is None:
            yield from launch.composed
        else:
            yield launch


def launch_time(latency: LatencyModel, launch: Launch) -> OperatorTime:
    """One launch; verification of one token is the kernel of a plain step."""
    operator = launch.operator
    time = _widened(latency, launch, latency.time(operator))
    plain = operator.of_one_token
    if plain is None:
        return time
    is_one = np.equal(operator.sizes["q_len"], 1)
    if not is_one.any():
        return time
    return filled(time, launch_time(latency, replace(launch, operator=plain)), is_one)


def _widened(latency: LatencyModel, launch: Launch, time: OperatorTime) -> OperatorTime:
    """The time with the spread of an uncertain input in its band, beside that of the kernel."""
    if launch.ends is None:
        return time
    few, many = (latency.time(operator).time_us for operator in launch.ends)
    return replace(
        time,
        low_us=time.time_us - np.hypot(time.time_us - time.low_us, np.maximum(time.time_us - few, 0.0)),
        high_us=time.time_us + np.hypot(time.high_us - time.time_us, np.maximum(many - time.time_us, 0.0)),
    )
