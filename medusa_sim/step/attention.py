"""Grouped and windowed attention -> kernels: projections, rotation, the products."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from medusa_sim.arrays import as_float
from medusa_sim.models.mixers import Grouped
from medusa_sim.operators.attention import Attention, AttentionKind
from medusa_sim.operators.elementwise import Elementwise
from medusa_sim.operators.operator import Size
from medusa_sim.operators.window import WindowAttention
from medusa_sim.step.launch import Launch, elementwise_launch
from medusa_sim.step.mixer_layers import FUSED_KIND, KERNEL_PHASE, MixerLayers

_NARROW = 512
"""Tokens of a window up to which its own kernels are asked. In a wide one the plain kernels are nearer to
engines: Gemma-3-27B's plain steps (window 1024) err 1.6 % with them and 2.4 % with those of windows.
"""


def grouped_launches(mixer: Grouped, layers: MixerLayers[Grouped]) -> list[Launch]:
    """Q, K and V, the products of windowed and other layers, output, rotation and norms."""
    hidden, query, kv = layers.model.hidden, mixer.query_width, mixer.kv_width
    read = mixer.inputs * hidden
    if layers.runtime.fused_qkv:
        launches = [layers.linear("qkv_proj", "qkv", mixer.input_width, read)]
    else:
        launches = [
            layers.linear("q_proj", "qkv", query + mixer.gate_width, read),
            layers.linear("k_proj", "qkv", kv, read),
        ]
        if not mixer.keys_are_values:
            launches.append(layers.linear("v_proj", "qkv", mixer.value_width, read))
    if layers.runtime.repeats_kv and mixer.heads != mixer.kv_heads:
        copied = np.asarray(layers.workload.batch) * np.asarray(layers.workload.kv_len)
        copy = elementwise_launch(
            layers.model, "repeat_kv", "embedding", "attention", copied, query, 2 * layers.count
        )
        launches.append(copy)
    launches += [*_products(mixer, layers), layers.output_linear("o_proj", hidden, mixer.output_width)]
    if mixer.gate != "none":
        launches.append(layers.elementwise("gate", "activation", mixer.output_width))
    if layers.model.rope and mixer.rotates:
        launches.append(layers.elementwise("rope", "rope", query + kv))
    if mixer.qk_norm:
        rows = np.asarray(layers.rows) * (mixer.heads + mixer.kv_heads)
        launches.append(layers.elementwise("qk_norm", "rms_norm", mixer.head_dim, rows=rows))
    return launches


def _products(mixer: Grouped, layers: MixerLayers[Grouped]) -> list[Launch]:
    """QK^T, softmax and PV of every layer, fused or not; fused kernels of windowed layers read the window."""
    if layers.runtime.attention != "fused":
        products: tuple[AttentionKind, ...] = ("qk", "pv")
        scores = np.asarray(layers.rows) * mixer.heads
        softmax = Elementwise(
            name="softmax",
            kind="rms_norm",
            m=scores,
            n=layers.workload.kv_len,
            dtype=layers.model.activation_dtype,
        )
        return [
            *(_attention(mixer, kind, layers, kv_len=layers.unfused_keys) for kind in products),
            Launch(operator=softmax, part="attention", count=layers.count),
        ]
    # layers that see everything first
    variants = sorted(layers.variants, key=lambda variant: variant[1].size is not None)
    return [_product(variant, replace(layers, variants=((count, variant),))) for count, variant in variants]


def _product(mixer: Grouped, layers: MixerLayers[Grouped]) -> Launch:
    """Attention of a layer; in a narrow window a kernel of its own, where one is fitted for an engine."""
    kind = FUSED_KIND[layers.workload.phase]
    plain = _attention(mixer, kind, layers, **_in_window(mixer, layers))
    if mixer.size is None or mixer.size > _NARROW or mixer.chunked or layers.runtime.engine is None:
        return plain
    windowed = layers.attention(
        WindowAttention,
        kind,
        q_len=as_float(layers.workload.query_tokens),
        prefix=layers.prefix,
        heads=mixer.heads,
        kv_heads=mixer.kv_heads,
        head_dim=mixer.head_dim,
        window=mixer.size,
        kv_dtype=layers.model.kv_dtype,
        phase=KERNEL_PHASE[layers.workload.phase],
    )
    return replace(windowed, composed=(plain,))


def _attention(mixer: Grouped, kind: AttentionKind, layers: MixerLayers[Grouped], **sizes: Size) -> Launch:
    # one width for both products: that at which they are as large as they are
    width = mixer.head_dim if mixer.v_dim is None else (mixer.head_dim + mixer.v_dim) / 2
    usual = {
        "kv_len": layers.workload.kv_len,
        "heads": mixer.heads,
        "kv_heads": mixer.kv_heads,
        "head_dim": width,
    }
    return layers.attention(Attention, kind, kind=kind, kv_dtype=layers.model.kv_dtype, **usual | sizes)


def _in_window(mixer: Grouped, layers: MixerLayers[Grouped]) -> dict[str, Size]:
    """Sizes of a layer's kernel with fewer keys where it has a window.

    A prompt longer than the window w is s / w blocks of w queries over 1.5 w keys, which causal attention
    halves to the w pairs that each query has.
    """
    if mixer.size is None:
        return {}
    queries = as_float(layers.workload.query_tokens)
    if not layers.is_prompt:
        return {"kv_len": mixer.keys(layers.keys, queries)}
    blocks = np.maximum(layers.keys / mixer.size, 1.0)
    return {
        "kv_len": np.where(blocks > 1.0, 1.5 * mixer.size, layers.keys),
        "batch": np.asarray(layers.workload.batch) * blocks,
        "q_len": queries / blocks,
    }
