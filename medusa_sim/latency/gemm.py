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
    time       = fixed + quantise + |memory, tiles|_memory_norm + reduce,  fixed = ramp + drain          (G9)

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

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from medusa_sim.arrays import FloatArray, IntArray, as_float
from medusa_sim.gpus.gpu import Gpu
from medusa_sim.gpus.kernels import GemmKernel
from medusa_sim.latency.bands import KernelParts, calibrated_time
from medusa_sim.latency.operator_time import OperatorTime
from medusa_sim.latency.tile_choice import KnownChoices, among_allowed, cheapest, wave_cost
from medusa_sim.latency.tiles import Candidates, candidates_before, candidates_of, taken
from medusa_sim.latency.waves import norm_max, shared_waves
from medusa_sim.operators.gemm import Gemm
from medusa_sim.units import BYTES_PER_ELEMENT, US_PER_S

_FP32_BYTES = 4.0
_HALF_BYTES = 2.0
"""Outputs, and activations before they are quantised, have 16 bits at least."""
_RESIDENT_SHARPNESS = 4.0
"""Exponent of the change from activations that stay in L2 to activations that are read again."""
_HOT_OVERFLOW = 0.1
"""Share by which weights that take turns may exceed L2 until none is found there any more."""
_PACED_ROWS = 128.0
"""Rows of the tiles whose pace is known from two rows of them alone (`_Layer.pace`)."""
_CHOICE_STEP = 8
"""The library's choice is made at m rounded up to a multiple of this, the finest step of any tile."""


def gemm_time(
    gpu: Gpu, kernel: GemmKernel, operator: Gemm, *, cold: bool = True, form: str = ""
) -> OperatorTime:
    """Time of one linear layer, for every shape it holds (the module's equations).

    low and high are the 80 % band of the held-out residuals (`kernel.fit.residuals`) for the range of m.
    form: numeric format that the kernel was fitted in, empty: the operator's arithmetic.
    Raises SpecError where the GPU has no peak for the operator's dtype.
    """
    sizes = as_float(operator.m), as_float(operator.n), as_float(operator.k)
    chosen = gemm_choice(gpu, kernel, operator)
    parts = _Layer.of(gpu, kernel, operator, sizes).parts(candidates_of(kernel), chosen, cold=cold)
    return calibrated_time(gpu, [(kernel.fit, operator)], parts, form=form)


def gemm_candidates_us(gpu: Gpu, kernel: GemmKernel, operator: Gemm, *, cold: bool = True) -> FloatArray:
    """Times of everything that the library could choose: shape (tiles x splits, *operator's shape).

    Tiles in the order of `kernel.tiles`, each with every split; infinite where the library does not use a
    tile. For fitting: `gemm_time` is the one of these with the least time x selection penalty.
    """
    layer = _Layer.of(gpu, kernel, operator, _sizes(operator))
    candidates = candidates_before(kernel, layer.m.ndim)
    parts = layer.parts(candidates, cold=cold)
    return among_allowed(kernel, candidates, (layer.m, layer.n), parts.time_us)


def gemm_chosen_us(
    gpu: Gpu, kernel: GemmKernel, operator: Gemm, chosen: IntArray, *, cold: bool = True
) -> FloatArray:
    """Times of given choices: `chosen` indexes the first axis of `gemm_candidates_us`, per shape."""
    layer = _Layer.of(gpu, kernel, operator, _sizes(operator))
    return layer.parts(candidates_of(kernel), chosen, cold=cold).time_us


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
    least = _Layer.of(gpu, kernel, operator, single).parts(rough, smooth=False).time_us
    bound = among_allowed(kernel, before, (m, n), least * rough.selection_penalty)
    every = candidates_of(kernel)

    def cost(index: IntArray, place: IntArray | slice) -> FloatArray:
        """(G10)."""
        picked_sizes: Any = tuple(size[place] if size.ndim else size for size in sizes)
        time_us = _Layer.of(gpu, kernel, operator, picked_sizes).parts(every, index).time_us
        return time_us * taken(every.selection_penalty, index)

    return cheapest(bound, cost)


