"""Calibrated time of fused attention: decode, verification and prefill with one family of formulas.

A thread block (CTA) holds a tile of query rows and walks over keys. With g = heads / kv_heads, b_kv the
bytes of K and V, b_act those of queries and outputs (`AttentionPath` has the other names):

    rows     = q_len g                        query rows that share a K/V head (q_len without GQA packing)
    tiles    = batch kv_heads ceil(rows / tile_rows)                        (heads without GQA packing)
    blocks   = ceil(kv_len / tile_keys)
    splits   = ceil(blocks / ceil(1.1 blocks tiles / sms))  where kv_len > split_above, else 1         (A1)
               decoding takes them below, too, where that is faster
    chunk    = ceil(blocks / splits) tile_keys                              keys of one CTA
    load     = tiles splits / sms                                           CTAs of one SM
    walk(a)  = cta_us + row_us min(rows, tile_rows)
               + (chunk - tile_keys + append_ratio q_len) t_key (1 + sharing (a - 1))                  (A2)
               with a CTAs at once on an SM
    t_key    = 4 head_dim tile_rows / (fraction peak / sms)                 padded rows are computed too
    memory   = (b_kv + b_act) / (bandwidth_fraction bandwidth)              K and V read once           (A3)
    waves    = floor(load / c) |walk(c), memory c / load| + |walk(a), memory a' / load|                 (A4)
               c = ctas_per_sm; a' = load mod c, a = ceil(a') CTAs in the last wave
    time     = ramp_us + waves + store_passes b_new / (bandwidth_fraction bandwidth)
               + (split_us + split_step_us log2 splits where kv_len > split_above)

with |a, b| = sqrt(a^2 + b^2), a smooth maximum. (A1) is the form of FlashAttention-3's scheduler for ragged
batches: enough splits to fill the SMs, with a tenth to spare, and even ones; the rows of FlashAttention-2 and
FlashInfer are met by it as well. The first key tile is part of cta_us. Causal prefill has tiles of unequal
length: its waves walk over the keys of the mean tile, and the longest tile's further keys come once after
them.

Rows have sequences of one length, requests in a server have not. In a step splits are those of the mean over
lengths,

    chunk  = E ceil(1.1 u blocks tiles / sms) tile_keys,  u even on 1 +- 0.6
    splits = blocks tile_keys / chunk                                                                   (A8)

so that time does not fall where a longer context happens to divide more evenly.

Left in L2 (`cold=False`) bytes cost (1 - hit + hit / l2_ratio) as much, hit = 1 / (1 + (footprint / (l2_fill
L2))^l2_sharpness).

Verification attention was measured nowhere publicly; both ends of its range were: one query row (decode) and
64 rows or more (chunks of prefill over a prefix). Between them, with D the decode kernel at one row and P the
prefill kernel's arithmetic over the decode kernel's memory path, no causal corner left out:

    verify  = D + (1 - 1 / q_len) max(P(q_len) - D, 0)                                                  (A5)

so that it is D at one row and the slower of both where many rows were measured. K and V are read once for all
candidates of a sequence in either.

A kernel set that was fitted to rows of verification attention itself (`medusa-sim measure` records them) has
a kernel of its own for it, by (A1) to (A4), and needs no (A5).

That is a kernel that splits keys for any q. An engine may run one that does not (`specs.engine_facts`):
FlashAttention-2 with a cache walks over all keys of a sequence in one block per head, its query rows padded
to 64 and not packed. With F the FLOPs of an SM in a clock, on the Tensor Cores,

    t_key    = d |256 / F, 0.273| clocks,  splits = 1                                                    (A6)

the products of a key beside what does not overlap with them in a lone block: reading shared memory and the
softmax. Both terms are clocks, so that their share of the peak is a matter of F alone: 0.88 where F is 512
(RTX 3090, measured within 7 %), 0.42 where it is 2048 (A100; chunks of prefill in the same kernel give 0.39).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from medusa_sim.arrays import BoolArray, FloatArray, IntArray, as_float
from medusa_sim.latency.base import OperatorTime, Source, calibrated_time, less_certain, roofline_time_us
from medusa_sim.latency.waves import byte_us, waves_us
from medusa_sim.operators.operator import Attention, Operator
from medusa_sim.specs.fitted import AttentionKernel, AttentionPath, Fit, LatentKernel
from medusa_sim.specs.gpu import Gpu
from medusa_sim.units import US_PER_S

if TYPE_CHECKING:
    from medusa_sim.operators.latent import LatentAttention

_WHOLE_ROWS = 64
_WHOLE_SERIAL_CLOCKS = 0.273
_WHOLE_RAMP_US = 11.9
_WHOLE_CTAS = 2
_WHOLE_SHARING = 0.45
"""FlashAttention-2 without split keys (A6): rows of a tile, clocks of a key and head dimension beside the
products, and what a lone block, and two on an SM, take in chunks of prefill on the A100 (microsoft/vidur)."""
WHOLE_ERROR = 0.15
"""80 % half-width on cards other than those whose rows set (A6)."""
_CLOCKS_HZ = (1.35e9, 2.7e9)
"""An SM's FLOPs per clock are the power of two that puts its clock between these."""
_LENGTH_SPREAD = 0.6
"""Of the lengths of a step's requests about their mean, which splits are averaged over (A8): even on 1 +-
this, a coefficient of variation of 0.35. An assumption: requests are anywhere in their answers.
"""
_SPLIT_MARGIN = 1.1
"""Share of blocks beyond an even spread over the SMs that the libraries' split rule leaves."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Microseconds: the whole, and what decides its bound."""

    time_us: FloatArray
    memory_us: FloatArray
    walk_us: FloatArray
    fixed_us: FloatArray

    def each(self, take: Callable[[FloatArray], FloatArray]) -> Parts:
        """With every array replaced by what `take` makes of it."""
        return Parts(**{name: take(getattr(self, name)) for name in _PARTS})


