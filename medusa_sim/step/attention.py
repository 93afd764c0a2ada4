"""Grouped and windowed attention -> kernels: projections, rotation, the products."""

from __future__ import annotations

import numpy as np

from medusa_sim.operators.operator import (
    CONTEXT,
    GENERATION,
    VERIFY,
    Attention,
    AttentionKind,
    Elementwise,
    Size,
)
from medusa_sim.specs.mixers import Grouped
from medusa_sim.step.workload import Launch, Mixing, Phase, elementwise_launch, linear_launch

FUSED_KIND: dict[Phase, AttentionKind] = {
    "prefill": "prefill_attention",
    "decode": "decode_attention",
    "verify": "verify_attention",
}

_NARROW = 512
"""Tokens of a window up to which its own kernels are asked. In a wide one the plain kernels are nearer to
engines: Gemma-3-27B's plain steps (window 1024) err 1.6 % with them and 2.4 % with those of windows.
"""
KERNEL_PHASE: dict[Phase, str] = {"prefill": CONTEXT, "decode": GENERATION, "verify": VERIFY}


def grouped_launches(mixer: Grouped, at: Mixing[Grouped]) -> list[Launch]:
    """Q, K and V, the products of windowed and other layers, output, rotation and norms."""
    model, m, count = at.model, at.rows, at.count
    query, kv = mixer.query_width, mixer.kv_width
    if at.runtime.fused_qkv:
        launches = [linear_launch(model, "qkv_proj", "qkv", m, mixer.input_width, model.hidden, count)]
    else:
        launches = [
            linear_launch(model, "q_proj", "qkv", m, query + mixer.gate_width, model.hidden, count),
            linear_launch(model, "k_proj", "qkv", m, kv, model.hidden, count),
        ]
        if not mixer.keys_are_values:
            launches.append(linear_launch(model, "v_proj", "qkv", m, mixer.value_width, model.hidden, count))
    if at.runtime.repeats_kv and mixer.heads != mixer.kv_heads:
        copied = np.asarray(at.workload.batch) * np.asarray(at.workload.kv_len)
        copy = elementwise_launch(model, "repeat_kv", "embedding", "attention", copied, query, 2 * count)
        launches.append(copy)
    launches += _products(mixer, at)
    launches.append(
        linear_launch(at.output_model, "o_proj", "o_proj", m, model.hidden, mixer.output_width, count)
    )
    if mixer.gate != "none":
        launches.append(
            elementwise_launch(model, "gate", "activation", "norm_rope", m, mixer.output_width, count)
        )
    if model.rope and mixer.rotates:
        rotated = query + kv
        launches.append(elementwise_launch(model, "rope", "rope", "norm_rope", m, rotated, count))
    if mixer.qk_norm:
        rows = np.asarray(m) * (mixer.heads + mixer.kv_heads)
        launches.append(
            elementwise_launch(model, "qk_norm", "rms_norm", "norm_rope", rows, mixer.head_dim, count)
        )
    return launches


def _products(mixer: Grouped, at: Mixing[Grouped]) -> list[Launch]:
    """QK^T, softmax and PV of every layer, fused or not; fused kernels of windowed layers read the window."""
    workload = at.workload
    if at.runtime.attention != "fused":
        products: tuple[AttentionKind, ...] = ("qk", "pv")
        launches = [
            Launch(
                operator=_attention(mixer, kind, at, kv_len=at.unfused_keys), part="attention", count=at.count
            )
            for kind in products
        ]
        scores = np.asarray(at.rows) * mixer.heads
        softmax = Elementwise(
            name="softmax", kind="rms_norm", m=scores, n=workload.kv_len, dtype=at.model.activation_dtype
        )
        return [*launches, Launch(operator=softmax, part="attention", count=at.count)]
    kind = FUSED_KIND[workload.phase]
    # layers that see everything first
    variants = sorted(at.variants, key=lambda variant: variant[1].size is not None)
    return [_product(each, kind, at, count) for count, each in variants]


def _product(mixer: Grouped, kind: AttentionKind, at: Mixing[Grouped], count: int) -> Launch:
    """Attention of a layer; in a narrow window a kernel of its own, where one is fitted for an engine."""
    plain = Launch(operator=_windowed(mixer, kind, at), part="attention", count=count)
    if mixer.size is None or mixer.size > _NARROW or mixer.chunked or at.runtime.engine is None:
        return plain
    from medusa_sim.operators.window import WindowAttention  # few models have such windows

    queries = np.asarray(at.workload.query_tokens, dtype=np.float64)
    kernel = WindowAttention(
        name=kind,
        batch=at.workload.batch,
        q_len=queries,
        prefix=np.maximum(np.asarray(at.workload.kv_len, dtype=np.float64) - queries, 0.0),
        heads=mixer.heads,
        kv_heads=mixer.kv_heads,
        head_dim=mixer.head_dim,
        window=mixer.size,
        dtype=at.model.activation_dtype,
        kv_dtype=at.model.kv_dtype,
        phase=KERNEL_PHASE[at.workload.phase],
    )
    return Launch(operator=kernel, part="attention", count=count, composed=(plain,))


def _attention(mixer: Grouped, kind: AttentionKind, at: Mixing[Grouped], **sizes: Size) -> Attention:
    kernel = Attention(
        name=kind,
        kind=kind,
        batch=at.workload.batch,
        q_len=at.workload.query_tokens,
        kv_len=at.workload.kv_len,
        heads=mixer.heads,
        kv_heads=mixer.kv_heads,
        # one width for both products: that at which they are as large as they are
        head_dim=mixer.head_dim if mixer.v_dim is None else (mixer.head_dim + mixer.v_dim) / 2,
        dtype=at.model.activation_dtype,
        kv_dtype=at.model.kv_dtype,
    )
    return kernel.with_columns(**sizes) if sizes else kernel


def _windowed(mixer: Grouped, kind: AttentionKind, at: Mixing[Grouped]) -> Attention:
    """The kernel of a layer, with fewer keys where it has a window.

    A prompt longer than the window w is s / w blocks of w queries over 1.5 w keys, which causal attention
    halves to the w pairs that each query has.
    """
    if mixer.size is None:
        return _attention(mixer, kind, at)
    workload = at.workload
    keys = np.asarray(workload.kv_len, dtype=np.float64)
    queries = np.asarray(workload.query_tokens, dtype=np.float64)
    if workload.phase != "prefill":
        return _attention(mixer, kind, at, kv_len=mixer.keys(keys, queries))
    blocks = np.maximum(keys / mixer.size, 1.0)
    return _attention(
        mixer,
        kind,
        at,
        kv_len=np.where(blocks > 1.0, 1.5 * mixer.size, keys),
        batch=np.asarray(workload.batch) * blocks,
        q_len=queries / blocks,
    )
