"""Calibrated time of a linear layer: memory, tiles, waves, and the library's own choice of tile.

For every tile (tile_m x tile_n) and split s of the k loop that the library has (`GemmKernel` has the other
names; b_x and b_w are bytes of an element of activations and weights):

    x          = cluster ceil(m / (tile_m cluster)) ceil(n / tile_n) s / sms      thread blocks per SM    (G1)
    waves      = w ceil(x) + (1 - w) x  for x > 1,  1 - contention (1 - x)  below                         (G2)
    arithmetic = 2 (tile_m + unpack_rows) tile_n / (peak_fraction peak / sms)     s per k element    (G3, G15)
    loads      = (tile_m b_x + tile_n b_w) / (load_ratio bandwidth / sms)                                 (G3)
    slowdown   = 1 + throttle y / (y + throttle_us),  y = flops / peak            clocks under load       (G4)
    shared     = k (m ceil(n / tile_n) b_x + n ceil(m / tile_m) b_w) / (l2_ratio bandwidth)               (G5)
    tiles      = |slowdown waves (k / s + tile_k) |arithmetic, loads|_step_norm, shared|_step_norm        (G6)
    memory     = (activations + weights) / (bandwidth_fraction bandwidth)                                 (G7)
    reduce     = split_us + 8 m n s / (load_ratio bandwidth)       where s > 1: fp32 partial sums         (G8)
    drain      = drain_k |arithmetic, loads|_step_norm                 filling and draining that nothing hides
    time       = ramp + quantise + |memory, tiles|_memory_norm + drain + reduce                           (G9)

with w the wave_rounding and |a, b|_p = (a^p + b^p)^(1/p), a smooth maximum that is never below max(a, b).

In numbers: gate and up of an 8B (n = 28,672, k = 4,096) in bf16 on an H100. 1,024 tokens are 8 x 112 tiles
of 128 x 256, 6.8 thread blocks an SM: tiles take 313 us, memory 106, both 314, and with 3.3 us to start the
layer takes 318. 64 tokens are 224 tiles of 64 x 128: tiles 22 us, memory 84, the layer 87.

Some libraries have, and others leave out: `quantise`, a pass over the activations before the product,
(2 + b_x) m k / (quantise_ratio bandwidth) (G11); loads of rows beyond m, added to tiles, ceil(n / tile_n)
(rows - m) k b_x / (padding_ratio bandwidth) (G12); activations that are read again for every column of tiles
that a wave does not cover, once they exceed resident_share of L2 (G13); weights that a benchmark left in L2
(G14); a kernel of vector products for few rows (G16); a pace of each tile, a factor on tiles, with values of
its own where all tiles fit one wave (G17).

The library takes the tile and split with the least time x penalty (G10), or (`fewest_waves`, G17) the tile
with the fewest waves, the fullest last one and the least padding, as DeepGEMM does. So the time can fall with
m only where that choice changes, and on kernels that load padding also towards the end of a tile (SGLang's
fp8 layers on Hopper: 129 tokens take 1.4 times as long as 256 where n and k are large).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from medusa_sim.arrays import FloatArray, IntArray, as_float
from medusa_sim.latency.base import OperatorTime, calibrated_time
from medusa_sim.latency.tile_choice import KnownChoices, among_allowed, cheapest, wave_cost
from medusa_sim.latency.tiles import Candidates, candidates_before, candidates_of, taken
from medusa_sim.latency.waves import norm_max, shared_waves
from medusa_sim.operators.gemm import Gemm
from medusa_sim.specs.gpu import Gpu
from medusa_sim.specs.kernels import GemmKernel
from medusa_sim.units import BYTES_PER_ELEMENT, US_PER_S

_FP32_BYTES = 4.0
_HALF_BYTES = 2.0
"""Outputs, and activations before they are quantised, have 16 bits at least."""
_RESIDENT_SHARPNESS = 4.0
"""Exponent of the change from activations that stay in L2 to activations that are read again."""
_HOT_OVERFLOW = 0.1
"""Share by which weights that take turns may exceed L2 until none is found there any more."""
_PACED_ROWS = 128.0
"""Rows of the tiles whose pace is known from two rows of them alone (`_pace`)."""
_CHOICE_STEP = 8
"""The library's choice is made at m rounded up to a multiple of this, the finest step of any tile."""