_PARTS = tuple(field.name for field in dataclasses.fields(Parts))


def attention_time(
    gpu: Gpu, kernel: AttentionKernel, operator: Attention, *, cold: bool = True
) -> OperatorTime:
    """Time of a decode or prefill kernel for every shape that `operator` holds (A1 to A4).

    cold: K and V come from HBM, as in every step of a model; then never below the roofline.
    low and high are the 80 % band of held-out residuals for the range of q_len x batch.
    Raises SpecError where the GPU has no peak for the operator's dtype.
    """
    parts = kernel_parts(gpu, kernel, operator, cold=cold)
    return _parts_time(gpu, [(kernel.fit, operator)], operator, parts, cold=cold)


def verify_attention_time(
    gpu: Gpu, decode: AttentionKernel, prefill: AttentionKernel, operator: Attention, *, cold: bool = True
) -> OperatorTime:
    """Time of a verification step's attention: q_len candidates of each sequence over one kv_len (A5).

    Equal to `attention_time` of the decode kernel at q_len 1. The band is the product of both kernels'
    bands, since nobody measured what lies between them. Raises SpecError as `attention_time` does.
    """
    one_row = operator.with_columns(q_len=1)
    base = kernel_parts(gpu, decode, one_row, cold=cold)
    # the prefill path reads as the decode path does: long K and V, which few prefill rows have
    names = ("bandwidth_fraction", "l2_ratio", "l2_fill", "l2_sharpness")
    memory = {name: getattr(decode.wide, name) for name in names}
    many = _faster_parts(gpu, msgspec.structs.replace(prefill.wide, **memory), operator, cold=cold)
    q_len = as_float(operator.q_len)
    weight = 1.0 - 1.0 / q_len
    parts = Parts(
        time_us=base.time_us + weight * np.maximum(many.time_us - base.time_us, 0.0),
        memory_us=np.maximum(base.memory_us, many.memory_us),
        walk_us=np.maximum(base.walk_us, many.walk_us),
        fixed_us=base.fixed_us,
    )
    return _parts_time(gpu, [(decode.fit, one_row), (prefill.fit, operator)], operator, parts, cold=cold)


