"""Readers of families whose layers attend to all tokens or to a window: dense, and mixtures of experts."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from medusa_sim.specs.feed_forwards import FeedForward, MoE
from medusa_sim.specs.hf_given import Count, ExpertCount, Given, Own, WindowSize, layered
from medusa_sim.specs.mixers import Grouped, Latent
from medusa_sim.specs.model import Layers, Width


class _Moe(msgspec.Struct, frozen=True, kw_only=True):
    num_experts_per_tok: ExpertCount


class _Mtp(msgspec.Struct, frozen=True, kw_only=True):
    num_nextn_predict_layers: Count | None = None


class _Windows(msgspec.Struct, frozen=True, kw_only=True):
    sliding_window: WindowSize | None = None
    use_sliding_window: bool | None = None
    max_window_layers: Count | None = None
    sliding_window_pattern: Annotated[int, Meta(ge=1, le=1000)] | None = None
    layer_types: list[str] | None = None


class _LocalExperts(_Moe, frozen=True, kw_only=True):
    num_local_experts: ExpertCount
    intermediate_size: Width


class _Qwen(_Moe, frozen=True, kw_only=True):
    num_experts: ExpertCount
    moe_intermediate_size: Width
    shared_expert_intermediate_size: Count = 0
    decoder_sparse_step: Layers = 1
    mlp_only_layers: list[Count] = []


class _DeepSeek(_Moe, frozen=True, kw_only=True):
    num_nextn_predict_layers: Count | None = None
    n_routed_experts: ExpertCount
    moe_intermediate_size: Width
    n_shared_experts: Count | None = None
    first_k_dense_replace: Count = 0
    moe_layer_freq: Layers = 1


class _Latent(msgspec.Struct, frozen=True, kw_only=True):
    kv_lora_rank: Width
    qk_nope_head_dim: Width
    qk_rope_head_dim: Width
    v_head_dim: Width
    q_lora_rank: Width | None = None


class _Glm(_DeepSeek, frozen=True, kw_only=True):
    use_qk_norm: bool = False


class _Llama4(_LocalExperts, frozen=True, kw_only=True):
    intermediate_size_mlp: Width
    interleave_moe_layer_step: Layers = 1
    moe_layers: list[Count] | None = None
    attention_chunk_size: WindowSize | None = None
    no_rope_layers: list[Annotated[int, Meta(ge=0, le=1)]] | None = None


class _MiniMax(_LocalExperts, frozen=True, kw_only=True):
    use_qk_norm: bool = True
    use_mtp: bool = False
    num_mtp_modules: Count = 0


def dense(given: Given) -> Own:
    """Dense layers, all alike but for their windows."""
    layers = layered(windowed(given), [given.mlp] * given.layers)
    return Own(layers=layers, mtp_layers=given.read(_Mtp).num_nextn_predict_layers or 0)


def mixtral(given: Given) -> Own:
    """Mixtral: experts in every layer."""
    experts = _local(given.read(_LocalExperts))
    return Own(layers=layered(windowed(given), [experts] * given.layers))


def _local(config: _LocalExperts, *, shared: int = 0, biases: bool = False) -> MoE:
    return MoE(
        experts=config.num_local_experts,
        topk=config.num_experts_per_tok,
        inter=config.intermediate_size,
        shared=shared,
        biases=biases,
    )


def qwen_experts(given: Given) -> list[FeedForward]:
    """The parts of a Qwen: experts in every `decoder_sparse_step`-th layer that `mlp_only_layers` lets be."""
    config = given.read(_Qwen)
    experts = MoE(
        experts=config.num_experts,
        topk=config.num_experts_per_tok,
        inter=config.moe_intermediate_size,
        shared=config.shared_expert_intermediate_size,
        shared_gate=config.shared_expert_intermediate_size > 0,
    )
    return [
        experts
        if layer not in config.mlp_only_layers and (layer + 1) % config.decoder_sparse_step == 0
        else given.mlp
        for layer in range(given.layers)
    ]


def qwen(given: Given) -> Own:
    """Qwen2-MoE and Qwen3-MoE."""
    return Own(layers=layered(windowed(given), qwen_experts(given)))


def latent(given: Given) -> Latent:
    """Latent attention with DeepSeek's keys."""
    config = given.read(_Latent)
    return Latent(
        heads=given.heads,
        kv_rank=config.kv_lora_rank,
        rope_dim=config.qk_rope_head_dim,
        nope_dim=config.qk_nope_head_dim,
        v_dim=config.v_head_dim,
        q_rank=config.q_lora_rank,
    )


