"""Attention as its equations say, computed point by point."""

import math

from hypothesis import strategies as st

from medusa_sim.gpus.fitted_attention import AttentionKernel, AttentionPath
from medusa_sim.gpus.gpu import Gpu, load_gpu
from medusa_sim.operators.attention import Attention, AttentionKind
from medusa_sim.operators.operator import Size

heads = st.sampled_from([(1, 1), (8, 4), (12, 12), (32, 8), (32, 32), (40, 40), (64, 8), (64, 1)])


def shape(kind: AttentionKind, batch: Size, q_len: Size, kv_len: Size, group: tuple[int, int]) -> Attention:
    return Attention(
        name=kind, kind=kind, batch=batch, q_len=q_len, kv_len=kv_len, heads=group[0], kv_heads=group[1],
        head_dim=128, dtype="bf16",
    )  # fmt: skip


def kernels(where: tuple[str, str]) -> tuple[Gpu, AttentionKernel, AttentionKernel]:
    gpu = load_gpu(where[0])
    table = gpu.kernel_set(where[1]).attention
    return gpu, table["decode_attention"], table["prefill_attention"]


def mean_ceil(x: float, spread: float = 0.6) -> float:
    """E ceil(u x), u even on 1 +- spread: the sum over whole numbers of the chance to lie above each (A8)."""
    above = ((1 + spread - k / x) / (2 * spread) for k in range(math.ceil(2 * x) + 2))
    return sum(min(max(share, 0.0), 1.0) for share in above)


def by_hand_us(gpu: Gpu, path: AttentionPath, operator: Attention, *, cold: bool) -> float:
    """(A1) to (A4), (A8) and (A9), of one shape, number by number as the module's docstring has them."""
    b, q, keys, heads, kv_heads, d = (
        int(getattr(operator, name)) for name in ("batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim")
    )
    group = heads // kv_heads if path.packs_gqa or q == 1 else 1
    rows = q * group
    tiles = b * (heads // group) * math.ceil(rows / path.tile_rows)
    blocks = math.ceil(keys / path.tile_keys)
    may_split = keys > path.split_above
    even = 1.1 * blocks * tiles / gpu.sms
    splits = 1.0
    if may_split:
        splits = (
            blocks / min(mean_ceil(even), blocks)
            if cold
            else math.ceil(blocks / min(math.ceil(even), blocks))
        )
    load = tiles * splits / gpu.sms
    fraction = path.split_fraction if may_split else path.whole_fraction
    key_us = 4 * d * path.tile_rows / (fraction * gpu.peak(operator.dtype) / gpu.sms) * 1e6
    start_us = path.cta_us + path.row_us * min(rows, path.tile_rows)
    own_blocks = blocks / splits if cold else math.ceil(blocks / splits)
    chunk = min(own_blocks * path.tile_keys, max(keys, path.tile_keys))
    chunk_us = (chunk - path.tile_keys + path.append_ratio * q) * key_us
    tail_us = 0.0
    if operator.is_causal and rows > path.tile_rows:  # waves of the mean tile, then what the longest has more
        new = 0.5 * (q + min(q, path.tile_rows / group) + path.tile_keys)
        mean = keys - q + new * (1 + path.append_ratio)
        mean_us = max(mean - path.tile_keys, 0.0) / splits * key_us
        tail_us, chunk_us = max(chunk_us - mean_us, 0.0), mean_us
    byte_us = 1e6 / (path.bandwidth_fraction * gpu.bandwidth_bytes_per_s)
    moved = 2 * (2 * b * kv_heads * keys * d + 2 * b * heads * q * d)
    if not cold:
        hit = 1 / (1 + (moved / (path.l2_fill * gpu.l2_bytes)) ** path.l2_sharpness)
        byte_us *= 1 - hit + hit / path.l2_ratio
    memory_us = moved * byte_us

    def walk_us(at_once: float) -> float:
        return start_us + chunk_us * (1 + path.sharing * (at_once - 1))

    c = path.ctas_per_sm
    full = math.floor(load / c + 1e-9)
    rest = load - full * c
    waves_us = full * math.hypot(walk_us(c), memory_us * c / load)
    if cold and not operator.is_causal:
        waves_us = math.hypot(max(load / c, 1) * walk_us(min(max(load, 1), c)), memory_us)
    elif rest > 1e-9:
        waves_us += math.hypot(walk_us(math.ceil(rest - 1e-9)), memory_us * rest / load)
    stored_us = path.store_passes * 2 * 2 * b * kv_heads * q * d * byte_us
    combined_us = path.split_us + path.split_step_us * math.log2(splits) if may_split else 0.0
    return path.ramp_us + waves_us + tail_us + stored_us + combined_us