def whole_attention_time(
    gpu: Gpu, decode: AttentionKernel, operator: Attention, *, splits: bool = False, cold: bool = True
) -> OperatorTime:
    """Time of FlashAttention-2 over a cache with several queries a sequence (A6).

    decode: kernel of one query, which has the memory path. splits: as patched, with keys spread evenly over
    the SMs, and a tenth more. Raises SpecError as `attention_time` does.
    """
    tensor_clocks = 4.0 * _WHOLE_ROWS / _flops_per_clock(gpu, operator.dtype)
    fraction = tensor_clocks / float(np.hypot(tensor_clocks, _WHOLE_SERIAL_CLOCKS))
    path = msgspec.structs.replace(
        decode.wide,
        ramp_us=_WHOLE_RAMP_US,
        cta_us=0.0,
        row_us=0.0,
        tile_rows=_WHOLE_ROWS,
        packs_gqa=False,
        ctas_per_sm=_WHOLE_CTAS,
        sharing=max(_WHOLE_SHARING, 2.0 * fraction - 1.0),
        whole_fraction=fraction,
        split_fraction=fraction,
        split_above=NEVER,
    )
    one_row = operator.with_columns(q_len=1)
    plain = kernel_parts(gpu, decode, one_row, cold=cold)
    whole = _path_parts(gpu, path, operator, cold=cold)
    if splits:
        _, tiles, _ = _tiles(path, operator)
        keys = as_float(operator.kv_len) * _key_us(gpu, path, operator) / fraction
        walk = _SPLIT_MARGIN * tiles * keys / gpu.sms
        fixed = np.full(walk.shape, path.ramp_us + path.split_us)
        whole = dataclasses.replace(
            whole, time_us=fixed + np.hypot(walk, whole.memory_us), walk_us=walk, fixed_us=fixed
        )
    several = as_float(operator.q_len) > 1.0
    parts = _chosen(several, whole, plain)
    time = _parts_time(gpu, [(decode.fit, one_row)], operator, parts, cold=cold)
    return less_certain(time, WHOLE_ERROR, Source.BORROWED, several)


def called_attention_time(
    gpu: Gpu, decode: AttentionKernel, operator: Attention, *, splits: bool
) -> OperatorTime:
    """Time of a call of trtllm-gen as vLLM's benchmark of October 2025 makes it, from Python (A7).

        time = call + q_len b_kv' / bandwidth                         each query reads the keys for itself
             = call + walk ceil(batch heads ceil(q_len / 128) / sms)  the prefill kernel: a block, all keys

    b_kv' of half of kv_len, up to which that script draws lengths. The walk was measured at 1,024 keys alone;
    its share that grows with keys is assumed. Bands: errors of its 16 rows (B200), and what is assumed.
    """
    keys = as_float(operator.kv_len)
    if splits:
        half = operator.with_columns(kv_len=_DRAWN_SHARE * keys)
        read_us = as_float(operator.q_len) * half.kv_bytes / gpu.bandwidth_bytes_per_s * US_PER_S
        fixed_us, walk_us, error = _CALL_US, np.zeros(np.shape(read_us)), 0.1
    else:
        blocks = as_float(operator.batch) * operator.heads * np.ceil(as_float(operator.q_len) / 128.0)
        walk_us = np.ceil(blocks / gpu.sms) * (_WALK_START_US + _WALK_US * keys / 1024.0)
        fixed_us, read_us, error = _PREFILL_CALL_US, np.zeros(np.shape(walk_us)), 0.3
    time_us = fixed_us + read_us + walk_us
    time = calibrated_time(
        gpu, [(decode.fit, operator)], time_us, fixed_us=fixed_us, memory_us=read_us, work_us=walk_us
    )
    band = np.exp(error)
    return dataclasses.replace(time, low_us=time.time_us / band, high_us=time.time_us * band)


_DRAWN_SHARE = 0.5
_CALL_US, _PREFILL_CALL_US = 31.0, 26.2
_WALK_START_US, _WALK_US = 4.0, 11.9
"""Of (A7), fitted to `trtllm-gen` rows of a B200 (`benchmarks/verify_attention.py`)."""
NEVER = 1_000_000_000
"""A `split_above` that no length reaches: libraries that never split keys."""


def _flops_per_clock(gpu: Gpu, dtype: str) -> float:
    """Of one SM's Tensor Cores: a power of two, told from the peak by what clocks there are."""
    flops = gpu.peak(dtype) / gpu.sms
    return float(2.0 ** np.ceil(np.log2(flops / _CLOCKS_HZ[1])))


