"""Calibrated time of kernels and modules by their classes of bytes, FLOPs and steps in turn.

With B the datasheet's bandwidth, P its peak, and the classes of `operators.stream` (`StreamKernel` has the
other names):

    memory = sum over classes of bytes: loads x bytes / B                                               (F1)
    work   = sum over classes of FLOPs: work x FLOPs / P                                                (F2)
    turns  = sum over classes of steps: steps x count                                                   (F3)
    device = |memory, work, turns|_norm
    time   = |ramp_us + device, host_us + host_share device|_8                                          (F4)

host_us runs beside the device's time, but for what it waits for on the way. Of eager rows it is the host's,
which a step leaves to its runtime (`is_eager`). Elsewhere a graph was replayed, and it is the shortest time
of the kernel itself, whose blocks all start at once: it stays in a step. A GB200 tells them apart, a B200
with another host: floors beyond 100 us are 1.4 to 2.1 times as long there, shorter ones are equal.

Left in L2 (`cold=False`) memory costs less (`waves.left_in_l2`). On a GPU that borrows, bytes, FLOPs and
waves are its own; only ramps and coefficients are its relative's.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np

from medusa_sim.arrays import BoolArray, FloatArray, as_float
from medusa_sim.gpus.gpu import Gpu
from medusa_sim.gpus.inheritance import GRACE, TRANSFER_ERROR, TRANSFER_ERROR_HOST
from medusa_sim.gpus.kernels import StreamKernel
from medusa_sim.latency.bands import KernelParts, calibrated_time, less_certain
from medusa_sim.latency.operator_time import OperatorTime, Source
from medusa_sim.latency.roofline import roofline_time_us
from medusa_sim.latency.waves import left_in_l2, norm_max
from medusa_sim.operators.operator import GENERATION
from medusa_sim.operators.recurrent import Recurrent
from medusa_sim.operators.sparse import Sparse
from medusa_sim.operators.stream import HOST_STEP, Stream
from medusa_sim.units import US_PER_S

_HOST_NORM = 8.0
_EAGER_US = 100.0
"""A longer floor is of eager rows, whose ramp holds some of the host too; a shorter one is the kernel's."""
_HOST_MARGIN = 1.3
_START_US = 5.0
"""Start of one kernel, without its host."""
_TINY = 1e-9


@dataclass(frozen=True, slots=True)
class Terms:
    """Classes of an operator on a GPU: bytes and FLOPs as microseconds at the datasheet's rates."""

    loads: dict[str, FloatArray]
    work: dict[str, FloatArray]
    steps: dict[str, FloatArray]
    footprint: dict[str, FloatArray]
    """By class, over the size of L2."""
    tokens: FloatArray
    """New ones, the operator's size."""


def terms_of(gpu: Gpu, operator: Stream) -> Terms:
    """What (F1) to (F3) are sums of. Raises SpecError where the GPU has no peak for the operator's dtype."""
    byte_us, flop_us = US_PER_S / gpu.bandwidth_bytes_per_s, US_PER_S / gpu.peak(operator.dtype)
    return Terms(
        {name: moved * byte_us for name, moved in operator.loads.items()},
        {name: done * flop_us for name, done in operator.work.items()},
        dict(operator.steps(gpu.sms)),
        {name: kept / gpu.l2_bytes for name, kept in operator.footprint.items()},
        operator.size,
    )


def parts_us(kernel: StreamKernel, terms: Terms, *, cold: bool) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Memory, work and turns (F1 to F3), us."""
    memory = _weighed(kernel.loads, terms.loads)
    if not cold:
        moved = {name: min(kernel.loads.get(name, 1.0), 1.0) for name in terms.footprint}
        memory = memory * left_in_l2(kernel, _weighed(moved, terms.footprint))
    return memory, _weighed(kernel.work, terms.work), _weighed(kernel.steps, terms.steps)


def joined_us(
    kernel: StreamKernel, parts: tuple[FloatArray, FloatArray, FloatArray], tokens: FloatArray
) -> FloatArray:
    """The time of the parts (F4), us; tokens: the operator's size."""
    largest = np.maximum(np.maximum(*parts[:2]), np.maximum(parts[2], _TINY))
    shares = sum((part / largest) ** kernel.norm for part in parts)
    device_us: FloatArray = largest * shares ** (1.0 / kernel.norm)
    replayed_us = kernel.ramp_us + device_us
    if not kernel.host_us:
        return replayed_us
    launched_us = norm_max(replayed_us, kernel.host_us + kernel.host_share * device_us, _HOST_NORM)
    return np.where(tokens > kernel.graph_tokens, launched_us, replayed_us)