@dataclass(frozen=True, slots=True)
class _Layer:
    """Linear layers of one kernel, whose parts of time are functions of a tile.

    rows, columns: tiles over m (in clusters) and over n.
    """

    gpu: Gpu
    kernel: GemmKernel
    m: FloatArray
    n: FloatArray
    k: FloatArray
    x_bytes: float
    """Of an element of activations."""
    w_bytes: float
    """The same of weights."""
    bandwidth: float
    """Bytes a microsecond, by the datasheet."""
    peak: float
    """FLOPs a microsecond, the same."""

    @classmethod
    def of(
        cls,
        gpu: Gpu,
        kernel: GemmKernel,
        operator: Gemm,
        sizes: tuple[FloatArray, FloatArray, FloatArray],
    ) -> _Layer:
        """Layers of an operator's dtypes, with sizes of their own. Raises SpecError without a peak for it."""
        x_bytes, w_bytes = BYTES_PER_ELEMENT[operator.dtype], BYTES_PER_ELEMENT[operator.stored_dtype]
        bandwidth, peak = gpu.bandwidth_bytes_per_s / US_PER_S, gpu.peak(operator.dtype) / US_PER_S
        return cls(gpu, kernel, *sizes, x_bytes, w_bytes, bandwidth, peak)

    @property
    def weight_bytes(self) -> FloatArray:
        """Bytes of the weights."""
        return self.n * self.k * self.w_bytes

    @property
    def load_bandwidth(self) -> float:
        """At which all SMs together load tiles."""
        return self.kernel.load_ratio * self.bandwidth

    def parts(
        self,
        candidates: Candidates,
        chosen: IntArray | None = None,
        *,
        cold: bool = True,
        smooth: bool = True,
    ) -> KernelParts:
        """Of every candidate, or of those chosen, one a shape (G9).

        smooth=False: max(a, b) for |a, b| of parts, a lower bound that takes no powers. What few axes know is
        put together first: with all candidates at many m few arrays are large.
        """
        longer = norm_max if smooth else _larger
        tile, step_us = candidates, self.step_us(candidates)
        if chosen is not None:
            tile, step_us = candidates.taken(chosen), taken(step_us, chosen)
        rows = tile.cluster * np.ceil(self.m / (tile.tile_m * tile.cluster))
        columns = np.ceil(self.n / tile.tile_n)

        hot = np.zeros((), self.m.dtype) if cold else self.hot_share
        tiles_us = self.tiles_us(tile, step_us, rows, columns, longer)
        memory_us = self.memory_us(rows, columns, hot)
        fixed_us = self.fixed_us(step_us)
        beside_us = fixed_us + self.quantise_us()
        time_us = longer(memory_us, tiles_us, self.kernel.memory_norm) + beside_us + self.reduce_us(tile)
        if not self.kernel.hot_copies and hot.any():  # rows that beat the datasheet's bandwidth were dropped
            floor_us = (self.weight_bytes + self.m * (self.n + self.k) * self.x_bytes) / self.bandwidth
            time_us = np.where(hot > 0.0, np.maximum(time_us, floor_us), time_us)
        return KernelParts(time_us, fixed_us, np.broadcast_to(memory_us, time_us.shape), tiles_us)

    def step_us(self, tile: Candidates) -> FloatArray:
        """An element of k of one tile on an SM: |arithmetic, loads| (G3, G15)."""
        kernel, sms = self.kernel, self.gpu.sms
        arithmetic = (
            2.0 * (tile.tile_m + kernel.unpack_rows) * tile.tile_n / (kernel.peak_fraction * self.peak)
        )
        loads = (tile.tile_m * self.x_bytes + tile.tile_n * self.w_bytes) / self.load_bandwidth
        return norm_max(arithmetic * sms, loads * sms, kernel.step_norm)

    def tiles_us(
        self,
        tile: Candidates,
        step_us: FloatArray,
        rows: FloatArray,
        columns: FloatArray,
        longer: Callable[[FloatArray, FloatArray, float], FloatArray],
    ) -> FloatArray:
        """All waves of tiles: rows times columns of them, of each split (G1 to G6, G12, G17)."""
        kernel, per_sm = self.kernel, rows * columns * (tile.split / self.gpu.sms)
        waves = shared_waves(per_sm, kernel.contention, kernel.wave_rounding)
        ideal_us = 2.0 * self.m * self.n * self.k / self.peak
        slowdown = 1.0 + kernel.throttle * ideal_us / (ideal_us + kernel.throttle_us)
        tiles = waves * ((self.k / tile.split + kernel.tile_k) * step_us) * slowdown
        if tile.has_paces:
            tiles = tiles * self.pace(tile, rows, columns)
        if kernel.l2_ratio:
            loaded = self.m * columns * self.x_bytes + self.n * rows * self.w_bytes
            tiles = longer(tiles, self.k * loaded / (kernel.l2_ratio * self.bandwidth), kernel.step_norm)
        if kernel.padding_ratio:
            padded = columns * (rows * tile.tile_m - self.m) * self.k * self.x_bytes
            tiles = tiles + tile.loads_padding * (padded / (kernel.padding_ratio * self.bandwidth))
        return tiles

    def memory_us(self, rows: FloatArray, columns: FloatArray, hot: FloatArray) -> FloatArray:
        """Activations and weights, of which the share `hot` lies in L2 (G7, G13, G14)."""
        kernel = self.kernel
        read = hot / (kernel.hot_ratio or 1.0) + (1.0 - hot) / kernel.bandwidth_fraction
        streamed = self.activation_bytes(rows, columns)
        streamed = streamed + self.m * self.n * max(self.x_bytes, _HALF_BYTES)
        return (streamed / kernel.bandwidth_fraction + self.weight_bytes * read) / self.bandwidth

    def fixed_us(self, step_us: FloatArray) -> FloatArray:
        """Start and end of the kernel: ramp, filling and draining (G9, G16)."""
        kernel = self.kernel
        ramp = np.where(self.m <= kernel.vector_rows, kernel.vector_ramp_us, kernel.ramp_us).astype(
            self.m.dtype
        )
        return ramp + kernel.drain_k * step_us if kernel.drain_k else ramp

    def quantise_us(self) -> FloatArray | float:
        """A pass over the activations before the product (G11); 0 of libraries without."""
        if not self.kernel.quantise_ratio:
            return 0.0
        passed = self.m * self.k * (_HALF_BYTES + self.x_bytes)
        return passed / (self.kernel.quantise_ratio * self.bandwidth)

    def reduce_us(self, tile: Candidates) -> FloatArray:
        """Sums of splits of k, none where it is not split (G8)."""
        sums = (2.0 * _FP32_BYTES * self.n / self.load_bandwidth) * self.m * tile.split
        return (tile.split > 1) * (self.kernel.split_us + sums)

    def pace(self, tile: Candidates, rows: FloatArray, columns: FloatArray) -> FloatArray:
        """The tile's own factor: of several waves, of one, and of one whose last row is half empty.

        Nobody measured a single row of 128-row tiles in one wave (n of 16,897 to 33,792 at 65 to 128 rows):
        the factor of two full ones would be 3.3 to 3.9, and steps say that it is not.
        """
        is_alone = rows * columns * tile.split <= self.gpu.sms
        is_full = rows * tile.tile_m - self.m < tile.tile_m / 2.0
        is_full &= (rows > 1.0) | (tile.tile_m != _PACED_ROWS)
        alone = np.where(is_full, tile.pace_alone, tile.pace_half)
        return np.asarray(tile.pace + is_alone * (alone - tile.pace))

    @property
    def hot_share(self) -> FloatArray:
        """Share of the weights that a benchmark's repetitions find in L2.

        All of what fits `hot_share` of L2 and nothing of more; where it takes turns with `hot_copies` copies
        of the weights (or as many as fill L2), all where the copies fit, falling to nothing where they
        overflow L2 by a tenth.
        """
        kernel, weights = self.kernel, self.weight_bytes
        room = kernel.hot_share * self.gpu.l2_bytes
        if not kernel.hot_copies:
            return np.where(weights <= room, 1.0, 0.0)
        copies = np.minimum(kernel.hot_copies, np.ceil(self.gpu.l2_bytes / weights))
        return np.asarray(np.clip(1.0 - (copies * weights / room - 1.0) / _HOT_OVERFLOW, 0.0, 1.0))

    def activation_bytes(self, rows: FloatArray, columns: FloatArray) -> FloatArray:
        """Activations, read again for each column of tiles beyond a wave once they outgrow L2."""
        kernel, once = self.kernel, self.m * self.k * self.x_bytes
        if not kernel.resident_share:
            return once
        resident = kernel.resident_share * self.gpu.l2_bytes / once
        again = np.maximum(1.0, columns / np.maximum(1.0, self.gpu.sms / rows)) - 1.0
        return once * (1.0 + again / (1.0 + resident**_RESIDENT_SHARPNESS))


def _larger(first: FloatArray, second: FloatArray, norm: float) -> FloatArray:
    """A bound of `norm_max` of any norm."""
    del norm
    return np.maximum(first, second)
