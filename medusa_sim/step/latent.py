"""Latent attention of a mixer -> kernels, to all keys."""

from __future__ import annotations

from typing import Any

from medusa_sim.models.mixers import Latent
from medusa_sim.models.sparse import Compressed
from medusa_sim.operators.latent import LatentAttention
from medusa_sim.step.launch import Launch
from medusa_sim.step.mixer_layers import MixerLayers


def latent_launches(mixer: Latent, layers: MixerLayers[Latent]) -> list[Launch]:
    """Compression (held whole by every GPU), queries, the up-projections of K and V, attention and output.

    A decode or verification step multiplies queries and results with the up-projections instead of the cache
    ("absorption", arXiv 2405.04434, section 2.1.2); those products stay in the activations' dtype.
    """
    hidden, heads = layers.model.hidden, mixer.heads
    values = heads * mixer.v_dim
    launches = [
        layers.linear("qkv_a_proj", "qkv", mixer.down_width, hidden),
        layers.linear("q_b_proj", "qkv", heads * mixer.qk_dim, mixer.q_rank or hidden),
    ]
    if layers.is_prompt:
        width = heads * (mixer.nope_dim + mixer.v_dim)
        launches.append(layers.linear("kv_b_proj", "qkv", width, mixer.kv_rank))
    else:
        launches += [
            layers.unquantised_linear("k_absorb", heads * mixer.kv_rank, mixer.nope_dim),
            layers.unquantised_linear("v_absorb", values, mixer.kv_rank),
        ]
    sizes = {"latent_dim": mixer.kv_rank, "nope_dim": mixer.nope_dim, "v_dim": mixer.v_dim}
    launches += [latent_attention(mixer, layers, **sizes), layers.output_linear("o_proj", hidden, values)]
    if mixer.gate:
        launches += [
            layers.linear("gate_proj", "qkv", values, hidden),
            layers.elementwise("gate", "activation", values),
        ]
    if layers.model.rope and mixer.rotates:
        launches.append(layers.elementwise("rope", "rope", (heads + 1) * mixer.rope_dim))
    return [*launches, layers.elementwise("latent_norm", "rms_norm", mixer.norm_weights)]


def latent_attention(mixer: Latent | Compressed, layers: MixerLayers[Any], **sizes: int) -> Launch:
    """The step's attention of all heads to one latent key each."""
    kind = "mla_prefill" if layers.is_prompt else "mla_decode"
    return layers.attention(
        LatentAttention,
        kind,
        kind=kind,
        kv_len=layers.workload.kv_len,
        heads=mixer.heads,
        rope_dim=mixer.rope_dim,
        kv_dtype=layers.model.kv_dtype,
        **sizes,
    )
