"""Calibrated time of an unfused attention product, QK^T or PV: `batch x heads` independent small GEMMs.

    moved      = b n_kv s d + b n (q d + s q)   elements, in bytes: what crosses the memory bus          (P2)
    resident   = max(0, 1 - moved / L2)         share left in L2 by the repetition before                (P3)
    memory     = moved ((1 - resident) / (bandwidth_fraction bandwidth) + resident / (l2_ratio bandwidth))
    arithmetic = 2 b n q' s d / (peak_fraction peak)    q' = q filled up to whole tiles of rows          (P4)
    time       = ramp + |memory, arithmetic|_norm                                                      (P5)

with |a, b|_p = (a^p + b^p)^(1/p). Symbols as in Table 5 of the Medusa paper (arXiv 2401.10774): b sequences,
s keys, q queries, n query heads (n_kv of them with their own K and V), head dimension d. A product is a GEMM
of q rows, and the library fills a tile of 64 or 128 rows whether they are needed or not: the step from 64 to
80 candidates in Table 6. One row (q = 1) is another kernel, a batched vector product: no tile, a ramp of its
own.

The rows that this is fitted to time one operator alone, over and over, so part of small operands is still in
L2. The paper's simulated block adds up such times, which makes that share part of a step of its runtime too
(`UnfusedKernel.repeated`); any other kernel has it only where `cold` is false.
"""

from __future__ import annotations

import numpy as np

from medusa_sim.arrays import FloatArray, as_float
from medusa_sim.gpus.gpu import Gpu
from medusa_sim.gpus.kernels import UnfusedKernel
from medusa_sim.latency.bands import KernelParts, calibrated_time
from medusa_sim.latency.operator_time import OperatorTime
from medusa_sim.latency.waves import norm_max
from medusa_sim.operators.attention import Attention
from medusa_sim.units import US_PER_S


def unfused_attention_time(
    gpu: Gpu, kernel: UnfusedKernel, operator: Attention, *, cold: bool = True
) -> OperatorTime:
    """Time of one QK^T or PV product, for every shape it holds (P2 to P5).

    Both products move and compute the same amounts, so both take the same time. low and high are the
    80 % band of the held-out residuals, by q_len x batch. Raises SpecError where the GPU has no peak
    for the operator's dtype.
    """
    queries = as_float(operator.q_len)
    one_row = queries == 1.0
    ramp_us = np.where(one_row, kernel.vector_ramp_us, kernel.ramp_us)
    memory_us = _memory_us(gpu, kernel, operator, repeated=kernel.repeated or not cold)
    padding = np.where(one_row, 0.0, filled_rows(kernel.row_tiles, queries) / queries)
    arithmetic_us = operator.flops * padding / (kernel.peak_fraction * gpu.peak(operator.dtype)) * US_PER_S
    time_us = ramp_us + norm_max(memory_us, arithmetic_us, kernel.norm)
    parts = KernelParts(time_us, ramp_us, memory_us, arithmetic_us)
    return calibrated_time(gpu, [(kernel.fit, operator)], parts)


def filled_rows(row_tiles: tuple[int, ...], queries: FloatArray) -> FloatArray:
    """Rows that the tiles hold: the smallest tile that takes all `queries`, else whole largest tiles."""
    tiles = np.sort(np.asarray(row_tiles, dtype=np.float64))
    tile = tiles[np.minimum(np.searchsorted(tiles, queries), len(tiles) - 1)]
    filled: FloatArray = tile * np.ceil(queries / tile)
    return filled


def _memory_us(gpu: Gpu, kernel: UnfusedKernel, operator: Attention, *, repeated: bool) -> FloatArray:
    moved = operator.bytes
    bandwidth = gpu.bandwidth_bytes_per_s / US_PER_S
    resident = np.maximum(0.0, 1.0 - moved / gpu.l2_bytes) if repeated else np.zeros_like(moved)
    from_memory = (1.0 - resident) / kernel.bandwidth_fraction
    from_l2 = resident / kernel.l2_ratio
    time_us: FloatArray = moved / bandwidth * (from_memory + from_l2)
    return time_us