def _parts_time(
    gpu: Gpu, fits: list[tuple[Fit, Operator]], operator: Attention, parts: Parts, *, cold: bool
) -> OperatorTime:
    """Nothing that reads from HBM is faster than the roofline; rows measured in L2 may be."""
    time_us = parts.time_us
    if cold:
        one = operator.with_columns(batch=1.0)
        time_us = np.maximum(time_us, as_float(operator.batch) * roofline_time_us(gpu, one))
    return calibrated_time(
        gpu, fits, time_us, fixed_us=parts.fixed_us, memory_us=parts.memory_us, work_us=parts.walk_us
    )


def kernel_parts(
    gpu: Gpu, kernel: AttentionKernel | LatentKernel, operator: Attention | LatentAttention, *, cold: bool
) -> Parts:
    """The path for wide rows, and for narrow ones where the library has its own."""
    rows = as_float(operator.q_len) * as_float(operator.heads) / as_float(operator.kv_heads)
    is_narrow = rows <= kernel.narrow_rows
    if kernel.narrow is None or not is_narrow.any():
        return _faster_parts(gpu, kernel.wide, operator, cold=cold)
    narrow = _faster_parts(gpu, kernel.narrow, operator, cold=cold)
    if is_narrow.all():
        return narrow
    return _chosen(is_narrow, narrow, _faster_parts(gpu, kernel.wide, operator, cold=cold))


def _chosen(where: BoolArray, first: Parts, other: Parts) -> Parts:
    return Parts(**{name: np.where(where, getattr(first, name), getattr(other, name)) for name in _PARTS})


def _faster_parts(
    gpu: Gpu, path: AttentionPath, operator: Attention | LatentAttention, *, cold: bool
) -> Parts:
    """Of decoding over few keys, the faster of one walk and of split keys.

    The walk was fitted to another chip's arithmetic: at half that rate 384 keys were dearer than 512.
    """
    keys = as_float(operator.kv_len)
    if operator.is_causal or path.split_above >= NEVER or np.min(keys, initial=NEVER) > path.split_above:
        return _path_parts(gpu, path, operator, cold=cold)
    split = _path_parts(gpu, msgspec.structs.replace(path, split_above=0), operator, cold=cold)
    if keys.ndim != 3 or keys.shape[1] == 1:
        whole = _path_parts(gpu, path, operator, cold=cold)
        return _chosen(split.time_us < whole.time_us, split, whole)
    # on a grid few lengths are as short; beyond them both are one walk
    short = np.flatnonzero((keys <= path.split_above).any(axis=(0, 2)))
    take = partial(_of_lengths, short)
    whole, own = _path_parts(gpu, path, operator.each(take), cold=cold), split.each(take)
    fastest = _chosen(own.time_us < whole.time_us, own, whole)
    shape = split.time_us.shape
    parts = split.each(lambda own: own if own.shape == shape else np.broadcast_to(own, shape).copy())
    for name in _PARTS:
        getattr(parts, name)[:, short] = getattr(fastest, name)
    return parts


def _of_lengths(some: IntArray, values: FloatArray) -> FloatArray:
    """Those of the middle one of three axes; what does not vary along it stays as it is."""
    return values[:, some] if values.ndim == 3 and values.shape[1] > 1 else values