def deepseek(given: Given) -> Own:
    """DeepSeek-V2, V3, R1 and Kimi-K2: latent attention, dense layers first."""
    parts, config = routed(given)
    return Own(
        layers=layered([latent(given)] * given.layers, parts),
        mtp_layers=config.num_nextn_predict_layers or 0,
    )


def glm(given: Given) -> Own:
    """GLM-4.5 to 4.7: grouped attention, dense layers first."""
    parts, config = routed(given)
    mixer = msgspec.structs.replace(given.attention(), qk_norm=given.read(_Glm).use_qk_norm)
    return Own(layers=layered([mixer] * given.layers, parts), mtp_layers=config.num_nextn_predict_layers or 0)


def routed(given: Given) -> tuple[list[FeedForward], _DeepSeek]:
    """The parts of a DeepSeek: dense first, experts in every `moe_layer_freq`-th layer behind."""
    config = given.read(_DeepSeek)
    experts = MoE(
        experts=config.n_routed_experts,
        topk=config.num_experts_per_tok,
        inter=config.moe_intermediate_size,
        shared=(config.n_shared_experts or 0) * config.moe_intermediate_size,
    )
    sparse = [
        layer >= config.first_k_dense_replace and layer % config.moe_layer_freq == 0
        for layer in range(given.layers)
    ]
    return [experts if each else given.mlp for each in sparse], config


def gpt_oss(given: Given) -> Own:
    """gpt-oss: every second layer sees a window."""
    experts = _local(given.read(_LocalExperts), biases=True)
    return Own(layers=layered(windowed(given), [experts] * given.layers), notes=(SINKS,))


SINKS = "attention sinks: one number a head in the softmax, which costs nothing"


def llama4(given: Given) -> Own:
    """Llama 4: three layers of four see their chunk alone."""
    config = given.read(_Llama4)
    step, layers = config.interleave_moe_layer_step, range(given.layers)
    sparse = layers[step - 1 :: step] if config.moe_layers is None else config.moe_layers
    rotated = config.no_rope_layers or [int((layer + 1) % 4 != 0) for layer in layers]
    if len(rotated) != given.layers:
        given.refuse("no_rope_layers", f"{len(rotated)} entries; num_hidden_layers is {given.layers}")
    chunk = config.attention_chunk_size
    near = given.attention() if chunk is None else given.attention(chunk, chunked=True)
    experts, dense = (
        _local(config, shared=config.intermediate_size),
        given.layout.mlp(config.intermediate_size_mlp),
    )
    return Own(
        layers=layered(
            [near if each else given.attention() for each in rotated],
            [experts if layer in sparse else dense for layer in layers],
        ),
        mlp_width=config.intermediate_size_mlp,
    )


def minimax(given: Given) -> Own:
    """MiniMax-M2: experts in every layer."""
    config = given.read(_MiniMax)
    mixer = msgspec.structs.replace(given.attention(), qk_norm=config.use_qk_norm)
    return Own(
        layers=layered([mixer] * given.layers, [_local(config)] * given.layers),
        mtp_layers=config.num_mtp_modules if config.use_mtp else 0,
    )


def windowed(given: Given) -> list[Grouped]:
    """Attention of every layer, with its window.

    Windowed are the layers that `layer_types` names, else all but every n-th, else all. Qwen configs name a
    window and switch it off; theirs begins with the layer `max_window_layers`.
    """
    config, layers = given.read(_Windows), range(given.layers)
    near = [False] * given.layers
    if config.sliding_window is None or config.use_sliding_window is False:
        pass
    elif config.layer_types is not None:
        if len(config.layer_types) != given.layers:
            given.refuse(
                "layer_types", f"{len(config.layer_types)} entries; num_hidden_layers is {given.layers}"
            )
        near = [kind == "sliding_attention" for kind in config.layer_types]
    elif (pattern := config.sliding_window_pattern) is not None:
        near = [(layer + 1) % pattern != 0 for layer in layers]
    else:
        first = config.max_window_layers if config.use_sliding_window else None
        near = [first is None or layer >= first for layer in layers]
    return [given.attention(config.sliding_window if each else None) for each in near]
