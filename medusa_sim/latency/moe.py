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

The library takes the tile M x N with the least time x selection penalty, one for both products.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from medusa_sim.arrays import FloatArray, IntArray, as_float
from medusa_sim.latency.base import OperatorTime, Source, calibrated_time, less_certain, roofline_time_us
from medusa_sim.latency.waves import byte_us, norm_max, shared_waves
from medusa_sim.operators.experts import ALIGNED, Experts
from medusa_sim.specs.fitted import ExpertKernel, ExpertTile
from medusa_sim.specs.gpu import Gpu
from medusa_sim.units import BYTES_PER_ELEMENT, US_PER_S

SPREAD_ERROR = 0.25
"""What kernels err beyond their band where a GPU holds some of the experts; as TRANSFER_ERROR is meant.

No row of expert parallelism was fitted, for how tokens were spread over the ranks was not recorded: with it,
80 % of those rows lie inside the band (`python benchmarks/kernels.py transfer spread`).
"""
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
    """Time of a layer of experts for every shape it holds.

    low and high are the 80 % band of held-out residuals for the range of tokens. cold: weights come from HBM,
    as in every step of a model; then never below the roofline of the union. form: numeric format that the
    kernel was fitted in. Raises SpecError where the GPU has no peak for the operator's arithmetic.
    """
    computed = operator.with_columns(gated=1.0) if kernel.gates_all else operator
    fixed_us = fixed_time_us(gpu, kernel, computed)
    tiles = kernel.tiles + kernel.default_tiles
    padded = {rows: computed.padded_rows(rows) for rows in {tile.rows for tile in tiles}}
    every = [tile_time(gpu, kernel, computed, tile, padded[tile.rows], cold=cold) for tile in tiles]
    chosen = _chosen(kernel, computed, [each.time_us for each in every])
    time_us = fixed_us + _taken([each.time_us for each in every], chosen)
    time = calibrated_time(
        gpu,
        [(kernel.fit, operator)],
        np.maximum(time_us, roofline_time_us(gpu, operator)) if cold else time_us,
        fixed_us=fixed_us,
        memory_us=_taken([each.memory_us for each in every], chosen),
        work_us=_taken([each.tiles_us for each in every], chosen),
        form=form,
    )
    is_spread = as_float(operator.local_experts) < as_float(operator.experts)
    return less_certain(time, SPREAD_ERROR, Source.EXTRAPOLATED, is_spread)


def fixed_time_us(gpu: Gpu, kernel: ExpertKernel, operator: Experts) -> FloatArray:
    """What does not depend on the tile: launches, sorting, passes over activations."""
    tokens, rows = as_float(operator.tokens), as_float(operator.rows)
    width = operator.first_width + as_float(operator.inter)
    hidden = as_float(operator.hidden)
    passed = 2.0 * tokens * hidden + rows * (2.0 * hidden + width)
    bandwidth = kernel.activation_ratio * gpu.bandwidth_bytes_per_s / US_PER_S
    sorting = kernel.expert_us * as_float(operator.experts) + kernel.token_us * tokens + kernel.pair_us * rows
    fixed: FloatArray = kernel.ramp_us + sorting + _HALF_BYTES * passed / bandwidth
    return fixed


def tile_time(
    gpu: Gpu,
    kernel: ExpertKernel,
    operator: Experts,
    tile: ExpertTile,
    padded_rows: FloatArray,
    *,
    cold: bool = True,
) -> _Times:
    """Both products with one tile; padded_rows: what whole tiles of its rows hold."""
    hidden, inter = as_float(operator.hidden), as_float(operator.inter)
    aligned = np.where(inter % ALIGNED == 0.0, 1.0, kernel.unaligned_ratio)
    products = ((operator.first_width, hidden, 1.0), (hidden, inter, aligned))
    element_us = BYTES_PER_ELEMENT[operator.stored_dtype] * byte_us(
        gpu, kernel, operator.weight_bytes, cold=cold
    )
    blocks = padded_rows / tile.rows
    ideal_us = operator.flops / gpu.peak(operator.dtype) * US_PER_S
    step = _step_us(gpu, kernel, operator, tile) * (
        1.0 + kernel.throttle * ideal_us / (ideal_us + kernel.throttle_us)
    )
    memory, tiles, time = (np.zeros(()) for _ in range(3))
    for n, k, unaligned in products:
        slower = unaligned * tile.slower
        weights = slower * as_float(operator.hit) * n * k * element_us
        waves = _waves(gpu, kernel, blocks * np.ceil(n / tile.columns))
        work = slower * waves * (k + kernel.tile_k) * step
        memory, tiles = memory + weights, tiles + work
        time = time + norm_max(weights, work, kernel.memory_norm)
    return _Times(time, memory, tiles)


def _chosen(kernel: ExpertKernel, operator: Experts, times: list[FloatArray]) -> IntArray:
    """Index of the tile that the library takes, into `tiles` and then `default_tiles`."""
    free = len(kernel.tiles)
    weighed = [time * tile.selection_penalty for time, tile in zip(times, kernel.tiles, strict=False)]
    best: IntArray = np.argmin(np.stack(np.broadcast_arrays(*weighed)), axis=0)
    if not kernel.default_tiles:
        return best
    tokens, experts = as_float(operator.tokens), as_float(operator.local_experts)
    ruled = np.full(best.shape, free + len(kernel.default_tiles) - 1)
    for index, tile in reversed(list(enumerate(kernel.default_tiles))):
        few = tokens <= (tile.tokens_max or np.inf)
        few &= tokens <= (tile.tokens_per_expert_max or np.inf) * experts
        few &= as_float(operator.rows) <= (tile.rows_per_expert_max or np.inf) * experts
        ruled = np.where(few, free + index, ruled)
    tuned = np.zeros((), dtype=np.bool_)
    for shape in kernel.tuned:
        tuned = tuned | ((experts == shape.experts) & (as_float(operator.inter) == shape.inter))
    return np.where(tuned, best, ruled)


def _step_us(gpu: Gpu, kernel: ExpertKernel, operator: Experts, tile: ExpertTile) -> float:
    """One k element of a tile on its SM: |arithmetic, loads|."""
    rows, columns = tile.rows, tile.columns
    arithmetic = 2.0 * rows * columns * gpu.sms / (kernel.peak_fraction * gpu.peak(operator.dtype)) * US_PER_S
    moved = rows * BYTES_PER_ELEMENT[operator.dtype] + columns * BYTES_PER_ELEMENT[operator.stored_dtype]
    loads = moved * gpu.sms / (kernel.load_ratio * gpu.bandwidth_bytes_per_s) * US_PER_S
    return float(norm_max(as_float(arithmetic), as_float(loads), kernel.step_norm))


def _waves(gpu: Gpu, kernel: ExpertKernel, blocks: FloatArray) -> FloatArray:
    """Waves of thread blocks: whole ones or shared out; shorter than one on a chip that is not full."""
    return shared_waves(blocks / gpu.sms, kernel.contention, kernel.wave_rounding)


def _taken(every: list[FloatArray], chosen: IntArray) -> FloatArray:
    stacked = np.stack(np.broadcast_arrays(*every, chosen)[:-1])
    taken: FloatArray = np.take_along_axis(stacked, chosen[None], axis=0)[0]
    return taken
