"""Calibrated time of a fused layer of experts: weights of the woken ones, tiles of rows, passes over rows.

With t tokens, r = `rows` (token, expert) pairs, u = `hit` experts, and for each of the two grouped products
(n, k) = (first_width, hidden), then (hidden, inter); b_x, b_w bytes of an element of activations and weights:

    blocks     = r_M / M ceil(n / N) / sms            thread blocks an SM; r_M: rows in tiles of M        (X3)
    waves, arithmetic, loads, slowdown                as of a linear layer with tiles of M x N      (G2 to G4)
    tiles      = slowdown waves (k + tile_k) |arithmetic, loads|_step_norm
    memory     = u n k b_w / (bandwidth_fraction bandwidth)
    product    = |memory, tiles|_memory_norm                                                              (X4)
    passes     = 2 (2 t h + w (2 h + n_1 + i)) / (activation_ratio bandwidth)                           (X5)
    time       = ramp_us + expert_us E + token_us t + pair_us w + passes + both products                  (X6)

E: experts of the layer, or those of the GPU where a kernel counts problems of products (`counts_held`).
w: r, or the pairs of all GPUs' experts where a kernel drops none of them before its products (`walks_all`).
The library takes the tile M x N with the least time x selection penalty, one for both products.
"""

from __future__ import annotations

import numpy as np

from medusa_sim.arrays import FloatArray, IntArray, as_float
from medusa_sim.gpus.fitted_experts import ExpertKernel, ExpertTile
from medusa_sim.gpus.gpu import Gpu
from medusa_sim.latency.bands import KernelParts, calibrated_time, less_certain, same_form
from medusa_sim.latency.operator_time import OperatorTime, Source
from medusa_sim.latency.roofline import roofline_time_us
from medusa_sim.latency.waves import byte_us, norm_max, shared_waves
from medusa_sim.operators.experts import ALIGNED, Experts
from medusa_sim.units import BYTES_PER_ELEMENT, US_PER_S

SPREAD_ERROR = 0.18
"""What kernels err beyond their band where a GPU holds some of the experts; as TRANSFER_ERROR is meant.

No row of expert parallelism was fitted, for how tokens were spread over the ranks was not recorded: with it,
80 % of those rows lie inside the band (`python benchmarks/kernels.py transfer spread`).
"""
_HALF_BYTES = 2.0
_NEARLY_ALL = 1.0 - 1e-12


def experts_time(
    gpu: Gpu, kernel: ExpertKernel, operator: Experts, *, cold: bool = True, form: str = ""
) -> OperatorTime:
    """Time of a layer of experts for every shape it holds.

    low and high are the 80 % band of held-out residuals for the range of tokens. cold: weights come from HBM,
    as in every step of a model; then never below the roofline of the union. form: numeric format that the
    kernel was fitted in; a rule for its tiles is not that of another's bytes, whose tiles are chosen by time.
    Raises SpecError where the GPU has no peak for the operator's arithmetic.
    """
    computed = operator.with_columns(gated=1.0) if kernel.gates_all else operator
    fixed_us = _fixed_us(gpu, kernel, computed)
    products, memory, work = _tiles_us(gpu, kernel, computed, cold=cold)
    by_rule = bool(kernel.default_tiles) and (not form or same_form(form, operator.form))
    chosen = _chosen(kernel, computed, products, by_rule=by_rule)[None]
    product_us, memory_us, work_us = (
        np.take_along_axis(np.broadcast_to(values, products.shape), chosen, axis=0)[0]
        for values in (products, memory, work)
    )
    if cold and by_rule:
        product_us = np.minimum(product_us, _next_us(gpu, kernel, computed, products, chosen))
    time_us = fixed_us + product_us
    if cold:
        time_us = np.maximum(time_us, roofline_time_us(gpu, operator))
    parts = KernelParts(time_us, fixed_us, memory_us, work_us)
    time = calibrated_time(gpu, [(kernel.fit, operator)], parts, form=form)
    is_spread = as_float(operator.local_experts) < as_float(operator.experts)
    return less_certain(time, SPREAD_ERROR, Source.EXTRAPOLATED, is_spread)


def _fixed_us(gpu: Gpu, kernel: ExpertKernel, operator: Experts) -> FloatArray:
    """What does not depend on the tile: launches, sorting, passes over activations."""
    tokens, rows = as_float(operator.tokens), as_float(operator.rows)
    width = operator.first_width + as_float(operator.inter)
    hidden = as_float(operator.hidden)
    walked = np.maximum(rows, as_float(operator.topk) * tokens) if kernel.walks_all else rows
    passed = 2.0 * tokens * hidden + walked * (2.0 * hidden + width)
    bandwidth = kernel.activation_ratio * gpu.bandwidth_bytes_per_s / US_PER_S
    experts = as_float(operator.local_experts if kernel.counts_held else operator.experts)
    sorting = kernel.expert_us * experts + kernel.token_us * tokens + kernel.pair_us * walked
    fixed: FloatArray = kernel.ramp_us + sorting + _HALF_BYTES * passed / bandwidth
    return fixed