def is_eager(kernel: StreamKernel) -> bool:
    """Whether `host_us` is a host's: of rows beyond those that replay a graph, or too long for a kernel."""
    return kernel.graph_tokens > 0 or kernel.host_us > _EAGER_US


def is_host_bound(gpu: Gpu, kernel: StreamKernel, operator: Stream) -> BoolArray:
    """Shapes of an engine's eager path whose time, as measured, is mostly the host's."""
    terms = terms_of(gpu, operator.as_run(gpu.architecture))
    time_us = joined_us(kernel, parts_us(kernel, terms, cold=False), terms.tokens)
    waits = (terms.tokens > kernel.graph_tokens) & (time_us < _HOST_MARGIN * kernel.host_us)
    return np.asarray(waits & is_eager(kernel))


def stream_time(gpu: Gpu, kernel: StreamKernel, operator: Stream, *, cold: bool = True) -> OperatorTime:
    """Time of one launch (of a module all of its launches) for every shape that `operator` holds.

    low and high are the 80 % band of held-out residuals, wider for the recurrence of Mamba-2, of which there
    are no rows, and for several queries in a plain step's module of sparse attention. cold: as in a step,
    whose host a runtime prices; else rows as they were measured, with their host. Raises SpecError where the
    GPU has no peak for the operator's dtype.
    """
    terms = terms_of(gpu, operator.as_run(gpu.architecture))
    start_us = _START_US * operator.LAUNCHES
    if cold and (is_eager(kernel) or kernel.ramp_us > start_us):  # a fit may leave a host in the ramp
        steps = kernel.steps | {HOST_STEP: 0.0}
        ramp_us = min(kernel.ramp_us, start_us)
        kernel = msgspec.structs.replace(kernel, host_us=0.0, ramp_us=ramp_us, steps=steps)
    parts = parts_us(kernel, terms, cold=cold)
    time_us = joined_us(kernel, parts, terms.tokens)
    if cold:  # coefficients fitted on one chip may be less than another's peak or memory allows
        time_us = np.maximum(time_us, roofline_time_us(gpu, operator))
    memory_us, work_us, turns_us = (np.broadcast_to(part, time_us.shape) for part in parts)
    kernel_parts = KernelParts(time_us, kernel.ramp_us + turns_us, memory_us, work_us)
    time = calibrated_time(gpu, [(kernel.fit, operator)], kernel_parts)
    if not cold and kernel.host_us and kernel.fit.is_borrowed(gpu.name):  # a host belongs to no GPU
        is_other = (kernel.fit.lender in GRACE) != (gpu.name in GRACE)
        waits = is_host_bound(gpu, kernel, operator)
        time = less_certain(time, TRANSFER_ERROR_HOST[is_other], Source.BORROWED, waits)
    if isinstance(operator, Recurrent) and operator.kind == "mamba2" and operator.part == "state":
        return less_certain(time, TRANSFER_ERROR, Source.EXTRAPOLATED)
    if isinstance(operator, Sparse) and operator.phase == GENERATION:
        return less_certain(time, TRANSFER_ERROR, Source.EXTRAPOLATED, as_float(operator.q_len) > 1.0)
    return time


def _weighed(coefficients: dict[str, float], classes: dict[str, FloatArray]) -> FloatArray:
    """The sum of classes."""
    total: FloatArray = np.zeros(())
    for name, values in classes.items():
        total = total + coefficients.get(name, 0.0) * values
    return total