@dataclass(frozen=True, slots=True)
class _Times:
    """Microseconds of candidates' kernels: the whole, and the parts it is made of."""

    time_us: FloatArray
    memory_us: FloatArray
    tiles_us: FloatArray


def gemm_time(
    gpu: Gpu, kernel: GemmKernel, operator: Gemm, *, cold: bool = True, form: str = ""
) -> OperatorTime:
    """Time of one linear layer, for every shape it holds (the module's equations).

    low and high are the 80 % band of the held-out residuals (`kernel.fit.residuals`) for the range of m.
    form: numeric format that the kernel was fitted in, empty: the operator's arithmetic.
    Raises SpecError where the GPU has no peak for the operator's dtype.
    """
    m, n, k = (as_float(size) for size in (operator.m, operator.n, operator.k))
    chosen = gemm_choice(gpu, kernel, operator)
    times = _times(gpu, kernel, operator, (m, n, k), candidates_of(kernel), chosen, cold=cold)
    return calibrated_time(
        gpu,
        [(kernel.fit, operator)],
        times.time_us,
        fixed_us=kernel.ramp_us,
        memory_us=times.memory_us,
        work_us=times.tiles_us,
        form=form,
    )


def gemm_candidates_us(gpu: Gpu, kernel: GemmKernel, operator: Gemm, *, cold: bool = True) -> FloatArray:
    """Times of everything that the library could choose: shape (tiles x splits, *operator's shape).

    Tiles in the order of `kernel.tiles`, each with every split; infinite where the library does not use a
    tile. For fitting: `gemm_time` is the one of these with the least time x selection penalty.
    """
    m, n, k = _sizes(operator)
    candidates = candidates_before(kernel, m.ndim)
    times = _times(gpu, kernel, operator, (m, n, k), candidates, cold=cold)
    return among_allowed(kernel, candidates, (m, n), times.time_us)


def gemm_chosen_us(
    gpu: Gpu, kernel: GemmKernel, operator: Gemm, chosen: IntArray, *, cold: bool = True
) -> FloatArray:
    """Times of given choices: `chosen` indexes the first axis of `gemm_candidates_us`, per shape."""
    return _times(gpu, kernel, operator, _sizes(operator), candidates_of(kernel), chosen, cold=cold).time_us


def _sizes(operator: Gemm) -> tuple[FloatArray, FloatArray, FloatArray]:
    """m, n, k in one shape."""
    m, n, k = np.broadcast_arrays(as_float(operator.m), as_float(operator.n), as_float(operator.k))
    return m, n, k


def gemm_choice(gpu: Gpu, kernel: GemmKernel, operator: Gemm) -> IntArray:
    """Index into the candidates (tiles x splits) that the library is expected to take, per shape.

    One layer at many m is the common question, so the candidates are compared once per distinct step of m.
    """
    m, n, k = (as_float(size) for size in (operator.m, operator.n, operator.k))
    steps = np.ceil(m / _CHOICE_STEP)
    if n.size > 1 or k.size > 1:
        steps, n, k = np.broadcast_arrays(steps, n, k)
        sizes = (_CHOICE_STEP * steps.ravel(), n.ravel(), k.ravel())
        return _best(gpu, kernel, operator, sizes).reshape(steps.shape)
    layer = replace(operator, name="", m=0, n=float(n.flat[0]), k=float(k.flat[0]))
    shape = np.broadcast_shapes(m.shape, n.shape, k.shape)
    return np.broadcast_to(_choices(gpu, kernel, layer).at(steps), shape)


