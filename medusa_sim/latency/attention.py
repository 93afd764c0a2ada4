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

with |a, b| = sqrt(a^2 + b^2), a smooth maximum.

In numbers: four requests with 4,096 keys of 8 K/V heads on an H100 (132 SMs, tiles of 128 keys) are 32 tiles
of 32 blocks of keys. 9 blocks a CTA would fill the SMs, so the keys are split in 4, and an SM has 0.97 CTAs.
These walk for 7.4 us, memory takes 22.1, both 23.3. With 6.5 us to start and 2.7 to combine the splits the
kernel takes 32.5 us. Sixteen requests have as many CTAs without a split.

(A1) is the form of FlashAttention-3's scheduler for ragged
batches: enough splits to fill the SMs, with a tenth to spare, and even ones; the rows of FlashAttention-2 and
FlashInfer are met by it as well. The first key tile is part of cta_us. Causal prefill has tiles of unequal
length: its waves walk over the keys of the mean tile, and the longest tile's further keys come once after
them.

Rows have sequences of one length, requests in a server have not. In a step splits are those of the mean over
lengths,

    chunk  = E ceil(1.1 u blocks tiles / sms) tile_keys,  u even on 1 +- 0.6
    splits = blocks tile_keys / chunk                                                                   (A8)

so that time does not fall where a longer context happens to divide more evenly. Nor do blocks of unequal
lengths end together: an SM takes the next one when it is free, and FlashMLA and FlashAttention-3 plan such
batches for even work. So there are no waves in a step, but for prompts (`waves.balanced_us`):

    body   = |max(a / c, 1) walk(min(max(a, 1), c)), a memory|,  a = load                               (A9)

A library that plans nothing (`plans` of engines/backends.toml: FlashAttention-2, Triton) takes whole
sequences as they come, b = batch of them, and waits for the last (`waves.turns_unplanned`):

    turns  = max(L(b), a / c - m + L(b (1 - c / a)))  in place of max(a / c, 1)                         (A10)
    L(n)   = 1 + 0.6 (n - 1) / (n + 1),  m = (1 + 0.6^2 / 3) / 2

Splits of the keys are equal blocks and end together; s of 1 to 2 on average leave a share 2 - s whole.

trtllm-gen decodes by token (`by_token`; FlashInfer, trtllm/fmha/fmhaKernels.cuh,
computeCtaAndClusterConfig): each has tiles of its own, and all as many splits as the SMs hold, of 256 keys
at least. The first key tile has a pace of its own, so that wide heads cost more at any length. A step waits
for the longest sequence, or for the longest sum of n blocks in turn on an SM:

    tiles  = batch q_len kv_heads ceil(g / tile_rows),  splits = min(max(floor(sms / tiles), 1), kv_len / 256)
    walk   = (A2) and tile_keys t_key of whole_fraction
    turns  = n + 0.6 sqrt(n) (b - 1) / (b + 1),  n = ceil(load)  in place of max(a / c, 1)              (U5)

Several queries of grouped attention share a tile there (FlashInfer pull request 2265): its verification is
composed of one query's kernel.

Left in L2 (`cold=False`) bytes cost less (`waves.left_in_l2`).

Rows have K and V in 16 bits. A step with an fp8 cache starts `launch_us` later and reads a byte `byte_ratio`
times as slowly (A11, `engines.fp8_caches`).

Verification by kernels that were not fitted to it is composed in `latency.verify_attention`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from medusa_sim.arrays import BoolArray, FloatArray, IntArray, as_float
from medusa_sim.engines.fp8_caches import Fp8Cache
from medusa_sim.gpus.fitted import Fit
from medusa_sim.gpus.fitted_attention import AttentionKernel, AttentionPath, LatentKernel
from medusa_sim.gpus.gpu import Gpu
from medusa_sim.latency.bands import KernelParts, calibrated_time
from medusa_sim.latency.operator_time import OperatorTime
from medusa_sim.latency.roofline import roofline_time_us
from medusa_sim.latency.waves import balanced_us, byte_us, turns_unplanned, waves_us
from medusa_sim.operators.attention import Attention
from medusa_sim.operators.operator import Operator
from medusa_sim.units import US_PER_S

if TYPE_CHECKING:
    from medusa_sim.operators.latent import LatentAttention

