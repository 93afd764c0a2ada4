"""Readers of families whose attention reads a choice of the keys: DeepSeek-V3.2 and V4, GLM-5, MiniMax-M3.

Keys, and what they leave out, as in the configuration classes of huggingface/transformers and, for models
that it lacks, in the shapes of github.com/ai-dynamo/aiconfigurator.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from medusa_sim.specs.feed_forwards import MoE
from medusa_sim.specs.hf_layers import (
    Count,
    Given,
    Own,
    WindowSize,
    experts_of,
    kind_of,
    latent,
    layered,
    one_each,
    routed,
)
from medusa_sim.specs.mixers import Indexer
from medusa_sim.specs.model import LayerGroup, Layers, Width
from medusa_sim.specs.sparse import BlockSparse, Compressed

_Flags = list[Annotated[int, Meta(ge=0, le=1)]]


class _Index(msgspec.Struct, frozen=True, kw_only=True):
    index_topk: Width
    index_n_heads: Width
    index_head_dim: Width
    indexer_types: list[str] | None = None
    index_topk_freq: Layers | None = None
    index_skip_topk_offset: Count = 0
    index_topk_pattern: Any = None
    mlp_layer_types: list[str] | None = None


def sparse_latent(given: Given) -> Own:
    """DeepSeek-V3.2 and GLM-5: latent attention to the keys that an indexer chooses, or a layer before."""
    config = given.read(_Index)
    own = Indexer(topk=config.index_topk, heads=config.index_n_heads, dim=config.index_head_dim)
    other = msgspec.structs.replace(own, reuses=True)
    kinds = config.indexer_types
    if kinds is None and config.index_topk_pattern is not None:
        given.refuse("index_topk_pattern", "given without indexer_types; add the list of full and shared")
    if kinds is None and (every := config.index_topk_freq) is not None:
        first = config.index_skip_topk_offset
        kinds = [
            "full" if layer < first or (layer - first + 1) % every == 0 else "shared"
            for layer in range(given.layers)
        ]
    choices = one_each(given, "indexer_types", kinds or ["full"] * given.layers)
    mixer = latent(given)
    parts, experts = routed(given)
    if config.mlp_layer_types is not None:
        mixture = next((part for part in parts if isinstance(part, MoE)), given.mlp)
        named = one_each(given, "mlp_layer_types", config.mlp_layer_types)
        parts = [given.mlp if kind == "dense" else mixture for kind in named]
    return Own(
        layers=layered(
            [
                msgspec.structs.replace(mixer, indexer=kind_of(given, kind, {"full": own, "shared": other}))
                for kind in choices
            ],
            parts,
        ),
        mtp_layers=experts.num_nextn_predict_layers or 0,
    )


class _Blocks(msgspec.Struct, frozen=True, kw_only=True):
    sparse_num_index_heads: Width
    sparse_index_dim: Width
    sparse_block_size: Width
    sparse_topk_blocks: Width
    sparse_attention_freq: _Flags
    use_sparse_attention: bool = True


class _MiniMax3(msgspec.Struct, frozen=True, kw_only=True):
    sparse_attention_config: _Blocks
    moe_intermediate_size: Width | None = None
    shared_intermediate_size: Count = 0
    n_shared_experts: Count = 0
    dense_intermediate_size: Width | None = None
    moe_layer_freq: _Flags
    use_qk_norm: bool = True
    attention_output_gate: bool = False


def minimax_m3(given: Given) -> Own:
    """MiniMax-M3: dense layers first, then attention to chosen blocks and experts."""
    config = given.read(_MiniMax3)
    blocks = config.sparse_attention_config
    gate = "element" if config.attention_output_gate else "none"
    full = msgspec.structs.replace(given.attention(), qk_norm=config.use_qk_norm, gate=gate)
    sparse = BlockSparse(
        **msgspec.structs.asdict(full),
        index_heads=blocks.sparse_num_index_heads,
        index_dim=blocks.sparse_index_dim,
        block=blocks.sparse_block_size,
        blocks=blocks.sparse_topk_blocks,
    )
    chosen = one_each(given, "sparse_attention_freq", blocks.sparse_attention_freq)
    width = "moe_intermediate_size" if config.moe_intermediate_size else "intermediate_size"
    shared = config.n_shared_experts * config.shared_intermediate_size
    experts = experts_of(given, ("num_local_experts", "num_experts_per_tok", width), shared=shared)
    mlp = given.layout.mlp(config.dense_intermediate_size or given.width)
    routed_layers = one_each(given, "moe_layer_freq", config.moe_layer_freq)
    return Own(
        layers=layered(
            [sparse if each and blocks.use_sparse_attention else full for each in chosen],
            [experts if each else mlp for each in routed_layers],
        ),
        notes=("multi-token prediction: its modules are not released (llama.cpp issue 24908)",),
    )


class _DeepSeek4(msgspec.Struct, frozen=True, kw_only=True):
    compress_ratios: list[Annotated[int, Meta(ge=0, le=1_000_000)]]
    q_lora_rank: Width
    o_lora_rank: Width
    o_groups: Width
    qk_rope_head_dim: Width
    sliding_window: WindowSize
    index_topk: Width
    index_n_heads: Width
    index_head_dim: Width
    hc_mult: Annotated[int, Meta(ge=1, le=64)] = 1
    n_shared_experts: Count = 0
    num_nextn_predict_layers: Count | None = None
    expert_dtype: str | None = None


_NARROW_RATIO = 4
"""Tokens behind a compressed key among which an indexer chooses; its keys overlap (DeepSeek-V4's CSA)."""


def deepseek_v4(given: Given) -> Own:
    """DeepSeek-V4: compressed attention of two ratios, hyper-connections; MTP modules see a window alone."""
    config = given.read(_DeepSeek4)
    index = Indexer(topk=config.index_topk, heads=config.index_n_heads, dim=config.index_head_dim)

    def mixer(ratio: int) -> Compressed:
        return Compressed(
            heads=given.heads,
            head_dim=given.head_dim,
            rope_dim=config.qk_rope_head_dim,
            q_rank=config.q_lora_rank,
            o_rank=config.o_lora_rank,
            o_groups=config.o_groups,
            size=config.sliding_window,
            ratio=ratio,
            overlap=ratio == _NARROW_RATIO,
            indexer=index if ratio == _NARROW_RATIO else None,
        )

    if config.expert_dtype not in (None, "fp4", "fp8"):
        given.refuse("expert_dtype", f"given {config.expert_dtype[:60]!r}; allowed: fp4, fp8")
    form = "mxfp4_fp8" if config.expert_dtype == "fp4" else None
    experts = experts_of(given, shared_experts=config.n_shared_experts, form=form)
    ratios = one_each(given, "compress_ratios", config.compress_ratios)
    return Own(
        layers=layered([mixer(ratio) for ratio in ratios], [experts] * given.layers),
        mtp_layers=config.num_nextn_predict_layers or 0,
        mtp=LayerGroup(1, mixer(0), experts),
        streams=config.hc_mult,
    )
