"""Readers of families with recurrent layers (Qwen3-Next to 3.6, Kimi Linear, Nemotron-H), and of those whose
attention reads a choice of the keys (DeepSeek-V3.2 and V4, GLM-5, MiniMax-M3).

Keys, and what they leave out, as in the configuration classes of huggingface/transformers and, for models
that it lacks, in the shapes of github.com/ai-dynamo/aiconfigurator.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from medusa_sim.specs.feed_forwards import FeedForward
from medusa_sim.specs.hf_layers import (
    LOCAL,
    Count,
    Flags,
    Given,
    Own,
    WindowSize,
    dense_first,
    experts_of,
    kind_of,
    latent,
    layered,
    one_each,
    qwen_experts,
    routed,
)
from medusa_sim.specs.mixers import Indexer, Mixer
from medusa_sim.specs.model import LayerGroup, Layers, Width
from medusa_sim.specs.recurrent import GatedDelta, KimiDelta, Mamba2
from medusa_sim.specs.sparse import BlockSparse, Compressed

_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


class _Delta(msgspec.Struct, frozen=True, kw_only=True):
    linear_num_key_heads: Width
    linear_num_value_heads: Width
    linear_key_head_dim: Width
    linear_value_head_dim: Width
    linear_conv_kernel_dim: Annotated[int, Meta(ge=1, le=64)] = 4
    full_attention_interval: Layers = 4
    layer_types: list[str] | None = None
    attn_output_gate: bool = True
    mamba_ssm_dtype: str | None = None
    mtp_num_hidden_layers: Count = 1


def qwen_hybrid(given: Given) -> Own:
    """Qwen3-Next, 3.5 and 3.6: three layers of four are linear, the others gated grouped attention."""
    config = given.read(_Delta)
    linear = GatedDelta(
        key_heads=config.linear_num_key_heads,
        value_heads=config.linear_num_value_heads,
        key_dim=config.linear_key_head_dim,
        value_dim=config.linear_value_head_dim,
        conv=config.linear_conv_kernel_dim,
        state_dtype=_state_dtype(given, "mamba_ssm_dtype", config.mamba_ssm_dtype),
    )
    gate = "element" if config.attn_output_gate else "none"
    full = msgspec.structs.replace(given.attention(), gate=gate)
    every = config.full_attention_interval
    kinds = config.layer_types or [
        "full_attention" if (layer + 1) % every == 0 else "linear_attention" for layer in range(given.layers)
    ]
    mixers = [
        kind_of(given, kind, {"linear_attention": linear, "full_attention": full})
        for kind in one_each(given, "layer_types", kinds)
    ]
    has_experts = given.content.get("num_experts") not in (None, 0)
    parts: list[FeedForward] = qwen_experts(given) if has_experts else [given.mlp] * given.layers
    return Own(layers=layered(mixers, parts), mtp_layers=config.mtp_num_hidden_layers)


def _state_dtype(given: Given, key: str, named: str | None) -> str:
    if named is None:
        return "fp32"
    if named not in _DTYPES:
        given.refuse(key, f"given {named[:60]!r}; allowed: {', '.join(_DTYPES)}")
    return _DTYPES[named]


class _KimiHeads(msgspec.Struct, frozen=True, kw_only=True):
    num_heads: Width
    head_dim: Width
    kda_layers: list[Annotated[int, Meta(ge=1, le=1000)]]
    full_attn_layers: list[Annotated[int, Meta(ge=1, le=1000)]]
    short_conv_kernel_size: Annotated[int, Meta(ge=1, le=64)] = 4
    use_full_rank_gate: bool = False


class _Kimi(msgspec.Struct, frozen=True, kw_only=True):
    linear_attn_config: _KimiHeads
    num_shared_experts: Count = 0
    first_k_dense_replace: Count = 0
    moe_layer_freq: Layers = 1
    routed_expert_hidden_size: Width | None = None
    mla_use_nope: bool = False
    mla_use_output_gate: bool = False
    num_nextn_predict_layers: Count | None = None


def kimi_linear(given: Given) -> Own:
    """Kimi-Linear and K3: layers of Kimi delta attention, every fourth one latent; numbered from 1."""
    config = given.read(_Kimi)
    heads = config.linear_attn_config
    linear = KimiDelta(
        heads=heads.num_heads,
        head_dim=heads.head_dim,
        conv=heads.short_conv_kernel_size,
        full_gate=heads.use_full_rank_gate,
    )
    full = msgspec.structs.replace(
        latent(given), rotates=not config.mla_use_nope, gate=config.mla_use_output_gate
    )
    if sorted([*heads.kda_layers, *heads.full_attn_layers]) != list(range(1, given.layers + 1)):
        given.refuse(
            "linear_attn_config",
            f"kda_layers and full_attn_layers do not name each of the {given.layers} layers once",
        )
    experts = experts_of(
        given,
        ("num_experts", "num_experts_per_token", "moe_intermediate_size"),
        shared_experts=config.num_shared_experts,
        latent=config.routed_expert_hidden_size,
    )
    notes: tuple[str, ...] = ()
    if given.content.get("attn_res_block_size"):
        notes = ("attention residuals: small kernels between the layers, not counted",)
    return Own(
        layers=layered(
            [linear if layer + 1 in heads.kda_layers else full for layer in range(given.layers)],
            dense_first(given, experts, config.first_k_dense_replace, config.moe_layer_freq),
        ),
        mtp_layers=config.num_nextn_predict_layers or 0,
        notes=notes,
    )


class _Nemotron(msgspec.Struct, frozen=True, kw_only=True):
    mamba_num_heads: Width
    mamba_head_dim: Width
    n_groups: Width
    ssm_state_size: Width
    conv_kernel: Annotated[int, Meta(ge=1, le=64)] = 4
    use_conv_bias: bool = True
    mamba_ssm_cache_dtype: str | None = None
    mlp_hidden_act: str = "relu2"
    hybrid_override_pattern: str | None = None
    layers_block_type: list[str] | None = None
    num_nextn_predict_layers: Count | None = None


class _NemotronExperts(msgspec.Struct, frozen=True, kw_only=True):
    n_shared_experts: Count = 0
    moe_shared_expert_intermediate_size: Count = 0
    moe_latent_size: Width | None = None


_PATTERN = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
_KINDS = {"linear_attention": "mamba", "full_attention": "attention"}
"""What later versions of transformers call them."""


def nemotron_h(given: Given) -> Own:
    """Nemotron-H and Nemotron-3: a layer is one block, of Mamba-2, attention, an MLP or experts."""
    config = given.read(_Nemotron)
    pattern = config.hybrid_override_pattern
    kinds = [_PATTERN.get(letter, letter) for letter in pattern or ""] or config.layers_block_type
    kinds = [_KINDS.get(kind, kind) for kind in kinds or ()] or None
    key = "layers_block_type" if pattern is None else "hybrid_override_pattern"
    gated = config.mlp_hidden_act not in ("relu2", "relu")
    mixers: dict[str, Mixer] = {
        "mamba": Mamba2(
            heads=config.mamba_num_heads,
            head_dim=config.mamba_head_dim,
            groups=config.n_groups,
            state=config.ssm_state_size,
            conv=config.conv_kernel,
            conv_bias=config.use_conv_bias,
            state_dtype=_state_dtype(given, "mamba_ssm_cache_dtype", config.mamba_ssm_cache_dtype),
        ),
        "attention": msgspec.structs.replace(given.attention(), rotates=False),
    }

    def part(kind: str) -> FeedForward | None:
        if kind in mixers:
            return None
        if kind == "mlp":
            return msgspec.structs.replace(given.mlp, gated=gated)
        if kind != "moe":
            given.refuse(key, f"holds {kind[:60]!r}; allowed: {', '.join(_PATTERN.values())}")
        experts = given.read(_NemotronExperts)
        shared = experts.n_shared_experts * experts.moe_shared_expert_intermediate_size
        return experts_of(given, shared=shared, latent=experts.moe_latent_size, gated=gated)

    named = one_each(given, key, kinds)
    return Own(
        layers=layered([mixers.get(kind) for kind in named], [part(kind) for kind in named]),
        mtp_layers=config.num_nextn_predict_layers or 0,
    )


class _Granite(msgspec.Struct, frozen=True, kw_only=True):
    mamba_n_heads: Width
    mamba_d_head: Width | str = "auto"
    mamba_n_groups: Width = 1
    mamba_d_state: Width
    mamba_d_conv: Annotated[int, Meta(ge=1, le=64)] = 4
    mamba_expand: Width = 2
    mamba_conv_bias: bool = True
    layer_types: list[str] | None = None
    num_local_experts: Count = 0
    shared_intermediate_size: Width
    position_embedding_type: str | None = None


def granite(given: Given) -> Own:
    """Granite 4: Mamba-2 and attention, each with experts beside a shared MLP, or with that alone.

    Engines keep its states in the model's dtype (vLLM's mamba_ssm_cache_dtype auto), not in fp32.
    """
    config = given.read(_Granite)
    width = config.mamba_d_head
    mamba = Mamba2(
        heads=config.mamba_n_heads,
        head_dim=config.mamba_expand * given.hidden // config.mamba_n_heads
        if isinstance(width, str)
        else width,
        groups=config.mamba_n_groups,
        state=config.mamba_d_state,
        conv=config.mamba_d_conv,
        conv_bias=config.mamba_conv_bias,
        state_dtype="bf16",
    )
    full = msgspec.structs.replace(given.attention(), rotates=config.position_embedding_type == "rope")
    kinds: dict[str, Mixer] = {
        "mamba": mamba,
        "attention": full,
        "linear_attention": mamba,
        "full_attention": full,
    }
    shared = config.shared_intermediate_size
    part: FeedForward = given.layout.mlp(shared)
    if config.num_local_experts:
        part = experts_of(given, LOCAL, shared=shared)
    named = one_each(given, "layer_types", config.layer_types)
    return Own(layers=layered([kind_of(given, kind, kinds) for kind in named], [part] * given.layers))


class _Index(msgspec.Struct, frozen=True, kw_only=True):
    index_topk: Width
    index_n_heads: Width
    index_head_dim: Width
    indexer_types: list[str] | None = None
    index_topk_freq: Layers | None = None
    index_skip_topk_offset: Count = 2
    index_topk_pattern: str | list[str] | None = None


def sparse_latent(given: Given) -> Own:
    """DeepSeek-V3.2 and GLM-5: latent attention to the keys that an indexer chooses, or a layer before."""
    config = given.read(_Index)
    own = Indexer(topk=config.index_topk, heads=config.index_n_heads, dim=config.index_head_dim)
    other = msgspec.structs.replace(own, reuses=True)
    kinds = config.indexer_types
    if kinds is None and (pattern := config.index_topk_pattern) is not None:
        kinds = [{"F": "full", "S": "shared"}.get(each, each) for each in pattern]
    elif kinds is None and (every := config.index_topk_freq) is not None:
        since = [max(layer - config.index_skip_topk_offset + 1, 0) for layer in range(given.layers)]
        kinds = ["full" if each % every == 0 else "shared" for each in since]
    choices = one_each(given, "indexer_types", kinds or ["full"] * given.layers)
    if choices[0] != "full":
        given.refuse(
            "indexer_types", f"begins with {choices[0][:60]!r}; the first layer has no choice to share"
        )
    mixer = latent(given)
    parts, experts = routed(given)
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
    sparse_attention_freq: Flags
    use_sparse_attention: bool = True


class _MiniMax3(msgspec.Struct, frozen=True, kw_only=True):
    sparse_attention_config: _Blocks
    moe_intermediate_size: Width | None = None
    shared_intermediate_size: Count = 0
    n_shared_experts: Count = 0
    dense_intermediate_size: Width | None = None
    moe_layer_freq: Flags
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
    compress_ratios: list[Annotated[int, Meta(ge=0, le=1_000_000)]] | None = None
    layer_types: list[str] | None = None
    compress_rates: dict[str, Annotated[int, Meta(ge=1, le=1_000_000)]] = {}
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


_CHOSEN, _HEAVY = "compressed_sparse_attention", "heavily_compressed_attention"
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
    rates = {"sliding_attention": 0, _CHOSEN: _NARROW_RATIO, _HEAVY: 128, **config.compress_rates}
    named = config.compress_ratios or [kind_of(given, kind, rates) for kind in config.layer_types or ()]
    ratios = one_each(given, "compress_ratios", named or None)
    return Own(
        layers=layered([mixer(ratio) for ratio in ratios], [experts] * given.layers),
        mtp_layers=config.num_nextn_predict_layers or 0,
        mtp=LayerGroup(1, mixer(0), experts),
        streams=config.hc_mult,
    )
