"""Attention of a model -> kernels: projections, rotation, the products, latent attention, windows."""

from __future__ import annotations

import numpy as np

from medusa_sim.operators.latent import LatentAttention, LatentKind
from medusa_sim.operators.operator import Attention, AttentionKind, Elementwise, Size
from medusa_sim.specs.latent import Latent
from medusa_sim.specs.model import Model
from medusa_sim.specs.runtime import Runtime
from medusa_sim.specs.windows import Windows
from medusa_sim.step.workload import (
    Launch,
    Phase,
    Workload,
    elementwise_launch,
    head_launch,
    linear_launch,
)

_FUSED_KIND: dict[Phase, AttentionKind] = {
    "prefill": "prefill_attention",
    "decode": "decode_attention",
    "verify": "verify_attention",
}


def projection_launches(model: Model, workload: Workload, runtime: Runtime, m: Size) -> list[Launch]:
    """Q, K and V of every layer; of latent attention what compresses and expands them."""
    if model.latent is not None:
        return _latent_projections(model, model.latent, workload, m)
    count = model.layers
    query_width = model.heads * model.head_dim
    kv_width = model.kv_heads * model.head_dim
    if runtime.fused_qkv:
        return [linear_launch(model, "qkv_proj", "qkv", m, query_width + 2 * kv_width, model.hidden, count)]
    return [
        linear_launch(model, "q_proj", "qkv", m, query_width, model.hidden, count),
        linear_launch(model, "k_proj", "qkv", m, kv_width, model.hidden, count),
        linear_launch(model, "v_proj", "qkv", m, kv_width, model.hidden, count),
    ]


def _latent_projections(model: Model, latent: Latent, workload: Workload, m: Size) -> list[Launch]:
    """Compression (held whole by every GPU), queries, and the up-projections of K and V.

    A decode or verification step multiplies queries and results with the up-projections instead of the cache
    ("absorption", arXiv 2405.04434, section 2.1.2); those products stay in the activations' dtype.
    """
    count, heads = model.layers, model.heads
    launches = [linear_launch(model, "qkv_a_proj", "qkv", m, latent.down_width, model.hidden, count)]
    launches.append(
        linear_launch(
            model, "q_b_proj", "qkv", m, heads * latent.qk_dim, latent.q_rank or model.hidden, count
        )
    )
    if workload.phase == "prefill":
        width = heads * (latent.nope_dim + latent.v_dim)
        return [*launches, linear_launch(model, "kv_b_proj", "qkv", m, width, latent.kv_rank, count)]
    return [
        *launches,
        head_launch(model, "k_absorb", "qkv", m, heads * latent.kv_rank, latent.nope_dim, count),
        head_launch(model, "v_absorb", "qkv", m, heads * latent.v_dim, latent.kv_rank, count),
    ]


def output_launch(model: Model, m: Size) -> Launch:
    """The output projection of every layer."""
    width = model.head_dim if model.latent is None else model.latent.v_dim
    return linear_launch(model, "o_proj", "o_proj", m, model.hidden, model.heads * width, model.layers)


def attention_launches(
    model: Model, workload: Workload, runtime: Runtime, unfused_keys: Size
) -> list[Launch]:
    """The products of every layer, fused or not; windowed layers read their window."""
    if model.latent is not None:
        return [_latent_attention(model, model.latent, workload)]
    if runtime.attention != "fused":
        products: tuple[AttentionKind, ...] = ("qk", "pv")
        return [
            Launch(
                operator=_attention(model, kind, workload, unfused_keys), part="attention", count=model.layers
            )
            for kind in products
        ]
    kind = _FUSED_KIND[workload.phase]
    windows = model.windows
    windowed = 0 if windows is None else windows.layers
    launches = []
    if windowed < model.layers:
        kernel = _attention(model, kind, workload, workload.kv_len)
        launches.append(Launch(operator=kernel, part="attention", count=model.layers - windowed))
    if windows is not None and windowed:
        kernel = _windowed(model, windows, kind, workload)
        launches.append(Launch(operator=kernel, part="attention", count=windowed))
    return launches


def _attention(model: Model, kind: AttentionKind, workload: Workload, kv_len: Size) -> Attention:
    return Attention(
        name=kind,
        kind=kind,
        batch=workload.batch,
        q_len=workload.query_tokens,
        kv_len=kv_len,
        heads=model.heads,
        kv_heads=model.kv_heads,
        head_dim=model.head_dim,
        dtype=model.activation_dtype,
        kv_dtype=model.kv_dtype,
    )


def _windowed(model: Model, windows: Windows, kind: AttentionKind, workload: Workload) -> Attention:
    """The kernel of a windowed layer: fewer keys.

    A prompt longer than the window w is s / w blocks of w queries over 1.5 w keys, which causal attention
    halves to the w pairs that each query has.
    """
    keys = np.asarray(workload.kv_len, dtype=np.float64)
    queries = np.asarray(workload.query_tokens, dtype=np.float64)
    if workload.phase != "prefill":
        return _attention(model, kind, workload, windows.keys(keys, queries))
    blocks = np.maximum(keys / windows.size, 1.0)
    whole = _attention(model, kind, workload, np.where(blocks > 1.0, 1.5 * windows.size, keys))
    return whole.with_columns(batch=np.asarray(workload.batch) * blocks, q_len=queries / blocks)


def _latent_attention(model: Model, latent: Latent, workload: Workload) -> Launch:
    kind: LatentKind = "mla_prefill" if workload.phase == "prefill" else "mla_decode"
    kernel = LatentAttention(
        name=kind,
        kind=kind,
        batch=workload.batch,
        q_len=workload.query_tokens,
        kv_len=workload.kv_len,
        heads=model.heads,
        latent_dim=latent.kv_rank,
        rope_dim=latent.rope_dim,
        nope_dim=latent.nope_dim,
        v_dim=latent.v_dim,
        dtype=model.activation_dtype,
        kv_dtype=model.kv_dtype,
    )
    return Launch(operator=kernel, part="attention", count=model.layers)


def around_attention(model: Model, workload: Workload, runtime: Runtime, m: Size) -> list[Launch]:
    """Small kernels: rotation, norms of queries and keys, the softmax of unfused products."""
    layers, launches = model.layers, []
    latent = model.latent
    if model.rope:
        rotated = (model.heads + model.kv_heads) * model.head_dim
        if latent is not None:
            rotated = (model.heads + 1) * latent.rope_dim
        launches.append(elementwise_launch(model, "rope", "rope", "norm_rope", m, rotated, layers))
    if latent is not None:
        width = latent.norm_count
        launches.append(elementwise_launch(model, "latent_norm", "rms_norm", "norm_rope", m, width, layers))
    if model.qk_norm:
        rows = np.asarray(m) * (model.heads + model.kv_heads)
        launches.append(
            elementwise_launch(model, "qk_norm", "rms_norm", "norm_rope", rows, model.head_dim, layers)
        )
    if runtime.attention == "unfused":
        scores = np.asarray(m) * model.heads
        softmax = Elementwise(
            name="softmax", kind="rms_norm", m=scores, n=workload.kv_len, dtype=model.activation_dtype
        )
        launches.append(Launch(operator=softmax, part="attention", count=layers))
    return launches
