"""Calibrated time of linear layers and attention on a processor that overlaps nothing: a CPU.

A thread reads weights, then computes, then writes; so times add up where a GPU's overlap. With the names of
`SerialGemm`, b_x and b_w the bytes of an element of activations and weights:

    time = ramp + n k b_w / (bandwidth_fraction bandwidth) + 2 m n k / (peak_fraction peak)
           + m (n + k) b_x / (activation_ratio bandwidth)                                               (S1)

with the fractions of the range of m that m lies in. CPU libraries have a kernel that streams weights for a
row or two, one for a few rows, and one that packs weights into tiles first: the last is dear to start and
far faster a row, so that 16 rows can cost less than 8, and the time falls with m where the library changes.

Attention walks over the keys of every query head, whether heads share them or not. With the names of
`SerialAttention`, few and many as (bandwidth_fraction, peak_fraction):

    line(f, p) = batch heads kv_len head_dim (2 b / (f bandwidth cached) + 4 q_len / (p peak))
    time       = ramp + batch heads (head_us + query_us q_len) + min(line(few), line(many))             (S2)

cached is cached_ratio where K and V have at most cached_bytes, else 1.
"""

from __future__ import annotations

import numpy as np

from medusa_sim.arrays import FloatArray, as_float
from medusa_sim.gpus.fitted import Fit
from medusa_sim.gpus.gpu import Gpu
from medusa_sim.gpus.kernels import SerialAttention, SerialGemm, SerialLine
from medusa_sim.latency.bands import KernelParts, calibrated_time
from medusa_sim.latency.operator_time import OperatorTime
from medusa_sim.latency.roofline import roofline_time_us
from medusa_sim.operators.attention import Attention
from medusa_sim.operators.gemm import Gemm
from medusa_sim.operators.operator import Operator
from medusa_sim.units import BYTES_PER_ELEMENT, US_PER_S


def serial_gemm_time(gpu: Gpu, kernel: SerialGemm, operator: Gemm) -> OperatorTime:
    """Time of one linear layer, for every shape it holds (S1), never below the roofline.

    low and high are the 80 % band of held-out residuals for the range of m. Raises SpecError where the
    device has no peak for the operator's dtype.
    """
    m, n, k = np.broadcast_arrays(*(as_float(size) for size in (operator.m, operator.n, operator.k)))
    ends = np.asarray([line.m_max or np.inf for line in kernel.ranges])
    place = np.searchsorted(ends, m)
    bandwidth, peak = _rates(gpu, operator.dtype)
    x_bytes = BYTES_PER_ELEMENT[operator.dtype]
    w_bytes = BYTES_PER_ELEMENT[operator.stored_dtype]
    fractions = np.asarray([(line.bandwidth_fraction, line.peak_fraction) for line in kernel.ranges])
    memory = n * k * w_bytes / (fractions[place, 0] * bandwidth)
    memory = memory + m * (n + k) * x_bytes / (kernel.activation_ratio * bandwidth)
    arithmetic = 2.0 * m * n * k / (fractions[place, 1] * peak)
    return _serial_time(gpu, operator, kernel.fit, kernel.ramp_us, memory, arithmetic)


def serial_attention_time(gpu: Gpu, kernel: SerialAttention, operator: Attention) -> OperatorTime:
    """Time of a fused attention kernel, for every shape it holds (S2), never below the roofline.

    low and high are the 80 % band of held-out residuals for the range of q_len x batch. Raises SpecError
    where the device has no peak for the operator's dtype.
    """
    batch, q_len, kv_len = (as_float(size) for size in (operator.batch, operator.q_len, operator.kv_len))
    rows = batch * as_float(operator.heads)
    walked = rows * kv_len * as_float(operator.head_dim)
    rates = _rates(gpu, operator.dtype)
    cached = np.where(operator.kv_bytes <= kernel.cached_bytes, kernel.cached_ratio, 1.0)
    element = BYTES_PER_ELEMENT[operator.dtype]

    def memory_and_arithmetic(line: SerialLine) -> tuple[FloatArray, FloatArray]:
        memory = 2.0 * walked * element / (line.bandwidth_fraction * rates[0] * cached)
        return memory, 4.0 * q_len * walked / (line.peak_fraction * rates[1])

    few, many = memory_and_arithmetic(kernel.few), memory_and_arithmetic(kernel.many)
    takes_few = few[0] + few[1] <= many[0] + many[1]
    memory, arithmetic = (np.where(takes_few, a, b) for a, b in zip(few, many, strict=True))
    fixed = kernel.ramp_us + rows * (kernel.head_us + kernel.query_us * q_len)
    return _serial_time(gpu, operator, kernel.fit, fixed, memory, arithmetic)


def _serial_time(
    gpu: Gpu,
    operator: Operator,
    fit: Fit,
    fixed_us: FloatArray | float,
    memory_us: FloatArray,
    arithmetic_us: FloatArray,
) -> OperatorTime:
    time_us = np.maximum(fixed_us + memory_us + arithmetic_us, roofline_time_us(gpu, operator))
    parts = KernelParts(time_us, fixed_us, memory_us, arithmetic_us)
    return calibrated_time(gpu, [(fit, operator)], parts)


def _rates(gpu: Gpu, dtype: str) -> tuple[float, float]:
    """Bytes and flops a microsecond."""
    return gpu.bandwidth_bytes_per_s / US_PER_S, gpu.peak(dtype) / US_PER_S