_LENGTH_SPREAD = 0.6
"""Half-width of the even distribution of a step's lengths about their mean, over which splits are averaged
(A8): a coefficient of variation of 0.35. An assumption: requests are anywhere in their answers.
"""
SPLIT_MARGIN = 1.1
"""Share of blocks beyond an even spread over the SMs that the libraries' split rule leaves."""
_LEAST_SPLIT_KEYS = 256.0
"""Keys of a split of trtllm-gen, two of its tiles."""
_APPENDS = 0.5
"""Least `append_ratio` of kernels whose blocks append new keys themselves."""
NEVER = 1_000_000_000
"""A `split_above` that no length reaches: libraries that never split keys."""


def attention_time(
    gpu: Gpu, kernel: AttentionKernel, operator: Attention, *, cold: bool = True, plans: bool = True
) -> OperatorTime:
    """Time of a decode or prefill kernel for every shape that `operator` holds (A1 to A4).

    cold: K and V come from HBM, as in every step of a model; then never below the roofline.
    low and high are the 80 % band of held-out residuals for the range of q_len x batch.
    plans: whether the library spreads unequal lengths evenly over the SMs (A9), else (A10) holds.
    Raises SpecError where the GPU has no peak for the operator's dtype.
    """
    parts = AttentionRun(gpu=gpu, operator=operator, cold=cold, plans=plans).by_kernel(kernel)
    return time_of_parts(gpu, [(kernel.fit, operator)], operator, parts, cold=cold)


def writing_apart(kernel: AttentionKernel) -> AttentionKernel:
    """The kernel in a step of an engine, which writes K and V into the cache before it attends.

    No block appends them then. FlashAttention-2 was measured appending on an A100: without it prompts of
    4,096 tokens and more take 1.1 times as long as those that SGLang measured there, with it 3.2 times.
    What fits to rows of engines leave of it (0.08 at most) is theirs and stays.
    """
    if kernel.wide.append_ratio < _APPENDS:
        return kernel
    wide = msgspec.structs.replace(kernel.wide, append_ratio=0.0)
    return msgspec.structs.replace(kernel, wide=wide)


def reading_fp8(kernel: AttentionKernel, cache: Fp8Cache) -> AttentionKernel:
    """A kernel that was fitted to rows of 16 bits, over an engine's fp8 cache (A11)."""
    wide = msgspec.structs.replace(
        kernel.wide,
        ramp_us=kernel.wide.ramp_us + cache.launch_us,
        bandwidth_fraction=kernel.wide.bandwidth_fraction / cache.byte_ratio,
    )
    return msgspec.structs.replace(kernel, wide=wide)


