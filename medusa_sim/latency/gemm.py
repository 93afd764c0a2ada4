"""Calibrated time of a linear layer: memory, tiles, waves, and the library's own choice of tile.

For every tile (tile_m x tile_n) and split s of the k loop that the library has (GemmKernel.tiles, .splits):

    ctas       = ceil(m / tile_m) ceil(n / tile_n) s          thread blocks
    waves      = ceil(ctas / sms)                             tiles that the busiest SM works through
    arithmetic = 2 tile_m tile_n / (peak_fraction peak / sms)           seconds per k element
    loads      = (min(m, tile_m) b_x + tile_n b_w) / (load_ratio bandwidth / sms)
    tiles      = waves (k / s + tile_k) |arithmetic, loads|_step_norm
    memory     = bytes / (bandwidth_fraction bandwidth)
    reduce     = split_us + 2 * 4 m n s / (load_ratio bandwidth)        where s > 1: fp32 partial sums
    time       = ramp + |memory, tiles|_memory_norm + reduce

with |a, b|_p = (a^p + b^p)^(1/p), a smooth maximum that is never below max(a, b). The library takes the tile
and split with the least `time x reluctance`; the time can therefore fall with m only where that choice
changes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from medusa_sim.latency.base import Bound, CodeArray, OperatorTime, Source
from medusa_sim.operators import FloatArray, Gemm
from medusa_sim.specs.gpu import Gpu
from medusa_sim.specs.kernels import GemmKernel, Residual
from medusa_sim.units import BYTES_PER_ELEMENT, US_PER_S

IntArray = npt.NDArray[np.int64]

_FP32_BYTES = 4.0
_CHOICE_STEP = 8
"""The library's choice is made at m rounded up to a multiple of this, the finest step of any tile."""


@dataclass(frozen=True, slots=True)
class _Times:
    """Microseconds of candidates' kernels: the whole, and the parts it is made of."""

    time_us: FloatArray
    memory_us: FloatArray
    tiles_us: FloatArray


def gemm_time(gpu: Gpu, kernel: GemmKernel, operator: Gemm, *, cold: bool = True) -> OperatorTime:
    """Time of one linear layer, for every shape it holds (the module's equations).

    Never below the cold roofline max(flops / peak, bytes / bandwidth) of the GPU. low and high are the
    80 % band of the held-out residuals (`kernel.fit.residuals`) for the range of m.
    Raises SpecError where the GPU has no peak for the operator's dtype.
    """
    m, n, k = np.broadcast_arrays(*(np.asarray(size, dtype=np.float64) for size in _sizes(operator)))
    chosen = _chosen(gpu, kernel, operator)
    tile_m, tile_n, split, _ = (column[chosen] for column in _candidates(kernel))
    times = _times(gpu, kernel, operator, (m, n, k), (tile_m, tile_n, split))
    memory_is_longer = times.memory_us >= times.tiles_us
    bound = np.where(memory_is_longer, np.int8(Bound.MEMORY), np.int8(Bound.COMPUTE))
    bound = np.where(kernel.ramp_us > 0.5 * times.time_us, np.int8(Bound.LATENCY), bound).astype(np.int8)
    low, high = _band(kernel.fit.residuals, m)
    source: CodeArray = np.full(np.shape(times.time_us), Source.CALIBRATED, dtype=np.int8)
    return OperatorTime(
        time_us=times.time_us,
        low_us=times.time_us * low,
        high_us=times.time_us * high,
        bound=bound,
        source=source,
    )


def gemm_tile(gpu: Gpu, kernel: GemmKernel, operator: Gemm) -> tuple[IntArray, IntArray, IntArray]:
    """tile_m, tile_n and split of k that the library is expected to choose, for every shape.

    Raises SpecError where the GPU has no peak for the operator's dtype.
    """
    chosen = _chosen(gpu, kernel, operator)
    tile_m, tile_n, split, _ = (column[chosen].astype(np.int64) for column in _candidates(kernel))
    return tile_m, tile_n, split


def _sizes(operator: Gemm) -> tuple[object, object, object]:
    return operator.m, operator.n, operator.k


