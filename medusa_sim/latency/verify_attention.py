"""Calibrated time of attention with several queries a sequence, where no kernel was fitted to it.

Verification attention was measured nowhere publicly; both ends of its range were: one query row (decode) and
64 rows or more (chunks of prefill over a prefix). Between them, with D the decode kernel at one row and P the
prefill kernel's arithmetic over the decode kernel's memory path, no causal corner left out:

    verify  = D + (1 - 1 / q_len) max(P(q_len) - D, 0)                                                  (A5)

so that it is D at one row and the slower of both where many rows were measured. K and V are read once for all
candidates of a sequence in either.

A kernel set that was fitted to rows of verification attention itself (`medusa-sim measure` records them) has
a kernel of its own for it, by (A1) to (A4), and needs no (A5).

That is a kernel that splits keys for any q. An engine may run one that does not (`engines.backends`):
FlashAttention-2 with a cache walks over all keys of a sequence in one block per head, its query rows padded
to 64 and not packed. With F the FLOPs of an SM in a clock, on the Tensor Cores,

    t_key    = d |256 / F, 0.273| clocks,  splits = 1                                                    (A6)

the products of a key on top of what does not overlap with them in a lone block: reading shared memory and the
softmax. Both terms are clocks, so that their share of the peak is a matter of F alone: 0.88 where F is 512
(RTX 3090, measured within 7 %), 0.42 where it is 2048 (A100; chunks of prefill in the same kernel give 0.39).
"""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np

from medusa_sim.arrays import as_float
from medusa_sim.gpus.carried import flops_per_clock
from medusa_sim.gpus.fitted_attention import AttentionKernel
from medusa_sim.gpus.gpu import Gpu
from medusa_sim.latency.attention import (
    NEVER,
    SPLIT_MARGIN,
    AttentionRun,
    chosen_parts,
    row_tiles,
    time_of_parts,
)
from medusa_sim.latency.bands import KernelParts, calibrated_time, less_certain
from medusa_sim.latency.operator_time import OperatorTime, Source
from medusa_sim.operators.attention import Attention
from medusa_sim.units import US_PER_S

_WHOLE_ROWS = 64
_WHOLE_SERIAL_CLOCKS = 0.273
_WHOLE_RAMP_US = 11.9
_WHOLE_CTAS = 2
_WHOLE_SHARING = 0.45
"""FlashAttention-2 without split keys (A6): rows of a tile, clocks of a key and head dimension beside the
products, and what a lone block, and two on an SM, take in chunks of prefill on the A100 (microsoft/vidur)."""
WHOLE_ERROR = 0.15
"""80 % half-width on GPUs other than those whose rows set (A6)."""
_DRAWN_SHARE = 0.5
_CALL_US, _PREFILL_CALL_US = 31.0, 26.2
_WALK_START_US, _WALK_US = 4.0, 11.9
"""Of (A7), fitted to `trtllm-gen` rows of a B200 (`benchmarks/verify_attention.py`)."""


def verify_attention_time(
    gpu: Gpu,
    decode: AttentionKernel,
    prefill: AttentionKernel,
    operator: Attention,
    *,
    cold: bool = True,
    plans: bool = True,
) -> OperatorTime:
    """Time of a verification step's attention: q_len candidates of each sequence over one kv_len (A5).

    Equal to `attention_time` of the decode kernel at q_len 1, whose arguments it has. The band is the product
    of both kernels' bands, since nobody measured what lies between them. Raises SpecError as it does.
    """
    one_row = operator.with_columns(q_len=1)
    run = AttentionRun(gpu=gpu, operator=operator, cold=cold, plans=plans)
    base = replace(run, operator=one_row).by_kernel(decode)
    # the prefill path reads as the decode path does: long K and V, which few prefill rows have
    names = ("bandwidth_fraction", "l2_ratio", "l2_fill", "l2_sharpness")
    memory = {name: getattr(decode.wide, name) for name in names}
    path = msgspec.structs.replace(prefill.wide, **memory)
    many = run.by_faster(path)
    q_len = as_float(operator.q_len)
    weight = 1.0 - 1.0 / q_len
    parts = KernelParts(
        time_us=base.time_us + weight * np.maximum(many.time_us - base.time_us, 0.0),
        memory_us=np.maximum(base.memory_us, many.memory_us),
        work_us=np.maximum(base.work_us, many.work_us),
        fixed_us=base.fixed_us,
    )
    return time_of_parts(gpu, [(decode.fit, one_row), (prefill.fit, operator)], operator, parts, cold=cold)


def whole_attention_time(
    gpu: Gpu, decode: AttentionKernel, operator: Attention, *, splits: bool = False, cold: bool = True
) -> OperatorTime:
    """Time of FlashAttention-2 over a cache with several queries a sequence (A6).

    decode: kernel of one query, which has the memory path. splits: as patched, with keys spread evenly over
    the SMs, and a tenth more. Raises SpecError as `attention_time` does.
    """
    tensor_clocks = 4.0 * _WHOLE_ROWS / flops_per_clock(gpu.peak(operator.dtype) / gpu.sms)
    fraction = tensor_clocks / float(np.hypot(tensor_clocks, _WHOLE_SERIAL_CLOCKS))
    path = msgspec.structs.replace(
        decode.wide,
        ramp_us=_WHOLE_RAMP_US,
        cta_us=0.0,
        row_us=0.0,
        tile_rows=_WHOLE_ROWS,
        packs_gqa=False,
        by_token=False,
        ctas_per_sm=_WHOLE_CTAS,
        sharing=max(_WHOLE_SHARING, 2.0 * fraction - 1.0),
        whole_fraction=fraction,
        split_fraction=fraction,
        split_above=NEVER,
    )
    one_row = operator.with_columns(q_len=1)
    run = AttentionRun(gpu=gpu, operator=operator, cold=cold, plans=False)
    plain, verify = replace(run, operator=one_row).by_kernel(decode), run.by_path(path)
    if splits:
        _, tiles, _ = row_tiles(path, operator)
        keys = as_float(operator.kv_len) * run.key_us(path) / fraction
        walk = SPLIT_MARGIN * tiles * keys / gpu.sms
        fixed = np.full(walk.shape, path.ramp_us + path.split_us)
        verify = KernelParts(fixed + np.hypot(walk, verify.memory_us), fixed, verify.memory_us, walk)
    several = as_float(operator.q_len) > 1.0
    parts = chosen_parts(several, verify, plain)
    time = time_of_parts(gpu, [(decode.fit, one_row)], operator, parts, cold=cold)
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
    time = calibrated_time(gpu, [(decode.fit, operator)], KernelParts(time_us, fixed_us, read_us, walk_us))
    band = np.exp(error)
    return replace(time, low_us=time.time_us / band, high_us=time.time_us * band)