def time_of_parts(
    gpu: Gpu, fits: list[tuple[Fit, Operator]], operator: Attention, parts: KernelParts, *, cold: bool
) -> OperatorTime:
    """Nothing that reads from HBM is faster than the roofline; rows measured in L2 may be."""
    time_us = parts.time_us
    if cold:
        one = operator.with_columns(batch=1.0)
        time_us = np.maximum(time_us, as_float(operator.batch) * roofline_time_us(gpu, one))
    return calibrated_time(gpu, fits, parts._replace(time_us=time_us))


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionRun:
    """A launch of attention on a GPU, timed by any kernel or path of one."""

    gpu: Gpu
    operator: Attention | LatentAttention
    cold: bool
    """Whether K and V come from HBM."""
    plans: bool = True
    """Whether the library spreads unequal lengths evenly over the SMs (A9); else (A10) holds."""

    def by_kernel(self, kernel: AttentionKernel | LatentKernel) -> KernelParts:
        """The path for wide rows, and for narrow ones where the library has its own."""
        operator = self.operator
        is_narrow = shared_rows(kernel.wide, operator) <= kernel.narrow_rows
        if kernel.narrow is None or not is_narrow.any():
            return self.by_faster(kernel.wide)
        narrow = self.by_faster(kernel.narrow)
        if is_narrow.all():
            return narrow
        return chosen_parts(is_narrow, narrow, self.by_faster(kernel.wide))

    def by_faster(self, path: AttentionPath) -> KernelParts:
        """Of decoding over few keys, the faster of one walk and of split keys.

        The walk was fitted to another chip's arithmetic: at half that rate 384 keys were dearer than 512.
        """
        operator, keys = self.operator, as_float(self.operator.kv_len)
        if operator.is_causal or path.split_above >= NEVER or np.min(keys, initial=NEVER) > path.split_above:
            return self.by_path(path)
        split = self.by_path(msgspec.structs.replace(path, split_above=0))
        if keys.ndim != 3 or keys.shape[1] == 1:
            unsplit = self.by_path(path)
            return chosen_parts(split.time_us < unsplit.time_us, split, unsplit)
        # on a grid few lengths are as short; beyond them both are one walk
        short = np.flatnonzero((keys <= path.split_above).any(axis=(0, 2)))
        take = partial(_of_lengths, short)
        unsplit = replace(self, operator=operator.mapped(take)).by_path(path)
        split_short = KernelParts(*map(take, split))
        faster = chosen_parts(split_short.time_us < unsplit.time_us, split_short, unsplit)

        def put(values: FloatArray | float, of_short: FloatArray | float) -> FloatArray:
            every = np.broadcast_to(values, split.time_us.shape).copy()
            every[:, short] = of_short
            return every

        return KernelParts(*map(put, split, faster))

    def by_path(self, path: AttentionPath) -> KernelParts:
        """What one sequence takes knows no batch: kept apart, most arrays have two axes of three."""
        gpu, operator, cold = self.gpu, self.operator, self.cold
        batch, one = as_float(operator.batch), operator.with_columns(batch=1.0)
        kv_len, q_len = as_float(operator.kv_len), as_float(operator.q_len)
        may_split = kv_len > path.split_above
        rows, own_tiles, tokens_per_tile = row_tiles(path, one)
        tiles = batch * own_tiles
        blocks = np.ceil(kv_len / path.tile_keys)
        if path.by_token:
            splits = _whole_splits(gpu.sms / tiles, kv_len, cold=cold)
            may_split = splits > 1.0
        else:
            splits = _even_splits(gpu.sms, blocks, tiles, may_split, cold=cold)
        load = tiles * splits / gpu.sms

        fraction = np.where(kv_len > path.split_above, path.split_fraction, path.whole_fraction)
        t_key = self.key_us(path) / fraction
        own_blocks = blocks / splits if cold else np.ceil(blocks / splits)
        chunk = np.minimum(own_blocks * path.tile_keys, np.maximum(kv_len, path.tile_keys))
        start_us = path.cta_us + path.row_us * np.minimum(rows, path.tile_rows)
        chunk_us = (chunk - path.tile_keys + path.append_ratio * q_len) * t_key
        if path.by_token:
            start_us = start_us + path.tile_keys * self.key_us(path) / path.whole_fraction

        one_byte_us = byte_us(gpu, path, np.zeros(()) if cold else operator.bytes, cold=cold)
        own_memory = one.bytes * one_byte_us
        tail_us: FloatArray = np.zeros(())
        if operator.is_causal:
            new_keys = 0.5 * (q_len + tokens_per_tile + path.tile_keys)
            keys = kv_len - q_len + new_keys * (1.0 + path.append_ratio)
            mean_us = np.maximum(keys - path.tile_keys, 0.0) / splits * t_key
            longest_us, chunk_us = chunk_us, np.where(rows > path.tile_rows, mean_us, chunk_us)
            tail_us = np.maximum(longest_us - chunk_us, 0.0)
        memory_us = own_memory * (gpu.sms / (own_tiles * splits))
        blocks_us = load, path.ctas_per_sm, path.sharing, (start_us, chunk_us), memory_us
        if cold and not operator.is_causal:
            turns = load / path.ctas_per_sm
            turns = (
                _by_token(turns, batch) if path.by_token else _turns(turns, batch, splits, plans=self.plans)
            )
            body, walk = balanced_us(*blocks_us, turns)
        else:
            body, walk = waves_us(*blocks_us)
        combine = np.where(may_split, path.split_us + path.split_step_us * np.log2(splits), 0.0)
        fixed = path.ramp_us + combine
        time_us = fixed + body
        if operator.is_causal:
            time_us, walk = time_us + tail_us, walk + tail_us
        if path.store_passes:
            new_bytes = operator.with_columns(kv_len=operator.q_len).kv_bytes
            time_us = time_us + path.store_passes * new_bytes * one_byte_us
        return KernelParts(time_us, fixed + start_us, memory_us=batch * own_memory, work_us=walk)

    def key_us(self, path: AttentionPath) -> FloatArray:
        """Both products of a full tile of rows with one key, at the whole peak of one SM (A2)."""
        sm_flops_per_us = self.gpu.peak(self.operator.dtype) / self.gpu.sms / US_PER_S
        return 4.0 * as_float(self.operator.head_dim) * path.tile_rows / sm_flops_per_us