@lru_cache(maxsize=256)
def _choices(gpu: Gpu, kernel: GemmKernel, layer: Gemm) -> KnownChoices:
    """What is known of a layer, by step of m."""
    n, k = as_float(layer.n), as_float(layer.k)
    return KnownChoices(lambda steps: _best(gpu, kernel, layer, (_CHOICE_STEP * steps, n, k)))


def _best(
    gpu: Gpu, kernel: GemmKernel, operator: Gemm, sizes: tuple[FloatArray, FloatArray, FloatArray]
) -> IntArray:
    """(M,) candidates of M layers in one row (`cheapest`)."""
    before, (m, n, _) = candidates_before(kernel), sizes
    if kernel.fewest_waves:
        waves: IntArray = among_allowed(kernel, before, (m, n), wave_cost(gpu, before, m, n)).argmin(axis=0)
        return waves
    single: Any = tuple(size.astype(np.float32) for size in sizes)
    rough = candidates_before(kernel, kind=np.float32)
    least = _times(gpu, kernel, operator, single, rough, smooth=False).time_us
    bound = among_allowed(kernel, before, (m, n), least * rough.selection_penalty)
    every = candidates_of(kernel)

    def cost(index: IntArray, place: IntArray | slice) -> FloatArray:
        """(G10)."""
        own: Any = tuple(size[place] if size.ndim else size for size in sizes)
        time_us = _times(gpu, kernel, operator, own, every, index).time_us
        return time_us * taken(every.selection_penalty, index)

    return cheapest(bound, cost)


def _times(
    gpu: Gpu,
    kernel: GemmKernel,
    operator: Gemm,
    sizes: tuple[FloatArray, FloatArray, FloatArray],
    candidates: Candidates,
    chosen: IntArray | None = None,
    *,
    cold: bool = True,
    smooth: bool = True,
) -> _Times:
    """Of every candidate, or of those chosen, one a shape.

    smooth=False: max(a, b) for |a, b| of parts, a lower bound that takes no powers. What few axes know is put
    together first: with all candidates at many m few arrays are large.
    """
    (m, n, k), longer = sizes, norm_max if smooth else _larger
    x_bytes, w_bytes = BYTES_PER_ELEMENT[operator.dtype], BYTES_PER_ELEMENT[operator.stored_dtype]
    bandwidth, peak = gpu.bandwidth_bytes_per_s / US_PER_S, gpu.peak(operator.dtype) / US_PER_S
    load_bandwidth = kernel.load_ratio * bandwidth
    tile = candidates
    arithmetic = 2.0 * (tile.tile_m + kernel.unpack_rows) * tile.tile_n / (kernel.peak_fraction * peak)
    loads = (tile.tile_m * x_bytes + tile.tile_n * w_bytes) / load_bandwidth
    step = norm_max(arithmetic * gpu.sms, loads * gpu.sms, kernel.step_norm)
    if chosen is not None:
        tile, step = candidates.taken(chosen), taken(step, chosen)
    rows = tile.cluster * np.ceil(m / (tile.tile_m * tile.cluster))
    columns = np.ceil(n / tile.tile_n)

    waves = shared_waves(rows * columns * (tile.split / gpu.sms), kernel.contention, kernel.wave_rounding)
    ideal = 2.0 * m * n * k / peak
    slowdown = 1.0 + kernel.throttle * ideal / (ideal + kernel.throttle_us)
    tiles = waves * ((k / tile.split + kernel.tile_k) * step) * slowdown
    if tile.has_paces:
        tiles = tiles * _pace(gpu, tile, rows, columns, m)
    if kernel.l2_ratio:
        loaded = m * columns * x_bytes + n * rows * w_bytes
        tiles = longer(tiles, k * loaded / (kernel.l2_ratio * bandwidth), kernel.step_norm)
    if kernel.padding_ratio:
        padded = columns * (rows * tile.tile_m - m) * k * x_bytes
        tiles = tiles + tile.loads_padding * (padded / (kernel.padding_ratio * bandwidth))

    weights = n * k * w_bytes
    hot = np.zeros((), m.dtype) if cold else _hot_share(gpu, kernel, weights)
    read = weights * (hot / (kernel.hot_ratio or 1.0) + (1.0 - hot) / kernel.bandwidth_fraction)
    streamed = _activation_bytes(gpu, kernel, m * k * x_bytes, rows, columns)
    streamed = streamed + m * n * max(x_bytes, _HALF_BYTES)
    memory = (streamed / kernel.bandwidth_fraction + read) / bandwidth

    fixed = np.where(m <= kernel.vector_rows, kernel.vector_ramp_us, kernel.ramp_us).astype(m.dtype)
    if kernel.drain_k:
        fixed = fixed + kernel.drain_k * step
    if kernel.quantise_ratio:
        fixed = fixed + m * k * (_HALF_BYTES + x_bytes) / (kernel.quantise_ratio * bandwidth)
    sums = (2.0 * _FP32_BYTES * n / load_bandwidth) * m * tile.split
    time = longer(memory, tiles, kernel.memory_norm) + fixed + (tile.split > 1) * (kernel.split_us + sums)
    if not kernel.hot_copies and hot.any():  # rows that beat the datasheet's bandwidth were dropped there
        floor = (weights + m * (n + k) * x_bytes) / bandwidth
        time = np.where(hot > 0.0, np.maximum(time, floor), time)
    return _Times(time_us=time, memory_us=np.broadcast_to(memory, time.shape), tiles_us=tiles)


