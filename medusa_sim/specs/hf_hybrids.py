"""Readers of families whose layers differ in width, window or parts: Gemma 4, MiMo, Step, Nemotron NAS.

Keys, and what they leave out, as in the configuration classes of huggingface/transformers and, for models
that it lacks, in the shapes of github.com/ai-dynamo/aiconfigurator.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from medusa_sim.errors import shown
from medusa_sim.specs.feed_forwards import FeedForward, MoE
from medusa_sim.specs.hf_layers import (
    SINKS,
    Count,
    ExpertCount,
    Flags,
    Given,
    Own,
    WindowSize,
    experts_of,
    kind_of,
    layered,
    one_each,
)
from medusa_sim.specs.mixers import Mixer
from medusa_sim.specs.model import LayerGroup, Width


class _Gemma4(msgspec.Struct, frozen=True, kw_only=True):
    layer_types: list[str] | None = None
    sliding_window: WindowSize
    global_head_dim: Width = 512
    num_global_key_value_heads: Width | None = None
    attention_k_eq_v: bool = False
    enable_moe_block: bool = False
    num_kv_shared_layers: Count | None = None
    hidden_size_per_layer_input: Count | None = None


def gemma4(given: Given) -> Own:
    """Gemma 4: windowed layers, and full ones with wider heads whose keys are their values."""
    config = given.read(_Gemma4)
    for key in ("num_kv_shared_layers", "hidden_size_per_layer_input"):
        if getattr(config, key):
            given.refuse(key, f"given {getattr(config, key)}; allowed: 0 (others are not modelled)")
    full = msgspec.structs.replace(
        given.attention(),
        head_dim=config.global_head_dim,
        kv_heads=(config.attention_k_eq_v and config.num_global_key_value_heads) or given.kv_heads,
        keys_are_values=config.attention_k_eq_v,
    )
    near = given.attention(config.sliding_window)
    part: FeedForward = given.mlp
    if config.enable_moe_block:
        part = experts_of(
            given, ("num_experts", "top_k_experts", "moe_intermediate_size"), shared=given.width
        )
    kinds = {"full_attention": full, "sliding_attention": near}
    usual = ["full_attention" if layer % 6 == 5 else "sliding_attention" for layer in range(given.layers)]
    types = one_each(given, "layer_types", config.layer_types or usual)
    mixers = [kind_of(given, kind, kinds) for kind in types]
    return Own(layers=layered(mixers, [part] * given.layers))


class _MiMo2(msgspec.Struct, frozen=True, kw_only=True):
    hybrid_layer_pattern: Flags
    sliding_window: WindowSize
    v_head_dim: Width
    swa_num_attention_heads: Width
    swa_num_key_value_heads: Width
    swa_head_dim: Width
    swa_v_head_dim: Width
    moe_layer_freq: Flags
    n_shared_experts: Count | None = None


_MIMO_MODULES = 3
"""MTP modules of MiMo-V2-Flash, dense layers with a window (its model card; its config does not say)."""


def mimo_v2(given: Given) -> Own:
    """MiMo-V2: nine full layers of 48, the others see 128 tokens; values narrower than keys."""
    config = given.read(_MiMo2)
    full = msgspec.structs.replace(given.attention(), v_dim=config.v_head_dim)
    near = given.layout.attention(
        config.swa_num_attention_heads,
        config.swa_num_key_value_heads,
        config.swa_head_dim,
        config.sliding_window,
    )
    near = msgspec.structs.replace(near, v_dim=config.swa_v_head_dim)
    experts = experts_of(given, shared_experts=config.n_shared_experts or 0)
    pattern = one_each(given, "hybrid_layer_pattern", config.hybrid_layer_pattern)
    sparse = one_each(given, "moe_layer_freq", config.moe_layer_freq)
    return Own(
        layers=layered(
            [near if each else full for each in pattern], [experts if each else given.mlp for each in sparse]
        ),
        mtp_layers=_MIMO_MODULES,
        mtp=LayerGroup(1, near, given.mlp),
        notes=(SINKS,),
    )


class _Other(msgspec.Struct, frozen=True, kw_only=True):
    num_attention_heads: Width
    num_attention_groups: Width | None = None
    head_dim: Width | None = None


class _Step(msgspec.Struct, frozen=True, kw_only=True):
    layer_types: list[str]
    num_attention_groups: Width
    sliding_window: WindowSize | None = None
    attention_other_setting: _Other | None = None
    num_sliding_attention_heads: Width | None = None
    use_head_wise_attn_gate: bool = True
    use_qk_norm: bool = True
    moe_layers_enum: str | list[Count] | None = None
    mlp_layer_types: list[str] | None = None
    share_expert_dim: Count = 0
    num_nextn_predict_layers: Count | None = None


def step(given: Given) -> Own:
    """Step-3.5 and 3.7: one full layer to three windowed ones with more query heads, gates a head."""
    config = given.read(_Step)
    gate = "head" if config.use_head_wise_attn_gate else "none"
    full = given.layout.attention(given.heads, config.num_attention_groups, given.head_dim)
    full = msgspec.structs.replace(full, gate=gate, qk_norm=config.use_qk_norm)
    near = msgspec.structs.replace(full, size=config.sliding_window)
    other = config.attention_other_setting
    if other is None and config.num_sliding_attention_heads is not None:
        other = _Other(num_attention_heads=config.num_sliding_attention_heads)
    if other is not None:
        near = msgspec.structs.replace(
            near,
            heads=other.num_attention_heads,
            kv_heads=other.num_attention_groups or config.num_attention_groups,
            head_dim=other.head_dim or given.head_dim,
        )
    named = config.moe_layers_enum
    if config.mlp_layer_types is not None:
        named = [layer for layer, kind in enumerate(config.mlp_layer_types) if kind == "sparse"]
    if named is None:
        given.refuse("moe_layers_enum", "missing; the numbers of the layers with experts are needed")
    try:
        sparse = [int(each) for each in (named.split(",") if isinstance(named, str) else named)]
    except ValueError:
        given.refuse("moe_layers_enum", f"given {shown(named)}; allowed: whole numbers with commas between")
    keys = ("moe_num_experts", "moe_top_k", "moe_intermediate_size")
    experts = experts_of(given, keys, shared=config.share_expert_dim)
    kinds = {"full_attention": full, "sliding_attention": near}
    modules = config.num_nextn_predict_layers or 0
    types = one_each(given, "layer_types", config.layer_types, given.layers + modules)
    return Own(
        layers=layered(
            [kind_of(given, kind, kinds) for kind in types],
            [experts if layer in sparse else given.mlp for layer in range(given.layers)],
        ),
        mtp_layers=modules,
        mtp=LayerGroup(1, near, given.mlp),
        notes=(),
    )


class _NasPart(msgspec.Struct, frozen=True, kw_only=True):
    no_op: bool = False
    replace_with_linear: bool = False
    mamba: Any = None
    llama4: Any = None


class _NasAttention(_NasPart, frozen=True, kw_only=True):
    n_heads_in_group: Width | None = None
    num_key_value_heads: Width | None = None
    window_length: WindowSize | None = None


class _NasExperts(msgspec.Struct, frozen=True, kw_only=True):
    num_local_experts: ExpertCount
    num_experts_per_tok: ExpertCount
    expert_intermediate_dim: Width
    shared_expert_intermediate_dim: Count = 0


class _NasMlp(_NasPart, frozen=True, kw_only=True):
    ffn_mult: Annotated[float, Meta(gt=0, le=1000)] | None = None
    intermediate_size: Width | None = None
    gated: bool | None = True
    moe: _NasExperts | None = None


class _NasBlock(msgspec.Struct, frozen=True, kw_only=True):
    attention: _NasAttention
    ffn: _NasMlp


class _Nas(msgspec.Struct, frozen=True, kw_only=True):
    block_configs: list[_NasBlock]


_ROUNDED_TO = 256


def deci(given: Given) -> Own:
    """DeciLM (Llama-Nemotron): every layer has its own K/V heads and width, or lacks a part.

    Newer files give K/V heads, widths and experts themselves (`block_config.py` of NVIDIA/Model-Optimizer).
    """
    blocks = one_each(given, "block_configs", given.read(_Nas).block_configs)
    layers = []
    for index, block in enumerate(blocks):
        at = f"block_configs[{index}]"
        for name, part in (("attention", block.attention), ("ffn", block.ffn)):
            for key in ("replace_with_linear", "mamba", "llama4"):
                if getattr(part, key):
                    given.refuse(f"{at}.{name}.{key}", "given; allowed: none (others are not modelled)")
        mixer: Mixer | None = None
        if not block.attention.no_op:
            own = block.attention
            key = "n_heads_in_group" if own.num_key_value_heads is None else "num_key_value_heads"
            if (count := getattr(own, key)) is None or given.heads % count:
                given.refuse(f"{at}.attention.{key}", f"given {count}; a divisor of {given.heads}")
            kv_heads = own.num_key_value_heads or given.heads // count
            mixer = given.layout.attention(given.heads, kv_heads, given.head_dim, own.window_length)
        layers.append(LayerGroup(1, mixer, None if block.ffn.no_op else _nas_part(given, block.ffn, at)))
    return Own(layers=tuple(layers))


def _nas_part(given: Given, ffn: _NasMlp, at: str) -> FeedForward:
    """Experts, or an MLP of a width or of a multiple of the hidden size."""
    if (moe := ffn.moe) is not None:
        return MoE(
            experts=moe.num_local_experts, topk=moe.num_experts_per_tok, inter=moe.expert_intermediate_dim,
            shared=moe.shared_expert_intermediate_dim,
        )  # fmt: skip
    if (width := ffn.intermediate_size) is None:
        if ffn.ffn_mult is None:
            given.refuse(f"{at}.ffn.ffn_mult", "missing; a number above 0 is needed, or intermediate_size")
        width = -(-int(2 * ffn.ffn_mult * given.hidden / 3) // _ROUNDED_TO) * _ROUNDED_TO
    return msgspec.structs.replace(given.layout.mlp(width), gated=ffn.gated is not False)
