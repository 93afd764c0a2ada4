"""Readers of families with layers of several kinds.

Recurrent ones (Qwen3-Next to 3.6, Kimi Linear, Ling-3.0, Nemotron-H, Granite), attention to a choice of the
keys (DeepSeek-V3.2 and V4, GLM-5, MiniMax-M3), heads of several widths (Gemma 4, MiMo, Step).

Keys, and what they leave out, as in the configuration classes of huggingface/transformers and, for models
that it lacks, in the shapes of github.com/ai-dynamo/aiconfigurator.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from medusa_sim.errors import shown
from medusa_sim.models.feed_forwards import FeedForward, MoE
from medusa_sim.models.hf_given import Count, Found, Given
from medusa_sim.models.hf_layers import SINKS, dense_first, latent, qwen_experts, routed
from medusa_sim.models.layer_group import LayerGroup
from medusa_sim.models.mixers import Indexer, Mixer, Window
from medusa_sim.models.model import Layers, Width
from medusa_sim.models.recurrent import GatedDelta, KimiDelta, Mamba2
from medusa_sim.models.sparse import BlockSparse, Compressed

_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
_PATTERN = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
_KINDS = {**_PATTERN, "linear_attention": "mamba", "full_attention": "attention"}
"""Names of layers in patterns and in later versions of transformers."""
_CHOSEN, _HEAVY = "compressed_sparse_attention", "heavily_compressed_attention"
_NARROW_RATIO = 4
"""Tokens of a compressed key among which an indexer chooses; its keys overlap (DeepSeek-V4's CSA)."""
_MIMO_MODULES = 3
"""MTP modules of MiMo-V2-Flash, dense layers with a window (its model card; its config does not say)."""


def _named_states(given: Given, key: str, default: str | None = None) -> str | None:
    """Dtype of the states that a config names; default: where it names none."""
    name = given.maybe(key, str)
    if name is not None and name not in _DTYPES:
        given.refuse(key, f"given {name[:60]!r}; allowed: {', '.join(_DTYPES)}")
    return default if name is None else _DTYPES[name]


def qwen_hybrid(given: Given) -> Found:
    """Qwen3-Next, 3.5 and 3.6: three layers of four are linear, the others gated grouped attention."""
    named_states = _named_states(given, "mamba_ssm_dtype")
    linear = given.part(GatedDelta, "linear", named_states=named_states)
    full = given.attention(gate="element" if given.get("attn_output_gate", bool, True) else "none")
    every, names = given.get("full_attention_interval", Layers, 4), ("linear_attention", "full_attention")
    usual = [names[(layer + 1) % every == 0] for layer in range(given.layers)]
    has_experts = given.content.get("num_experts") not in (None, 0)
    return given.found(
        given.by_type(dict(zip(names, (linear, full), strict=True)), usual),
        qwen_experts(given) if has_experts else given.mlp,
        mtp_layers=given.get("mtp_num_hidden_layers", Count, 1),
    )


def kimi_linear(given: Given) -> Found:
    """Kimi-Linear and K3: layers of Kimi delta attention, every fourth one latent; numbered from 1."""
    heads = given.inside("linear_attn_config")
    linear = heads.part(KimiDelta, "linear")
    full = latent(
        given,
        rotates=not given.get("mla_use_nope", bool, False),
        gate=given.get("mla_use_output_gate", bool, False),
    )
    is_linear, is_full = (heads.get(key, list[Layers]) for key in ("kda_layers", "full_attn_layers"))
    if sorted([*is_linear, *is_full]) != list(range(1, given.layers + 1)):
        given.refuse(
            heads.place,
            f"kda_layers and full_attn_layers do not name each of the {given.layers} layers once",
        )
    experts = given.experts(
        shared_experts=given.get("num_shared_experts", Count, 0),
        latent=given.maybe("routed_expert_hidden_size", Width),
    )
    residuals = "attention residuals: small kernels between the layers, not counted"
    return given.found(
        [linear if layer + 1 in is_linear else full for layer in range(given.layers)],
        dense_first(given, experts),
        mtp_layers=given.nextn,
        notes=(residuals,) if given.content.get("attn_res_block_size") else (),
    )


def ling(given: Given) -> Found:
    """Ling-3.0: Kimi delta attention; the last layer of each group is latent, and those that fill none."""
    given.get("no_kda_lora", bool)  # Ling-2.6 has the same type, other layers, and no such key
    every, layers = given.get("layer_group_size", Layers), range(given.layers)
    whole = given.layers // every * every
    linear, full = (
        given.part(KimiDelta, "linear"),
        latent(given, rotates=not given.get("use_mla_nope", bool, False)),
    )
    count, width = (
        given.get(name, Count) for name in ("num_shared_experts", "moe_shared_expert_intermediate_size")
    )
    experts = given.experts(shared=count * width)
    return given.found(
        [full if (layer + 1) % every == 0 or layer >= whole else linear for layer in layers],
        dense_first(given, experts),
        mtp_layers=given.nextn,
        notes=("the gate of a head of latent attention: a small product in every such layer, not counted",),
    )


def nemotron_h(given: Given) -> Found:
    """Nemotron-H and Nemotron-3: a layer is one block, of Mamba-2, attention, an MLP or experts.

    Its states are in fp32 where its config names no dtype, in vLLM too (NemotronHForCausalLMConfig).
    """
    pattern = given.maybe("hybrid_override_pattern", str)
    key = "layers_block_type" if pattern is None else "hybrid_override_pattern"
    listed = pattern or given.maybe("layers_block_type", list[str])
    kinds = given.one_each(key, [_KINDS.get(kind, kind) for kind in listed] if listed else None)
    gated = given.get("mlp_hidden_act", str, "relu2") not in ("relu2", "relu")
    named_states = _named_states(given, "mamba_ssm_cache_dtype", "fp32")
    mamba = given.part(Mamba2, "mamba", named_states=named_states)
    blocks: dict[str, tuple[Mixer | None, FeedForward | None]] = {
        "mamba": (mamba, None),
        "attention": (given.attention(rotates=False), None),
    }
    if "mlp" in kinds:
        blocks["mlp"] = (None, replace(given.mlp, gated=gated))
    if "moe" in kinds:
        count, width = (
            given.get(name, Count, 0) for name in ("n_shared_experts", "moe_shared_expert_intermediate_size")
        )
        latent_width = given.maybe("moe_latent_size", Width)
        blocks["moe"] = (None, given.experts(shared=count * width, latent=latent_width, gated=gated))
    for kind in kinds:
        if kind not in blocks:
            given.refuse(key, f"holds {kind[:60]!r}; allowed: {', '.join(_PATTERN.values())}")
    mixers, parts = zip(*(blocks[kind] for kind in kinds), strict=True)
    return given.found(mixers, parts, mtp_layers=given.nextn)


def granite(given: Given) -> Found:
    """Granite 4: Mamba-2 and attention, each with experts beside a shared MLP, or with that alone."""
    width = given.get("mamba_d_head", Width | str, "auto")
    if isinstance(width, str):
        width = given.get("mamba_expand", Width, 2) * given.hidden // given.get("mamba_n_heads", Width)
    groups = given.get("mamba_n_groups", Width, 1)
    mamba = given.part(Mamba2, "mamba", head_dim=width, groups=groups)
    full = given.attention(rotates=given.maybe("position_embedding_type", str) == "rope")
    kinds = {"mamba": mamba, "attention": full, "linear_attention": mamba, "full_attention": full}
    shared = given.get("shared_intermediate_size", Width)
    has_experts = given.get("num_local_experts", Count, 0)
    return given.found(
        given.by_type(kinds),
        given.experts(shared=shared) if has_experts else given.layout.mlp(shared),
    )


def falcon_h1(given: Given) -> Found:
    """Falcon-H1 (arXiv 2507.22448): attention and Mamba-2 side by side in every layer, and an MLP.

    `mamba_d_ssm` of its config is the width of all Mamba heads.
    """
    width = given.maybe("mamba_d_ssm", Width) or given.get("mamba_expand", Width, 2) * given.hidden
    heads = given.get("mamba_n_heads", Width)
    if width % heads:
        given.refuse("mamba_n_heads", f"given {heads}; it must divide mamba_d_ssm = {width}")
    mamba = given.part(Mamba2, "mamba", head_dim=width // heads)
    return given.found([(given.attention(), mamba)] * given.layers, given.mlp)


def _indexer(given: Given) -> Indexer:
    topk, heads, dim = (given.get(f"index_{key}", Width) for key in ("topk", "n_heads", "head_dim"))
    return Indexer(topk=topk, heads=heads, dim=dim)


def sparse_latent(given: Given) -> Found:
    """DeepSeek-V3.2 and GLM-5: latent attention to the keys that an indexer chooses, or a layer before."""
    kinds = given.maybe("indexer_types", list[str])
    pattern = given.maybe("index_topk_pattern", str | list[str])
    every, offset = (
        given.maybe("index_topk_freq", Layers),
        given.get("index_skip_topk_offset", Count, 2),
    )
    if kinds is None and pattern is not None:
        kinds = [{"F": "full", "S": "shared"}.get(each, each) for each in pattern]
    elif kinds is None and every is not None:
        since = [max(layer - offset + 1, 0) for layer in range(given.layers)]
        kinds = ["full" if each % every == 0 else "shared" for each in since]
    choices = given.one_each("indexer_types", kinds or ["full"] * given.layers)
    if choices[0] != "full":
        given.refuse(
            "indexer_types", f"begins with {choices[0][:60]!r}; the first layer has no choice to share"
        )
    full = latent(given, indexer=_indexer(given))
    known = {"full": full, "shared": replace(full, indexer=replace(_indexer(given), reuses=True))}
    mixers = [given.known("indexer_types", kind, known) for kind in choices]
    return given.found(mixers, routed(given), mtp_layers=given.nextn)


def minimax_m3(given: Given) -> Found:
    """MiniMax-M3: dense layers first, then attention to chosen blocks and experts."""
    blocks = given.inside("sparse_attention_config")
    gate = "element" if given.get("attention_output_gate", bool, False) else "none"
    full = given.attention(qk_norm=given.get("use_qk_norm", bool, True), gate=gate)
    sparse = blocks.part(BlockSparse, "sparse", **msgspec.structs.asdict(full))
    is_used = blocks.get("use_sparse_attention", bool, True)
    width = "experts" if given.maybe("moe_intermediate_size", Width) else "wide_experts"
    shared = given.get("n_shared_experts", Count, 0) * given.get("shared_intermediate_size", Count, 0)
    experts = given.part(MoE, width, shared=shared)
    mlp = given.layout.mlp(given.maybe("dense_intermediate_size", Width) or given.width)
    return given.found(
        blocks.flagged("sparse_attention_freq", sparse if is_used else full, full),
        given.flagged("moe_layer_freq", experts, mlp),
        notes=("multi-token prediction: its modules are not released (llama.cpp issue 24908)",),
    )


_Tokens = Annotated[int, Meta(ge=0, le=1_000_000)]


def deepseek_v4(given: Given) -> Found:
    """DeepSeek-V4: compressed attention of two ratios, hyper-connections; MTP modules see a window alone."""
    near = given.part(Compressed, "window", heads=given.heads, head_dim=given.head_dim)
    index = _indexer(given)
    form = given.maybe("expert_dtype", str)
    if form not in (None, "fp4", "fp8"):
        given.refuse("expert_dtype", f"given {form[:60]!r}; allowed: fp4, fp8")
    experts = given.experts(
        shared_experts=given.get("n_shared_experts", Count, 0), form="mxfp4_fp8" if form == "fp4" else None
    )
    rates = given.get("compress_rates", dict[str, Annotated[int, Meta(ge=1, le=1_000_000)]], {})
    ratios = given.maybe("compress_ratios", list[_Tokens])
    if not ratios and given.content.get("layer_types"):
        ratios = given.by_type({"sliding_attention": 0, _CHOSEN: _NARROW_RATIO, _HEAVY: 128, **rates})
    of_ratio = {ratio: replace(near, ratio=ratio) for ratio in ratios or ()}
    if _NARROW_RATIO in of_ratio:
        of_ratio[_NARROW_RATIO] = replace(of_ratio[_NARROW_RATIO], overlap=True, indexer=index)
    return given.found(
        [of_ratio[ratio] for ratio in given.one_each("compress_ratios", ratios or None)],
        experts,
        mtp_layers=given.nextn,
        mtp=LayerGroup(1, (near,), experts),
        streams=given.get("hc_mult", Annotated[int, Meta(ge=1, le=64)], 1),
    )


def gemma4(given: Given) -> Found:
    """Gemma 4: windowed layers, and full ones with wider heads whose keys are their values."""
    for key in ("num_kv_shared_layers", "hidden_size_per_layer_input"):
        if value := given.maybe(key, Count):
            given.refuse(key, f"given {value}; allowed: 0 (others are not modelled)")
    shares = given.get("attention_k_eq_v", bool, False)
    heads = given.maybe("num_global_key_value_heads", Width)
    full = given.attention(
        head_dim=given.get("global_head_dim", Width, 512),
        kv_heads=(shares and heads) or given.kv_heads,
        keys_are_values=shares,
    )
    part: FeedForward = given.mlp
    if given.get("enable_moe_block", bool, False):
        part = given.experts(shared=given.width)
    near = given.attention(given.get("sliding_window", Window))
    usual = ["full_attention" if layer % 6 == 5 else "sliding_attention" for layer in range(given.layers)]
    return given.found(given.by_type({"full_attention": full, "sliding_attention": near}, usual), part)


def mimo_v2(given: Given) -> Found:
    """MiMo-V2: nine full layers of 48, the others see 128 tokens; values narrower than keys."""
    full = given.attention(v_dim=given.get("v_head_dim", Width))
    near = given.attention(
        given.get("sliding_window", Window),
        heads=given.get("swa_num_attention_heads", Width),
        kv_heads=given.get("swa_num_key_value_heads", Width),
        head_dim=given.get("swa_head_dim", Width),
        v_dim=given.get("swa_v_head_dim", Width),
    )
    experts = given.experts(shared_experts=given.maybe("n_shared_experts", Count) or 0)
    return given.found(
        given.flagged("hybrid_layer_pattern", near, full),
        given.flagged("moe_layer_freq", experts, given.mlp),
        mtp_layers=_MIMO_MODULES,
        mtp=LayerGroup(1, (near,), given.mlp),
        notes=(SINKS,),
    )


def step(given: Given) -> Found:
    """Step-3.5 and 3.7: one full layer to three windowed ones with more query heads, gates a head."""
    groups = given.get("num_attention_groups", Width)
    gate = "head" if given.get("use_head_wise_attn_gate", bool, True) else "none"
    full = given.attention(kv_heads=groups, gate=gate, qk_norm=given.get("use_qk_norm", bool, True))
    near = replace(full, size=given.maybe("sliding_window", Window))
    other, heads = "attention_other_setting", given.maybe("num_sliding_attention_heads", Width)
    if (table := given.maybe(other, dict[str, Any])) is not None:
        windowed = given.inside(other, table)
        near = replace(
            near,
            heads=windowed.get("num_attention_heads", Width),
            kv_heads=windowed.maybe("num_attention_groups", Width) or groups,
            head_dim=windowed.maybe("head_dim", Width) or given.head_dim,
        )
    elif heads is not None:
        near = replace(near, heads=heads)
    named = given.maybe("moe_layers_enum", str | list[Count])
    kinds = given.maybe("mlp_layer_types", list[str])
    if kinds is not None:
        named = [layer for layer, kind in enumerate(kinds) if kind == "sparse"]
    if named is None:
        given.refuse("moe_layers_enum", "missing; the numbers of the layers with experts are needed")
    try:
        sparse = [int(each) for each in (named.split(",") if isinstance(named, str) else named)]
    except ValueError:
        given.refuse("moe_layers_enum", f"given {shown(named)}; allowed: whole numbers with commas between")
    experts = given.experts(
        shared=given.get("share_expert_dim", Count, 0),
    )
    return given.found(
        given.by_type({"full_attention": full, "sliding_attention": near}, more=given.nextn),
        [experts if layer in sparse else given.mlp for layer in range(given.layers)],
        mtp_layers=given.nextn,
        mtp=LayerGroup(1, (near,), given.mlp),
    )
