"""Calibrated time of a fused layer of experts: weights of the woken ones, tiles of rows, passes over rows.

With t tokens, r = `rows` (token, expert) pairs, u = `hit` experts, and for each of the two grouped products
(n, k) = (first_width, hidden), then (hidden, inter); b_x, b_w bytes of an element of activations and weights:

    blocks     = r_M / M ceil(n / N) / sms            thread blocks an SM; r_M: rows padded to tiles of M
    waves      = w ceil(x) + (1 - w) x  for x > 1,  1 - contention (1 - x)  below,  x = blocks
    arithmetic = 2 M N sms / (peak_fraction peak)                               for each k element of a tile
    loads      = (M b_x + N b_w) sms / (load_ratio bandwidth)
    slowdown   = 1 + throttle y / (y + throttle_us),  y = flops / peak          clocks under sustained load
    tiles      = slowdown waves (k + tile_k) |arithmetic, loads|_step_norm
    memory     = u n k b_w / (bandwidth_fraction bandwidth)
    product    = |memory, tiles|_memory_norm
    passes     = 2 (2 t h + r (h + n_1 + i + h)) / (activation_ratio bandwidth)   16-bit activations
    time       = ramp_us + expert_us E + token_us t + pair_us r + passes + both products

The library takes the tile M x N with the least time x reluctance, one for both products.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from medusa_sim.arrays import FloatArray, IntArray, as_float
from medusa_sim.latency.base import OperatorTime, calibrated_time
from medusa_sim.latency.roofline import roofline_time_us
from medusa_sim.latency.waves import norm_max
from medusa_sim.operators.experts import Experts
from medusa_sim.specs.expert_kernel import ExpertKernel, ExpertTile
from medusa_sim.specs.gpu import Gpu
from medusa_sim.units import BYTES_PER_ELEMENT, US_PER_S

_HALF_BYTES = 2.0


@dataclass(frozen=True, slots=True)
class _Times:
    """Microseconds: the whole, and its parts."""

    time_us: FloatArray
    memory_us: FloatArray
    tiles_us: FloatArray


def experts_time(
    gpu: Gpu, kernel: ExpertKernel, operator: Experts, *, cold: bool = True, form: str = ""
) -> OperatorTime:
    """Time of a layer of experts for every shape it holds, never below the roofline of its union.

    low and high are the 80 % band of held-out residuals for the range of tokens. cold: nothing here depends
    on it, since weights of any layer exceed what L2 keeps. form: format that the kernel was fitted in.
    Raises SpecError where the GPU has no peak for the operator's arithmetic.
    """
    del cold
    fixed_us = fixed_time_us(gpu, kernel, operator)
    every = tile_times(gpu, kernel, operator)
    reluctant = [each.time_us * tile.reluctance for each, tile in zip(every, kernel.tiles, strict=True)]
    chosen = np.argmin(np.stack(reluctant), axis=0)
    time_us = fixed_us + _taken([time.time_us for time in every], chosen)
    return calibrated_time(
        gpu,
        [(kernel.fit, operator)],
        np.maximum(time_us, roofline_time_us(gpu, operator)),
        fixed_us=fixed_us,
        memory_us=_taken([time.memory_us for time in every], chosen),
        work_us=_taken([time.tiles_us for time in every], chosen),
        form=form,
    )


def fixed_time_us(gpu: Gpu, kernel: ExpertKernel, operator: Experts) -> FloatArray:
    """What does not depend on the tile: launches, sorting, passes over activations."""
    tokens, rows = as_float(operator.tokens), as_float(operator.rows)
    passed = 2.0 * tokens * operator.hidden + rows * (
        2.0 * as_float(operator.hidden) + operator.first_width + operator.inter
    )
    bandwidth = kernel.activation_ratio * gpu.bandwidth_bytes_per_s / US_PER_S
    sorting = kernel.expert_us * as_float(operator.experts) + kernel.token_us * tokens + kernel.pair_us * rows
    fixed: FloatArray = kernel.ramp_us + sorting + _HALF_BYTES * passed / bandwidth
    return fixed


def tile_times(gpu: Gpu, kernel: ExpertKernel, operator: Experts) -> list[_Times]:
    """Both products with each tile that the library has, in the order of `kernel.tiles`."""
    hidden, inter = as_float(operator.hidden), as_float(operator.inter)
    products = ((operator.first_width, hidden), (hidden, inter))
    element = BYTES_PER_ELEMENT[operator.stored_dtype]
    bandwidth = gpu.bandwidth_bytes_per_s / US_PER_S
    memory = [
        as_float(operator.hit) * n * k * element / (kernel.bandwidth_fraction * bandwidth)
        for n, k in products
    ]
    ideal_us = operator.flops / gpu.peak(operator.dtype) * US_PER_S
    slowdown = 1.0 + kernel.throttle * ideal_us / (ideal_us + kernel.throttle_us)
    padded: dict[int, FloatArray] = {tile.rows: operator.padded_rows(tile.rows) for tile in kernel.tiles}
    found = []
    for tile in kernel.tiles:
        step = _step_us(gpu, kernel, operator, tile)
        tiles = [
            slowdown * _waves(gpu, kernel, padded[tile.rows] / tile.rows * np.ceil(n / tile.columns))
            * (k + kernel.tile_k) * step
            for n, k in products
        ]  # fmt: skip
        time = sum(norm_max(a, b, kernel.memory_norm) for a, b in zip(memory, tiles, strict=True))
        found.append(_Times(as_float(time), memory[0] + memory[1], tiles[0] + tiles[1]))
    return found


def _step_us(gpu: Gpu, kernel: ExpertKernel, operator: Experts, tile: ExpertTile) -> float:
    """One k element of a tile on its SM: |arithmetic, loads|."""
    rows, columns = tile.rows, tile.columns
    arithmetic = 2.0 * rows * columns * gpu.sms / (kernel.peak_fraction * gpu.peak(operator.dtype)) * US_PER_S
    moved = rows * BYTES_PER_ELEMENT[operator.dtype] + columns * BYTES_PER_ELEMENT[operator.stored_dtype]
    loads = moved * gpu.sms / (kernel.load_ratio * gpu.bandwidth_bytes_per_s) * US_PER_S
    return float(norm_max(as_float(arithmetic), as_float(loads), kernel.step_norm))


def _waves(gpu: Gpu, kernel: ExpertKernel, blocks: FloatArray) -> FloatArray:
    """Waves of thread blocks: whole ones or shared out; shorter than one on a chip that is not full."""
    per_sm = blocks / gpu.sms
    lone = 1.0 - kernel.contention * (1.0 - per_sm)
    several = kernel.wave_rounding * np.ceil(per_sm) + (1.0 - kernel.wave_rounding) * per_sm
    waves: FloatArray = np.where(per_sm <= 1.0, lone, several)
    return waves


def _taken(every: list[FloatArray], chosen: IntArray) -> FloatArray:
    taken: FloatArray = np.take_along_axis(
        np.stack(np.broadcast_arrays(*every)), np.asarray(chosen)[None], axis=0
    )[0]
    return taken