def _path_parts(gpu: Gpu, path: AttentionPath, operator: Attention | LatentAttention, *, cold: bool) -> Parts:
    """On a grid what one sequence takes knows no batch: kept apart, most arrays have two axes of three."""
    batch, one = as_float(operator.batch), operator.with_columns(batch=1.0)
    kv_len, q_len = as_float(operator.kv_len), as_float(operator.q_len)
    may_split = kv_len > path.split_above
    rows, own_tiles, tokens_per_tile = _tiles(path, one)
    tiles = batch * own_tiles
    blocks = np.ceil(kv_len / path.tile_keys)
    splits: FloatArray = np.ones(())
    if np.min(tiles, initial=gpu.sms) * _SPLIT_MARGIN < gpu.sms:  # else tiles alone fill the SMs
        spread = (_SPLIT_MARGIN / gpu.sms) * blocks * tiles
        if cold:
            splits = np.where(may_split, blocks / np.minimum(_whole_blocks(spread), blocks), 1.0)
        else:
            splits = np.where(may_split, np.ceil(blocks / np.minimum(np.ceil(spread), blocks)), 1.0)
    load = tiles * splits / gpu.sms

    fraction = np.where(may_split, path.split_fraction, path.whole_fraction)
    key_us = _key_us(gpu, path, operator) / fraction
    own_blocks = blocks / splits if cold else np.ceil(blocks / splits)
    chunk = np.minimum(own_blocks * path.tile_keys, np.maximum(kv_len, path.tile_keys))
    start_us = path.cta_us + path.row_us * np.minimum(rows, path.tile_rows)
    chunk_us = (chunk - path.tile_keys + path.append_ratio * q_len) * key_us

    one_byte_us = byte_us(gpu, path, np.zeros(()) if cold else operator.bytes, cold=cold)
    own_memory = one.bytes * one_byte_us
    tail_us: FloatArray = np.zeros(())
    if operator.is_causal:
        new_keys = 0.5 * (q_len + tokens_per_tile + path.tile_keys)
        keys = kv_len - q_len + new_keys * (1.0 + path.append_ratio)
        mean_us = np.maximum(keys - path.tile_keys, 0.0) / splits * key_us
        longest_us, chunk_us = chunk_us, np.where(rows > path.tile_rows, mean_us, chunk_us)
        tail_us = np.maximum(longest_us - chunk_us, 0.0)
    body, walk = waves_us(
        load,
        path.ctas_per_sm,
        path.sharing,
        (start_us, chunk_us),
        own_memory * (gpu.sms / (own_tiles * splits)),
    )
    combine = np.where(may_split, path.split_us + path.split_step_us * np.log2(splits), 0.0)
    fixed = path.ramp_us + combine
    time_us = fixed + body
    if operator.is_causal:
        time_us, walk = time_us + tail_us, walk + tail_us
    if path.store_passes:
        new_bytes = operator.with_columns(kv_len=operator.q_len).kv_bytes
        time_us = time_us + path.store_passes * new_bytes * one_byte_us
    return Parts(time_us=time_us, memory_us=batch * own_memory, walk_us=walk, fixed_us=fixed + start_us)


def _whole_blocks(spread: FloatArray) -> FloatArray:
    """Whole blocks of a split where an even spread has `spread`, in the mean over lengths (A8).

        E ceil(u x),  u even on 1 +- w,  is  (F(x + w x) - F(x - w x)) / (2 w x),
        F(y) = integral of ceil from 0 to y = n (n + 1) / 2 + (n + 1) (y - n),  n = floor(y)

    It rises with x, so that a longer context never takes less.
    """
    mean = _whole_integral((1.0 + _LENGTH_SPREAD) * spread)
    mean -= _whole_integral((1.0 - _LENGTH_SPREAD) * spread)
    mean /= (2.0 * _LENGTH_SPREAD) * spread
    return mean


def _whole_integral(ends: FloatArray) -> FloatArray:
    """F of (A8); `ends` is used up."""
    ends = np.asarray(ends)
    whole = np.floor(ends)
    ends -= 0.5 * whole
    whole += 1.0
    ends *= whole
    return ends


def _tiles(
    path: AttentionPath, operator: Attention | LatentAttention
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Query rows that share one walk over keys, number of row tiles, and tokens of one tile."""
    batch, q_len = as_float(operator.batch), as_float(operator.q_len)
    heads, kv_heads = as_float(operator.heads), as_float(operator.kv_heads)
    group = heads / kv_heads
    if not path.packs_gqa:
        group = np.where(q_len > 1.0, 1.0, group)
    rows = q_len * group
    tiles = batch * (heads / group) * np.ceil(rows / path.tile_rows)
    return rows, tiles, np.minimum(q_len, path.tile_rows / group)


def _key_us(gpu: Gpu, path: AttentionPath, operator: Attention | LatentAttention) -> FloatArray:
    """Both products of a full tile of rows with one key, at the whole peak of one SM (A2)."""
    sm_flops_per_us = gpu.peak(operator.dtype) / gpu.sms / US_PER_S
    return 4.0 * as_float(operator.head_dim) * path.tile_rows / sm_flops_per_us
