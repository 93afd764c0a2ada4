"""Calibrated time of a linear layer: memory, tiles, waves, and the library's own choice of tile.

For every tile (tile_m x tile_n) and split s of the k loop that the library has (GemmKernel.tiles, .splits):

    x          = cluster ceil(m / (tile_m cluster)) ceil(n / tile_n) s / sms      thread blocks per SM
    waves      = w ceil(x) + (1 - w) x  for x > 1,  1 - contention (1 - x)  below
    arithmetic = 2 tile_m tile_n / (peak_fraction peak / sms)                     seconds per k element
    loads      = (tile_m b_x + tile_n b_w) / (load_ratio bandwidth / sms)
    slowdown   = 1 + throttle y / (y + throttle_us),  y = flops / peak            clocks under sustained load
    shared     = k (m ceil(n / tile_n) b_x + n ceil(m / tile_m) b_w) / (l2_ratio bandwidth)
    tiles      = |slowdown waves (k / s + tile_k) |arithmetic, loads|_step_norm, shared|_step_norm
    memory     = (activations + weights) / (bandwidth_fraction bandwidth)
    reduce     = split_us + 2 * 4 m n s / (load_ratio bandwidth)       where s > 1: fp32 partial sums
    drain      = drain_k |arithmetic, loads|_step_norm                 filling and draining that nothing hides
    time       = ramp + quantise + |memory, tiles|_memory_norm + drain + reduce

with w the wave_rounding. Some libraries have, and others leave out: `quantise`, a pass over the activations
before the product, (2 + b_x) m k / (quantise_ratio bandwidth); loads of rows beyond m, added to tiles:
ceil(n / tile_n) (rows - m) k b_x / (padding_ratio bandwidth); activations that are read again for every
column of tiles that a wave does not cover, once they exceed resident_share of L2.

|a, b|_p = (a^p + b^p)^(1/p), a smooth maximum that is never below max(a, b). The library takes the tile
and split with the least `time x reluctance`; the time can therefore fall with m only where that choice
changes, and on kernels that load padding also towards the end of a tile (SGLang's fp8 layers on Hopper: 129
tokens take 1.4 times as long as 256 where n and k are large).
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from medusa_sim.arrays import FloatArray, IntArray
from medusa_sim.latency.band import residual_band
from medusa_sim.latency.base import Bound, CodeArray, OperatorTime, Source
from medusa_sim.latency.waves import norm_max
from medusa_sim.operators.operator import Gemm
from medusa_sim.specs.gpu import Gpu
from medusa_sim.specs.kernels import GemmKernel
from medusa_sim.units import BYTES_PER_ELEMENT, US_PER_S

_FP32_BYTES = 4.0
_HALF_BYTES = 2.0
"""Outputs, and activations before they are quantised, have 16 bits at least."""
_RESIDENT_SHARPNESS = 4.0
"""Exponent of the change from activations that stay in L2 to activations that are read again."""
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
    chosen = gemm_choice(gpu, kernel, operator)
    times = _times(gpu, kernel, operator, (m, n, k), _candidates(kernel).taken(chosen), cold=cold)
    memory_is_longer = times.memory_us >= times.tiles_us
    bound = np.where(memory_is_longer, np.int8(Bound.MEMORY), np.int8(Bound.COMPUTE))
    bound = np.where(kernel.ramp_us > 0.5 * times.time_us, np.int8(Bound.LATENCY), bound).astype(np.int8)
    low, high = residual_band(kernel.fit.residuals, m)
    source: CodeArray = np.full(np.shape(times.time_us), Source.CALIBRATED, dtype=np.int8)
    return OperatorTime(
        time_us=times.time_us,
        low_us=times.time_us * low,
        high_us=times.time_us * high,
        bound=bound,
        source=source,
    )


def gemm_candidates_us(gpu: Gpu, kernel: GemmKernel, operator: Gemm, *, cold: bool = True) -> FloatArray:
    """Times of everything that the library could choose: shape (tiles x splits, *operator's shape).

    Tiles in the order of `kernel.tiles`, each with every split; infinite where the library does not use a
    tile. For fitting: `gemm_time` is the one of these with the least time x reluctance.
    """
    m, n, k = np.broadcast_arrays(*(np.asarray(size, dtype=np.float64) for size in _sizes(operator)))
    candidates = _candidates(kernel).before(m.ndim)
    times = _times(gpu, kernel, operator, (m, n, k), candidates, cold=cold)
    every: FloatArray = np.where(candidates.allowed(m, n), times.time_us, np.inf)
    return every


def gemm_chosen_us(
    gpu: Gpu, kernel: GemmKernel, operator: Gemm, chosen: IntArray, *, cold: bool = True
) -> FloatArray:
    """Times of given choices: `chosen` indexes the first axis of `gemm_candidates_us`, per shape."""
    m, n, k = np.broadcast_arrays(*(np.asarray(size, dtype=np.float64) for size in _sizes(operator)))
    return _times(gpu, kernel, operator, (m, n, k), _candidates(kernel).taken(chosen), cold=cold).time_us


def gemm_tile(gpu: Gpu, kernel: GemmKernel, operator: Gemm) -> tuple[IntArray, IntArray, IntArray]:
    """tile_m, tile_n and split of k that the library is expected to choose, for every shape.

    Raises SpecError where the GPU has no peak for the operator's dtype.
    """
    chosen = gemm_choice(gpu, kernel, operator)
    taken = _candidates(kernel).taken(chosen)
    return taken.tile_m.astype(np.int64), taken.tile_n.astype(np.int64), taken.split.astype(np.int64)


def _sizes(operator: Gemm) -> tuple[object, object, object]:
    return operator.m, operator.n, operator.k


@dataclass(frozen=True, slots=True)
class _Candidates:
    """Everything the library can choose: tiles, each with every split. Arrays of one shape."""

    tile_m: FloatArray
    tile_n: FloatArray
    split: FloatArray
    reluctance: FloatArray
    cluster: FloatArray
    loads_padding: FloatArray
    m_min: FloatArray
    m_max: FloatArray
    n_min: FloatArray
    n_max: FloatArray

    def taken(self, index: IntArray) -> _Candidates:
        """The candidates at `index`, in its shape."""
        return _Candidates(*(column[index] for column in self._columns()))

    def before(self, dimensions: int) -> _Candidates:
        """With `dimensions` axes of length 1 after the candidates' own, to broadcast against shapes."""
        shape = (-1, *(1 for _ in range(dimensions)))
        return _Candidates(*(column.reshape(shape) for column in self._columns()))

    def allowed(self, m: FloatArray, n: FloatArray) -> npt.NDArray[np.bool_]:
        """Whether the library uses the candidate at all for these m and n."""
        inside: npt.NDArray[np.bool_] = (
            (m >= self.m_min) & (m <= self.m_max) & (n >= self.n_min) & (n <= self.n_max)
        )
        return inside

    def _columns(self) -> tuple[FloatArray, ...]:
        return tuple(getattr(self, field.name) for field in fields(self))


def _candidates(kernel: GemmKernel) -> _Candidates:
    rows = [
        (
            *(tile.m, tile.n, split),
            tile.reluctance * (kernel.split_reluctance if split > 1 else 1.0),
            *(tile.cluster, tile.loads_padding),
            *(tile.m_min, tile.m_max or np.inf, tile.n_min, tile.n_max or np.inf),
        )
        for tile in kernel.tiles
        for split in kernel.splits
    ]
    return _Candidates(*np.asarray(rows, dtype=np.float64).T)


def gemm_choice(gpu: Gpu, kernel: GemmKernel, operator: Gemm) -> IntArray:
    """Index into the candidates (tiles x splits) that the library is expected to take, per shape.

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
    m, n, _ = sizes
    candidates = _candidates(kernel).before(len(np.broadcast_shapes(*(size.shape for size in sizes))))
    times = _times(gpu, kernel, operator, sizes, candidates)
    reluctant = np.where(candidates.allowed(m, n), times.time_us * candidates.reluctance, np.inf)
    best: IntArray = np.argmin(reluctant, axis=0)
    return best


def _times(
    gpu: Gpu,
    kernel: GemmKernel,
    operator: Gemm,
    sizes: tuple[FloatArray, FloatArray, FloatArray],
    candidate: _Candidates,
    *,
    cold: bool = True,
) -> _Times:
    m, n, k = sizes
    tile_m, tile_n, split = candidate.tile_m, candidate.tile_n, candidate.split
    x_bytes = BYTES_PER_ELEMENT[operator.dtype]
    w_bytes = BYTES_PER_ELEMENT[operator.weight_dtype or operator.dtype]
    bandwidth = gpu.bandwidth_bytes_per_s / US_PER_S
    peak = gpu.peak(operator.dtype) / US_PER_S
    load_bandwidth = kernel.load_ratio * bandwidth

    rows = candidate.cluster * np.ceil(m / (tile_m * candidate.cluster))
    columns = np.ceil(n / tile_n)
    per_sm = rows * columns * split / gpu.sms
    lone = 1.0 - kernel.contention * (1.0 - per_sm)
    several = kernel.wave_rounding * np.ceil(per_sm) + (1.0 - kernel.wave_rounding) * per_sm
    waves = np.where(per_sm <= 1.0, lone, several)
    arithmetic = 2.0 * tile_m * tile_n * gpu.sms / (kernel.peak_fraction * peak)
    loads = (tile_m * x_bytes + tile_n * w_bytes) * gpu.sms / load_bandwidth
    step = norm_max(arithmetic, loads, kernel.step_norm)
    tiles = _slowdown(kernel, 2.0 * m * n * k / peak) * waves * (k / split + kernel.tile_k) * step
    if kernel.l2_ratio:
        shared = k * (m * columns * x_bytes + n * rows * w_bytes) / (kernel.l2_ratio * bandwidth)
        tiles = norm_max(tiles, shared, kernel.step_norm)
    if kernel.padding_ratio:
        padding = columns * (rows * tile_m - m) * k * x_bytes / (kernel.padding_ratio * bandwidth)
        tiles = tiles + candidate.loads_padding * padding

    activations = m * k * x_bytes
    if kernel.resident_share:
        resident = kernel.resident_share * gpu.l2_bytes / activations
        again = np.maximum(1.0, columns / np.maximum(1.0, gpu.sms / rows)) - 1.0
        activations = activations * (1.0 + again / (1.0 + resident**_RESIDENT_SHARPNESS))
    weights = n * k * w_bytes
    is_hot = np.logical_and(not cold, weights <= kernel.hot_share * gpu.l2_bytes)
    weights = np.where(is_hot, weights / (kernel.hot_ratio or 1.0), weights / kernel.bandwidth_fraction)
    outputs = m * n * max(x_bytes, _HALF_BYTES)
    memory = ((activations + outputs) / kernel.bandwidth_fraction + weights) / bandwidth

    reduce = kernel.split_us + 2.0 * _FP32_BYTES * m * n * split / load_bandwidth
    time = kernel.ramp_us + norm_max(memory, tiles, kernel.memory_norm) + np.where(split > 1, reduce, 0.0)
    if kernel.drain_k:
        time = time + kernel.drain_k * step
    if kernel.quantise_ratio:
        time = time + m * k * (_HALF_BYTES + x_bytes) / (kernel.quantise_ratio * bandwidth)
    if is_hot.any():  # published rows that beat the datasheet's bandwidth were dropped at their source
        ideal = (n * k * w_bytes + m * (n + k) * x_bytes) / bandwidth
        time = np.where(is_hot, np.maximum(time, ideal), time)
    return _Times(time_us=time, memory_us=np.broadcast_to(memory, time.shape), tiles_us=tiles)


def _slowdown(kernel: GemmKernel, arithmetic_us: FloatArray) -> FloatArray:
    """Factor by which sustained arithmetic lowers the clocks; `arithmetic_us` at the peak."""
    return 1.0 + kernel.throttle * arithmetic_us / (arithmetic_us + kernel.throttle_us)
