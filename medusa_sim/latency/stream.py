"""Calibrated time of kernels and modules that are told by what they move, compute and do in turn.

With B the datasheet's bandwidth, P its peak, and the classes of `operators.stream` (`StreamKernel` has the
other names):

    memory = sum over classes of bytes: loads x bytes / B                                               (F1)
    work   = sum over classes of FLOPs: work x FLOPs / P                                                (F2)
    turns  = sum over classes of steps: steps x count                                                   (F3)
    time   = ramp_us + |memory, work, turns|_norm                                                       (F4)

Every operator has one step `launch`: where rows are eager, the host's time runs beside the device's.

Left in L2 (`cold=False`) memory costs (1 - hit + hit / l2_ratio) as much, hit = 1 / (1 + (footprint /
(l2_fill L2))^l2_sharpness). On a GPU that borrows, bytes, FLOPs and waves are its own; only ramps and
coefficients are its relative's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from medusa_sim.arrays import FloatArray
from medusa_sim.latency.base import Bound, OperatorTime, Source, calibrated_time, less_certain
from medusa_sim.operators.recurrent import Recurrent
from medusa_sim.operators.stream import Stream
from medusa_sim.specs.gpu import Gpu
from medusa_sim.specs.inheritance import TRANSFER_ERROR
from medusa_sim.specs.stream_kernel import StreamKernel
from medusa_sim.units import US_PER_S

LAUNCH = "launch"
"""The step that every operator has once: what the host or a queue takes while the device works."""
_FAR_BEYOND = 1e3
_TINY = 1e-9


@dataclass(frozen=True, slots=True)
class Terms:
    """Classes of an operator on a GPU: bytes and FLOPs as microseconds at the datasheet's rates."""

    loads: dict[str, FloatArray]
    work: dict[str, FloatArray]
    steps: dict[str, FloatArray]
    footprint: FloatArray
    """Over the size of L2."""


def terms_of(gpu: Gpu, operator: Stream) -> Terms:
    """What (F1) to (F3) are sums of. Raises SpecError where the GPU has no peak for the operator's dtype."""
    byte_us, flop_us = US_PER_S / gpu.bandwidth_bytes_per_s, US_PER_S / gpu.peak(operator.dtype)
    return Terms(
        {name: moved * byte_us for name, moved in operator.loads.items()},
        {name: done * flop_us for name, done in operator.work.items()},
        {LAUNCH: np.ones(np.shape(operator.bytes)), **operator.steps(gpu.sms)},
        operator.footprint_bytes / gpu.l2_bytes,
    )


def parts_us(kernel: StreamKernel, terms: Terms, *, cold: bool) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Memory, work and turns (F1 to F3), us."""
    memory = _weighed(kernel.loads, terms.loads)
    if not cold:
        footprint = np.minimum(terms.footprint / kernel.l2_fill, _FAR_BEYOND)
        hit = 1.0 / (1.0 + footprint**kernel.l2_sharpness)
        memory = memory * (1.0 - hit + hit / kernel.l2_ratio)
    return memory, _weighed(kernel.work, terms.work), _weighed(kernel.steps, terms.steps)


def joined_us(kernel: StreamKernel, parts: tuple[FloatArray, FloatArray, FloatArray]) -> FloatArray:
    """The time of the parts (F4), us."""
    largest = np.maximum(np.maximum(*parts[:2]), np.maximum(parts[2], _TINY))
    shares = sum((part / largest) ** kernel.norm for part in parts)
    time_us: FloatArray = kernel.ramp_us + largest * shares ** (1.0 / kernel.norm)
    return time_us


def stream_time(
    gpu: Gpu, kernel: StreamKernel, operator: Stream, *, cold: bool = True, **_: object
) -> OperatorTime:
    """Time of one launch (of a module all of its launches) for every shape that `operator` holds.

    low and high are the 80 % band of held-out residuals, wider for the recurrence of Mamba-2, of which there
    are no rows. Raises SpecError where the GPU has no peak for the operator's dtype.
    """
    parts = parts_us(kernel, terms_of(gpu, operator), cold=cold)
    time_us = joined_us(kernel, parts)
    shape = time_us.shape
    memory_us, work_us, turns_us = (np.broadcast_to(part, shape) for part in parts)
    found = calibrated_time(
        gpu,
        [(kernel.fit, operator)],
        time_us,
        fixed_us=kernel.ramp_us + turns_us,
        memory_us=memory_us,
        work_us=work_us,
        work=Bound.COMPUTE,
    )
    unmeasured = isinstance(operator, Recurrent) and operator.kind == "mamba2" and operator.part == "state"
    return less_certain(found, TRANSFER_ERROR, Source.EXTRAPOLATED) if unmeasured else found


def _weighed(coefficients: dict[str, float], classes: dict[str, FloatArray]) -> FloatArray:
    """The sum of classes."""
    total: FloatArray = np.zeros(())
    for name, values in classes.items():
        total = total + coefficients.get(name, 0.0) * values
    return total