def _candidates(kernel: GemmKernel) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """tile_m, tile_n, split and reluctance of everything the library can choose: shape (candidates,)."""
    rows = [(tile.m, tile.n, split, tile.reluctance) for tile in kernel.tiles for split in kernel.splits]
    table = np.asarray(rows, dtype=np.float64)
    return table[:, 0], table[:, 1], table[:, 2], table[:, 3]


def _chosen(gpu: Gpu, kernel: GemmKernel, operator: Gemm) -> IntArray:
    """Index of the chosen candidate, in the operator's broadcast shape.

    One layer at many m is the common question, so the candidates are compared once per distinct step of m.
    """
    m, n, k = (np.asarray(size, dtype=np.float64) for size in _sizes(operator))
    rounded = _CHOICE_STEP * np.ceil(m / _CHOICE_STEP)
    if n.size == 1 and k.size == 1:
        steps, inverse = np.unique(rounded, return_inverse=True)
        best = _best(gpu, kernel, operator, (steps, n.reshape(()), k.reshape(())))
        shape = np.broadcast_shapes(m.shape, n.shape, k.shape)
        return np.broadcast_to(best[inverse].reshape(m.shape), shape)
    return _best(gpu, kernel, operator, (rounded, n, k))


def _best(
    gpu: Gpu, kernel: GemmKernel, operator: Gemm, sizes: tuple[FloatArray, FloatArray, FloatArray]
) -> IntArray:
    shape = np.broadcast_shapes(*(size.shape for size in sizes))
    tile_m, tile_n, split, reluctance = (
        column.reshape(-1, *(1 for _ in shape)) for column in _candidates(kernel)
    )
    times = _times(gpu, kernel, operator, sizes, (tile_m, tile_n, split))
    best: IntArray = np.argmin(times.time_us * reluctance, axis=0)
    return best


def _times(
    gpu: Gpu,
    kernel: GemmKernel,
    operator: Gemm,
    sizes: tuple[FloatArray, FloatArray, FloatArray],
    candidate: tuple[FloatArray, FloatArray, FloatArray],
) -> _Times:
    m, n, k = sizes
    tile_m, tile_n, split = candidate
    x_bytes = BYTES_PER_ELEMENT[operator.dtype]
    w_bytes = BYTES_PER_ELEMENT[operator.weight_dtype or operator.dtype]
    bandwidth = gpu.bandwidth_bytes_per_s / US_PER_S
    peak = gpu.peak(operator.dtype) / US_PER_S
    load_bandwidth = kernel.load_ratio * bandwidth

    waves = np.ceil(np.ceil(m / tile_m) * np.ceil(n / tile_n) * split / gpu.sms)
    arithmetic = 2.0 * tile_m * tile_n * gpu.sms / (kernel.peak_fraction * peak)
    loads = (np.minimum(m, tile_m) * x_bytes + tile_n * w_bytes) * gpu.sms / load_bandwidth
    tiles = waves * (k / split + kernel.tile_k) * _smooth_max(arithmetic, loads, kernel.step_norm)
    memory = (n * k * w_bytes + m * (n + k) * x_bytes) / (kernel.bandwidth_fraction * bandwidth)
    reduce = kernel.split_us + 2.0 * _FP32_BYTES * m * n * split / load_bandwidth
    time = kernel.ramp_us + _smooth_max(memory, tiles, kernel.memory_norm) + np.where(split > 1, reduce, 0.0)
    return _Times(time_us=time, memory_us=np.broadcast_to(memory, time.shape), tiles_us=tiles)


def _smooth_max(first: FloatArray, second: FloatArray, norm: float) -> FloatArray:
    """(a^p + b^p)^(1/p), written on the ratio so that large values do not overflow."""
    larger, smaller = np.maximum(first, second), np.minimum(first, second)
    smooth: FloatArray = larger * (1.0 + (smaller / larger) ** norm) ** (1.0 / norm)
    return smooth


def _band(residuals: tuple[Residual, ...], m: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Low and high factor of the range that each m lies in; beyond the last range its factors are kept."""
    edges = np.asarray([residual.size_max for residual in residuals])
    index = np.minimum(np.searchsorted(edges, m), len(edges) - 1)
    low = np.asarray([residual.low for residual in residuals])[index]
    high = np.asarray([residual.high for residual in residuals])[index]
    return low, high