def chosen_parts(where: BoolArray, first: KernelParts, other: KernelParts) -> KernelParts:
    """The first where `where` holds, else the other."""
    return KernelParts(*(np.where(where, one, two) for one, two in zip(first, other, strict=True)))


def _of_lengths(some: IntArray, values: FloatArray) -> FloatArray:
    """Those of the middle one of three axes; what does not vary along it stays as it is."""
    return values[:, some] if values.ndim == 3 and values.shape[1] > 1 else values


def _even_splits(
    sms: int, blocks: FloatArray, tiles: FloatArray, may_split: BoolArray, *, cold: bool
) -> FloatArray:
    """(A1), in a step averaged over lengths (A8)."""
    if np.min(tiles, initial=sms) * SPLIT_MARGIN >= sms:  # tiles alone fill the SMs
        return np.ones(())
    spread = (SPLIT_MARGIN / sms) * blocks * tiles
    if cold:
        return np.where(may_split, blocks / np.minimum(_whole_blocks(spread), blocks), 1.0)
    return np.where(may_split, np.ceil(blocks / np.minimum(np.ceil(spread), blocks)), 1.0)


def _whole_splits(held: FloatArray, kv_len: FloatArray, *, cold: bool) -> FloatArray:
    """Splits of (U5), where a longer context takes no less in a step. held: SMs for each tile."""
    most = kv_len / _LEAST_SPLIT_KEYS
    return np.clip(np.floor(held + 1e-9), 1.0, np.maximum(most, 1.0) if cold else np.ceil(most))


def _by_token(load: FloatArray, batch: FloatArray) -> FloatArray:
    """Turns of (U5)."""
    waves = np.ceil(np.maximum(load - 1e-9, 1.0))
    return waves + _LENGTH_SPREAD * np.sqrt(waves) * (batch - 1.0) / (batch + 1.0)


def _turns(turns: FloatArray, batch: FloatArray, splits: FloatArray, *, plans: bool) -> FloatArray:
    """Blocks that an SM takes in turn: planned (A9), or sequences as they come, whose splits are even (A10).

    splits are a mean over lengths: between 1 and 2 some of the batches are not split.
    """
    even = np.maximum(turns, 1.0)
    if plans:
        return even
    unsplit_share = np.clip(2.0 - splits, 0.0, 1.0)
    return even + unsplit_share * (turns_unplanned(turns, batch, _LENGTH_SPREAD) - even)


def _whole_blocks(spread: FloatArray) -> FloatArray:
    """Whole blocks of a split where an even spread has `spread`, averaged over lengths (A8).

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
    floor = np.floor(ends)
    ends -= 0.5 * floor
    floor += 1.0
    ends *= floor
    return ends


def shared_rows(path: AttentionPath, operator: Attention | LatentAttention) -> FloatArray:
    """Query rows that share a K/V head, of one token where each has blocks of its own."""
    rows = as_float(operator.heads) / as_float(operator.kv_heads)
    return rows if path.by_token else rows * as_float(operator.q_len)


def row_tiles(
    path: AttentionPath, operator: Attention | LatentAttention
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Query rows that share one walk over keys, number of row tiles, and tokens of one tile."""
    batch, q_len = as_float(operator.batch), as_float(operator.q_len)
    heads, kv_heads = as_float(operator.heads), as_float(operator.kv_heads)
    group = heads / kv_heads
    if not path.packs_gqa:
        group = np.where(q_len > 1.0, 1.0, group)
    walks, tokens = (q_len, np.ones(())) if path.by_token else (np.ones(()), q_len)
    rows = tokens * group
    tiles = batch * (heads / group) * walks * np.ceil(rows / path.tile_rows)
    return rows, tiles, np.minimum(tokens, path.tile_rows / group)
