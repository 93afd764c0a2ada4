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

Left in L2 (`cold=False`) bytes cost less (`waves.left_in_l2`). Most public rows are whole microseconds, so a
time of 1 or 2 us is known to a half only.
"""

from __future__ import annotations

import numpy as np

from medusa_sim.arrays import as_float
from medusa_sim.gpus.gpu import Gpu
from medusa_sim.gpus.kernels import ElementwiseKernel
from medusa_sim.latency.bands import KernelParts, calibrated_time
from medusa_sim.latency.operator_time import Bound, OperatorTime
from medusa_sim.latency.roofline import memory_time_us
from medusa_sim.latency.waves import byte_us, waves_us
from medusa_sim.operators.elementwise import Elementwise
from medusa_sim.units import US_PER_S


def elementwise_time(
    gpu: Gpu, kernel: ElementwiseKernel, operator: Elementwise, *, cold: bool = True
) -> OperatorTime:
    """Time of one launch for every (m, n) that `operator` holds (E1 to E4).

    cold: operands come from HBM, and the time is never below bytes / bandwidth. low and high are the
    80 % band of held-out residuals for the range of m.
    """
    moved = operator.bytes
    memory = moved * byte_us(gpu, kernel, moved, cold=cold)
    m = np.broadcast_to(as_float(operator.m), memory.shape)
    fair_us = US_PER_S * gpu.sms / gpu.bandwidth_bytes_per_s
    row_us = moved / m * (fair_us / kernel.row_ratio)
    body, rows_us = waves_us(
        m / gpu.sms, kernel.rows_per_sm, kernel.sharing, (0.0, row_us), memory * (gpu.sms / m)
    )
    if kernel.serial_rows > 0:
        is_serial = m <= kernel.serial_rows
        body = np.where(is_serial, kernel.serial_row_us * m, body)
        rows_us = np.where(is_serial, body, rows_us)
    time_us = kernel.ramp_us + body
    if cold:
        time_us = np.maximum(time_us, memory_time_us(gpu, operator))
    parts = KernelParts(time_us, kernel.ramp_us, memory, rows_us)
    return calibrated_time(gpu, [(kernel.fit, operator)], parts, work=Bound.LATENCY)
