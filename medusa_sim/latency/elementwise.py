"""Calibrated time of norms, rope, activation, residual add and embedding: kernels that only move bytes.

One block works through one row of n elements. With b the bytes read and written (`ElementwiseKernel` has
the other names), and fair = bandwidth / sms the share of the bandwidth of one SM:

    load    = m / sms                                                      rows of one SM
    row(a)  = b / m / (row_ratio fair) (1 + sharing (a - 1))               a rows at once on an SM      (E1)
    memory  = b / (bandwidth_fraction bandwidth)                                                        (E2)
    time    = ramp_us + floor(load / c) |row(c), memory c / load| + |row(a), memory a' / load|          (E3)
              c = rows_per_sm; a' = load mod c, a = ceil(a') rows in the last wave

with |a, b| = sqrt(a^2 + b^2), a smooth maximum. Up to `serial_rows` rows an embedding look-up gathers one row
after another: time = ramp_us + serial_row_us m (E4); the time falls where the library leaves that kernel.

Left in L2 (`cold=False`) bytes cost (1 - hit + hit / l2_ratio) as much, hit = 1 / (1 + (b / (l2_fill
L2))^l2_sharpness). Most public rows are whole microseconds, so a time of 1 or 2 us is known to a half only.
"""

from __future__ import annotations

import numpy as np

from medusa_sim.arrays import FloatArray
from medusa_sim.latency.band import residual_band
from medusa_sim.latency.base import Bound, CodeArray, OperatorTime, Source
from medusa_sim.latency.roofline import memory_time_us
from medusa_sim.latency.waves import l2_hit, waves_us
from medusa_sim.operators.operator import Elementwise
from medusa_sim.specs.gpu import Gpu
from medusa_sim.specs.kernels import ElementwiseKernel
from medusa_sim.units import US_PER_S


def elementwise_time(
    gpu: Gpu, kernel: ElementwiseKernel, operator: Elementwise, *, cold: bool = True
) -> OperatorTime:
    """Time of one launch for every (m, n) that `operator` holds (E1 to E4).

    cold: operands come from HBM, and the time is never below bytes / bandwidth. low and high are the
    80 % band of held-out residuals for the range of m.
    """
    memory = operator.bytes * _byte_us(gpu, kernel, operator, cold=cold)
    m = np.broadcast_to(np.asarray(operator.m, dtype=np.float64), memory.shape)
    fair_us = US_PER_S * gpu.sms / gpu.bandwidth_bytes_per_s
    row_us = operator.bytes / m * (fair_us / kernel.row_ratio)
    body, rows_us = waves_us(m / gpu.sms, kernel.rows_per_sm, kernel.sharing, (0.0, row_us), memory)
    if kernel.serial_rows > 0:
        is_serial = m <= kernel.serial_rows
        body = np.where(is_serial, kernel.serial_row_us * m, body)
        rows_us = np.where(is_serial, body, rows_us)
    time_us = kernel.ramp_us + body
    if cold:
        time_us = np.maximum(time_us, memory_time_us(gpu, operator))
    bound = np.where(memory >= rows_us, np.int8(Bound.MEMORY), np.int8(Bound.LATENCY))
    bound = np.where(kernel.ramp_us > 0.5 * time_us, np.int8(Bound.LATENCY), bound).astype(np.int8)
    source: CodeArray = np.full(np.shape(time_us), Source.CALIBRATED, dtype=np.int8)
    low, high = residual_band(kernel.fit.residuals, m)
    return OperatorTime(
        time_us=time_us, low_us=time_us * low, high_us=time_us * high, bound=bound, source=source
    )


def _byte_us(gpu: Gpu, kernel: ElementwiseKernel, operator: Elementwise, *, cold: bool) -> FloatArray:
    """Microseconds a byte, from HBM or from L2 (E2)."""
    hbm_us = US_PER_S / (kernel.bandwidth_fraction * gpu.bandwidth_bytes_per_s)
    if cold:
        return np.asarray(hbm_us)
    footprint = operator.bytes / (kernel.l2_fill * gpu.l2_bytes)
    hit = l2_hit(footprint, kernel.l2_sharpness)
    result: FloatArray = hbm_us * (1.0 - hit + hit / kernel.l2_ratio)
    return result