def _tiles_us(
    gpu: Gpu, kernel: ExpertKernel, operator: Experts, *, cold: bool
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """(tiles, *shape) both products with each tile, and of them memory and tiles; broadcast together."""
    every = (*kernel.tiles, *kernel.default_tiles)
    of_size = {size: operator.padded_rows(size) / size for size in {tile.rows for tile in every}}
    shape = (*np.broadcast(*operator.sizes.values(), *of_size.values()).shape,)
    blocks = np.stack([np.broadcast_to(of_size[tile.rows], shape) for tile in every])
    sizes = [(tile.rows, tile.columns, tile.slower) for tile in every]
    rows, columns, slower = np.asarray(sizes).T.reshape(3, -1, *(1,) * len(shape))

    peak = gpu.peak(operator.dtype)
    arithmetic = 2.0 * rows * columns * gpu.sms / (kernel.peak_fraction * peak) * US_PER_S
    moved = rows * BYTES_PER_ELEMENT[operator.dtype] + columns * BYTES_PER_ELEMENT[operator.stored_dtype]
    loads = moved * gpu.sms / (kernel.load_ratio * gpu.bandwidth_bytes_per_s) * US_PER_S
    ideal_us = operator.flops / peak * US_PER_S
    slowdown = 1.0 + kernel.throttle * ideal_us / (ideal_us + kernel.throttle_us)
    step = norm_max(arithmetic, loads, kernel.step_norm) * slowdown

    hidden, inter = as_float(operator.hidden), as_float(operator.inter)
    aligned = np.where(inter % ALIGNED == 0.0, 1.0, kernel.unaligned_ratio)
    element_us = BYTES_PER_ELEMENT[operator.stored_dtype] * byte_us(
        gpu, kernel, operator.weight_bytes, cold=cold
    )
    memory, work, time = (np.zeros(()) for _ in range(3))
    for n, k, unaligned in ((operator.first_width, hidden, 1.0), (hidden, inter, aligned)):
        weights = unaligned * slower * as_float(operator.hit) * n * k * element_us
        per_sm = blocks * np.ceil(n / columns) / gpu.sms
        waves = shared_waves(per_sm, kernel.contention, kernel.wave_rounding)
        tiles = unaligned * slower * waves * (k + kernel.tile_k) * step
        memory, work = memory + weights, work + tiles
        time = time + norm_max(weights, tiles, kernel.memory_norm)
    return time, memory, work


def _next_us(
    gpu: Gpu, kernel: ExpertKernel, operator: Experts, products_us: FloatArray, chosen: IntArray
) -> FloatArray:
    """Both products of the fewest tokens of the rule's next tile, where that tile would be faster.

    Rows say how fast a tile is where it was measured, and not where its range ends: as far as a line is drawn
    on, more tokens take no less. Infinity where the next tile is slower or there is none.
    """
    free, last = len(kernel.tiles), len(products_us) - 1
    following = np.minimum(chosen + 1, last)
    is_next = (chosen >= free) & (chosen < last)
    is_faster = is_next & (np.take_along_axis(products_us, following, axis=0) < np.take_along_axis(
        products_us, chosen, axis=0))  # fmt: skip
    none = np.full(products_us.shape[1:], np.inf)
    if not is_faster.any():
        return none
    tokens = np.broadcast_to(as_float(operator.tokens), none.shape)
    ends = np.stack([_end_tokens(tile, operator, none.shape) for tile in kernel.default_tiles])
    end = np.take_along_axis(ends, np.maximum(chosen - free, 0), axis=0)[0]
    grown = np.where(is_faster[0] & np.isfinite(end), np.maximum(end / tokens, 1.0), 1.0)
    local = as_float(operator.local_experts)
    missed = np.log1p(-np.minimum(as_float(operator.hit) / local, _NEARLY_ALL))
    at_end = operator.with_columns(
        tokens=grown * tokens,
        rows=grown * as_float(operator.rows),
        hit=-local * np.expm1(grown * missed),
        **dict.fromkeys(("padded16", "padded64", "padded128"), np.nan),
    )
    products, _, _ = _tiles_us(gpu, kernel, at_end, cold=True)
    next_us = np.take_along_axis(products, following, axis=0)[0]
    return np.where(is_faster[0], next_us, np.inf)


def _end_tokens(tile: ExpertTile, operator: Experts, shape: tuple[int, ...]) -> FloatArray:
    """Most tokens that the rule takes the tile for; infinity where it has no end."""
    experts = as_float(operator.local_experts)
    rows_per_token = as_float(operator.rows) / as_float(operator.tokens)
    ends = (
        np.asarray(tile.tokens_max or np.inf),
        (tile.tokens_per_expert_max or np.inf) * experts,
        (tile.rows_per_expert_max or np.inf) * experts / rows_per_token,
    )
    return np.broadcast_to(np.minimum(np.minimum(*ends[:2]), ends[2]), shape)


def _chosen(kernel: ExpertKernel, operator: Experts, products_us: FloatArray, *, by_rule: bool) -> IntArray:
    """Index of the tile that the library takes, into `tiles` and then `default_tiles`.

    by_rule: whether it has a rule that holds here; else it takes the fastest of all.
    """
    free = len(kernel.tiles) if by_rule else len(products_us)
    penalty = np.asarray([tile.selection_penalty for tile in (*kernel.tiles, *kernel.default_tiles)][:free])
    weighed = products_us[:free] * penalty.reshape(-1, *(1,) * (products_us.ndim - 1))
    best: IntArray = np.argmin(weighed, axis=0)
    if not by_rule:
        return best
    tokens, experts = as_float(operator.tokens), as_float(operator.local_experts)
    few = np.stack([tokens <= _end_tokens(tile, operator, best.shape) for tile in kernel.default_tiles])
    few[-1] = True
    ruled = free + np.argmax(few, axis=0)
    tuned = np.zeros((), dtype=np.bool_)
    for shape in kernel.tuned:
        tuned = tuned | ((experts == shape.experts) & (as_float(operator.inter) == shape.inter))
    return np.where(tuned, best, ruled)