def _larger(first: FloatArray, second: FloatArray, norm: float) -> FloatArray:
    """A bound of `norm_max` of any norm."""
    del norm
    return np.maximum(first, second)


def _pace(gpu: Gpu, tile: Candidates, rows: FloatArray, columns: FloatArray, m: FloatArray) -> FloatArray:
    """The tile's own factor: in several waves, or in one whose last row of tiles is over half full or not.

    Nobody measured a single row of 128-row tiles in one wave (n of 16,897 to 33,792 at 65 to 128 rows):
    the factor of two full ones would be 3.3 to 3.9, and steps say that it is not.
    """
    is_alone = rows * columns * tile.split <= gpu.sms
    is_full = rows * tile.tile_m - m < tile.tile_m / 2.0
    is_full &= (rows > 1.0) | (tile.tile_m != _PACED_ROWS)
    alone = np.where(is_full, tile.pace_alone, tile.pace_half)
    return np.asarray(tile.pace + is_alone * (alone - tile.pace))


def _hot_share(gpu: Gpu, kernel: GemmKernel, weights: FloatArray) -> FloatArray:
    """Share of the weights that a benchmark's repetitions find in L2.

    All of what fits `hot_share` of L2 and nothing of more; where it takes turns with `hot_copies` copies of
    the weights (or as many as fill L2), all where the copies fit, falling to nothing where they overflow L2
    by a tenth.
    """
    room = kernel.hot_share * gpu.l2_bytes
    if not kernel.hot_copies:
        return np.where(weights <= room, 1.0, 0.0)
    copies = np.minimum(kernel.hot_copies, np.ceil(gpu.l2_bytes / weights))
    return np.asarray(np.clip(1.0 - (copies * weights / room - 1.0) / _HOT_OVERFLOW, 0.0, 1.0))


def _activation_bytes(
    gpu: Gpu, kernel: GemmKernel, once: FloatArray, rows: FloatArray, columns: FloatArray
) -> FloatArray:
    """Activations, read again for every column of tiles that a wave does not cover once they outgrow L2."""
    if not kernel.resident_share:
        return once
    resident = kernel.resident_share * gpu.l2_bytes / once
    again = np.maximum(1.0, columns / np.maximum(1.0, gpu.sms / rows)) - 1.0
    return once * (1.0 + again / (1.0 + resident**_RESIDENT_SHARPNESS))
