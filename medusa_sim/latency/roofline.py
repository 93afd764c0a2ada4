"""The ideal roofline: max(FLOPs / peak, bytes / bandwidth). A floor, not a prediction."""

from __future__ import annotations

import numpy as np

from medusa_sim.arrays import FloatArray, as_float
from medusa_sim.gpus.gpu import Gpu
from medusa_sim.latency.operator_time import Bound, CodeArray, OperatorTime, Source
from medusa_sim.operators.operator import Operator
from medusa_sim.units import US_PER_S


def compute_time_us(gpu: Gpu, operator: Operator) -> FloatArray:
    """FLOPs / dense peak of the operator's dtype, us. Raises SpecError where the GPU lists no such peak."""
    return operator.flops * (US_PER_S / gpu.peak(operator.dtype))


def memory_time_us(gpu: Gpu, operator: Operator) -> FloatArray:
    """Bytes / datasheet bandwidth, us; of what is sent to other GPUs, at the link's, if that is longer."""
    memory_us: FloatArray = operator.bytes * (US_PER_S / gpu.bandwidth_bytes_per_s)
    sent = operator.link_bytes
    if sent is None:
        return memory_us
    return np.maximum(memory_us, sent / gpu.link_to(as_float(operator.peers)) * US_PER_S)


def roofline_time_us(gpu: Gpu, operator: Operator) -> FloatArray:
    """max(compute, memory), us: the time below which no kernel that reads from HBM can go."""
    return np.maximum(compute_time_us(gpu, operator), memory_time_us(gpu, operator))


def roofline_bound(gpu: Gpu, operator: Operator) -> CodeArray:
    """`Bound.MEMORY` where the bytes take as long as the FLOPs or longer, else `Bound.COMPUTE`."""
    memory_is_longer = memory_time_us(gpu, operator) >= compute_time_us(gpu, operator)
    return np.where(memory_is_longer, np.int8(Bound.MEMORY), np.int8(Bound.COMPUTE))


class RooflineLatency:
    """Every operator at the datasheet's limits. Low and high are the time itself: a bound has no error."""

    name = "roofline"

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu

    def time(self, operator: Operator) -> OperatorTime:
        """Roofline time of one launch, us. Raises SpecError where the GPU lists no peak for the dtype."""
        time_us = roofline_time_us(self.gpu, operator)
        return OperatorTime(
            time_us=time_us,
            low_us=time_us,
            high_us=time_us,
            bound=roofline_bound(self.gpu, operator),
            source=np.full(time_us.shape, Source.ROOFLINE, dtype=np.int8),
        )
