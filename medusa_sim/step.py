"""Kernels and a runtime -> the time of one step, its breakdown and what it waits for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from medusa_sim.drafter import Drafter, DraftWork, acceptance_launches
from medusa_sim.latency.base import Bound, CodeArray, LatencyModel, OperatorTime
from medusa_sim.operators import FloatArray, Size
from medusa_sim.specs.model import Model
from medusa_sim.specs.runtime import Runtime
from medusa_sim.workload import Launch, Part, Scope, decode, prefill, step_launches, verify


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What stays the same over a grid: the model, how it is run, and what drafts for it.

    depth: the longest path of drafts, which sizes the cache compaction.
    """

    latency: LatencyModel
    model: Model
    runtime: Runtime
    scope: Scope
    drafter: Drafter
    depth: int = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Time of one step for every shape of a grid, microseconds.

    time_us, low_us, high_us: the step and its 80 % band. parts_us: kernel time by slice, each in the
    smallest shape that holds it. launch_us: what launching adds to the kernels. host_us: the time the
    host needs to launch them; the step takes the longer of the two. bound, source: `Bound` and
    `Source` codes of the step as a whole.
    """

    time_us: FloatArray
    low_us: FloatArray
    high_us: FloatArray
    parts_us: dict[Part, FloatArray]
    launch_us: float
    host_us: float
    bound: CodeArray
    source: CodeArray


class _Sum:
    """Running sums over launches, kept apart by shape so that a small array is not broadcast early."""

    def __init__(self) -> None:
        self._by_shape: dict[tuple[int, ...], FloatArray] = {}

    def add(self, value: FloatArray) -> None:
        held = self._by_shape.get(value.shape)
        self._by_shape[value.shape] = value if held is None else held + value

    def total(self) -> FloatArray:
        total = np.zeros(())
        for value in sorted(self._by_shape.values(), key=lambda array: array.size):
            total = total + value
        return total


def _time_work(
    latency: LatencyModel, work: Sequence[DraftWork]
) -> tuple[list[tuple[Launch, OperatorTime]], float, float]:
    """Each launch with its time, then the launch gaps on the device and the time of the host, us."""
    timed: list[tuple[Launch, OperatorTime]] = []
    launch_us = host_us = 0.0
    for phase in work:
        kernels = sum(launch.count for launch in phase.launches)
        launch_us += kernels * phase.runtime.launch_us
        host_us += kernels * phase.runtime.host_us_per_launch + phase.runtime.host_us_per_step
        timed += [(launch, latency.time(launch.operator)) for launch in phase.launches]
    return timed, launch_us, host_us


def step_time(latency: LatencyModel, work: Sequence[DraftWork]) -> StepTime:
    """Time of kernels launched one after another.

    device = sum of kernel times + launches x launch_us; a host-bound runtime takes max(device, host).
    The band adds the half-widths of different kernels in quadrature (their residuals are taken as
    independent) and those of one kernel repeated in every layer linearly.
    """
    timed, launch_us, host_us = _time_work(latency, work)
    parts: dict[Part, FloatArray] = {}
    below, above = _Sum(), _Sum()
    waits: dict[Bound, _Sum] = {code: _Sum() for code in Bound}
    source: CodeArray = np.zeros((), dtype=np.int8)
    for launch, time in timed:
        kernel_us = launch.count * time.time_us
        held = parts.get(launch.part)
        parts[launch.part] = kernel_us if held is None else held + kernel_us
        below.add((launch.count * (time.time_us - time.low_us)) ** 2)
        above.add((launch.count * (time.high_us - time.time_us)) ** 2)
        for code in (Bound.MEMORY, Bound.COMPUTE, Bound.LATENCY):
            waits[code].add(np.where(time.bound == code, kernel_us, 0.0))
        source = np.maximum(source, time.source)
    kernels = _Sum()
    for part_us in parts.values():
        kernels.add(part_us)
    device_us = kernels.total() + launch_us
    time_us = np.maximum(device_us, host_us)
    waits[Bound.LATENCY].add(np.asarray(launch_us))
    bound = _dominant_bound(device_us, host_us, waits)
    return StepTime(
        time_us=time_us,
        low_us=np.maximum(device_us - np.sqrt(below.total()), host_us),
        high_us=np.maximum(device_us + np.sqrt(above.total()), host_us),
        parts_us=parts,
        launch_us=launch_us,
        host_us=host_us,
        bound=bound,
        source=source,
    )


def _dominant_bound(device_us: FloatArray, host_us: float, waits: dict[Bound, _Sum]) -> CodeArray:
    """What takes the largest share of the step; the host where the device waits for it."""
    memory_us, compute_us = waits[Bound.MEMORY].total(), waits[Bound.COMPUTE].total()
    latency_us = waits[Bound.LATENCY].total()
    on_device = np.where(compute_us > memory_us, np.int8(Bound.COMPUTE), np.int8(Bound.MEMORY))
    on_device = np.where(latency_us > np.maximum(memory_us, compute_us), np.int8(Bound.LATENCY), on_device)
    return np.where(host_us > device_us, np.int8(Bound.HOST), on_device).astype(np.int8)


def decode_step(setting: Setting, batch: Size, seq_len: Size) -> StepTime:
    """One plain decoding step: no drafter, no tree. Arrays of batch and seq_len broadcast."""
    launches = step_launches(setting.model, decode(batch, seq_len), setting.runtime, setting.scope)
    return step_time(setting.latency, [DraftWork(launches=launches, runtime=setting.runtime)])


def prefill_step(setting: Setting, batch: Size, seq_len: Size) -> StepTime:
    """The whole prompt of `seq_len` tokens at once."""
    launches = step_launches(setting.model, prefill(batch, seq_len), setting.runtime, setting.scope)
    return step_time(setting.latency, [DraftWork(launches=launches, runtime=setting.runtime)])


def verify_step(setting: Setting, batch: Size, seq_len: Size, candidates: Size) -> StepTime:
    """One speculative step: drafting, verification of `candidates` tokens, acceptance.

    Scope `block` has the verification alone, as the paper's simulation does. At one candidate this
    still drafts: use `decode_step` for plain decoding.
    """
    model, runtime = setting.model, setting.runtime
    workload = verify(batch, seq_len, candidates)
    launches = step_launches(model, workload, runtime, setting.scope)
    if setting.scope == "block":
        return step_time(setting.latency, [DraftWork(launches=launches, runtime=runtime)])
    launches = (*launches, *acceptance_launches(model, workload, setting.depth))
    drafting = setting.drafter.work(model, workload, runtime)
    inline = [launch for phase in drafting if phase.runtime is runtime for launch in phase.launches]
    apart = [phase for phase in drafting if phase.runtime is not runtime]
    verification = DraftWork(launches=(*launches, *inline), runtime=runtime)
    return step_time(setting.latency, [verification, *apart])
