"""Readers of families whose layers attend to all tokens or to a window: dense, and mixtures of experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from msgspec import Meta
from msgspec.structs import replace as changed

from medusa_sim.models.feed_forwards import FeedForward, MoE
from medusa_sim.models.hf_given import Count, Flags, Found, Given
from medusa_sim.models.mixers import Grouped, Latent, Mixer, Window
from medusa_sim.models.model import Layers, Width

_PARALLEL = (
    "attention and MLP of a layer read the same input: priced one after the other, each with its all-reduce"
)
SINKS = "attention sinks: one number a head in the softmax, which costs nothing"
_ROUNDED_TO = 256


def dense(given: Given) -> Found:
    """Dense layers, all alike but for their windows."""
    notes = (_PARALLEL,) if given.layout.norms_per_layer == 1 else ()
    return given.found(windowed(given), given.mlp, mtp_layers=given.nextn, notes=notes)


def mixtral(given: Given) -> Found:
    """Mixtral: experts in every layer."""
    return given.found(windowed(given), given.experts())


def gpt_oss(given: Given) -> Found:
    """gpt-oss: every second layer sees a window."""
    return given.found(windowed(given), given.experts(biases=True), notes=(SINKS,))


def minimax(given: Given) -> Found:
    """MiniMax-M2: experts in every layer."""
    mixer = given.attention(qk_norm=given.get("use_qk_norm", bool, True))
    modules = given.get("num_mtp_modules", Count, 0) if given.get("use_mtp", bool, False) else 0
    return given.found(mixer, given.experts(), mtp_layers=modules)


def qwen_experts(given: Given) -> list[FeedForward]:
    """The parts of a Qwen: experts in every `decoder_sparse_step`-th layer that `mlp_only_layers` lets be."""
    shared = given.get("shared_expert_intermediate_size", Count, 0)
    experts = given.experts(shared=shared, shared_gate=shared > 0)
    plain = given.get("mlp_only_layers", list[Count], [])
    every = given.get("decoder_sparse_step", Layers, 1)
    sparse = [layer not in plain and (layer + 1) % every == 0 for layer in range(given.layers)]
    return [experts if each else given.mlp for each in sparse]


def qwen(given: Given) -> Found:
    """Qwen2-MoE and Qwen3-MoE."""
    return given.found(windowed(given), qwen_experts(given))


def latent(given: Given, **fixed: object) -> Latent:
    """Latent attention with DeepSeek's keys; fixed: other fields."""
    return given.part(Latent, "latent", heads=given.heads, **fixed)


def deepseek(given: Given) -> Found:
    """DeepSeek-V2, V3, R1 and Kimi-K2: latent attention (none where `use_mla` is off), dense layers first."""
    parts = routed(given)
    mixer = given.attention() if given.content.get("use_mla") is False else latent(given)
    return given.found(mixer, parts, mtp_layers=given.nextn)


def glm(given: Given) -> Found:
    """GLM-4.5 to 4.7, and others of grouped attention with dense layers first."""
    parts = routed(given)
    qk_norm = given.get("use_qk_norm", bool, False)
    mixers = [changed(mixer, qk_norm=qk_norm) for mixer in windowed(given)]
    return given.found(mixers, parts, mtp_layers=given.nextn)


def afmoe(given: Given) -> Found:
    """Arcee's Trinity: as GLM, with a gate for every element of the output."""
    found = glm(given)
    gated = [changed(mixer, gate="element") for layer in found.layers for mixer in layer.mixers]
    return given.found(gated, [layer.feed_forward for layer in found.layers], mtp_layers=found.mtp_layers)


def hunyuan(given: Given) -> Found:
    """Hunyuan's mixtures: the config gives sizes of experts layer by layer, all equal."""
    content = dict(given.content)
    for key in (*given.keys["experts"].values(), "n_shared_experts"):
        if isinstance(values := content.get(key), list):
            if any(value != values[0] for value in values):
                given.refuse(key, "layers differ; allowed: one value for all")
            content[key] = next(iter(values), None)
    return glm(replace(given, content={**content, "use_qk_norm": content.get("use_qk_norm", False)}))


def routed(given: Given) -> list[FeedForward]:
    """The parts of a DeepSeek: dense first, experts in every `moe_layer_freq`-th layer after them."""
    experts = given.experts(shared_experts=given.maybe("n_shared_experts", Count) or 0)
    named = given.maybe("mlp_layer_types", list[str])
    if named is None:
        return dense_first(given, experts)
    return [given.mlp if kind == "dense" else experts for kind in given.one_each("mlp_layer_types", named)]


def dense_first(given: Given, experts: MoE) -> list[FeedForward]:
    """Dense layers before the first sparse one, experts in every `moe_layer_freq`-th layer from it on."""
    first, every = given.get("first_k_dense_replace", Count, 0), given.get("moe_layer_freq", Layers, 1)
    sparse = [layer >= first and layer % every == 0 for layer in range(given.layers)]
    return [experts if each else given.mlp for each in sparse]


def llama4(given: Given) -> Found:
    """Llama 4: three layers of four see their chunk alone."""
    width, wide = given.get("intermediate_size", Width), given.get("intermediate_size_mlp", Width)
    step, layers = given.get("interleave_moe_layer_step", Layers, 1), range(given.layers)
    sparse = given.maybe("moe_layers", list[Count])
    sparse = layers[step - 1 :: step] if sparse is None else sparse
    rotated = given.maybe("no_rope_layers", Flags) or [int((at + 1) % 4 != 0) for at in layers]
    if len(rotated) != given.layers:
        given.refuse("no_rope_layers", f"{len(rotated)} entries; num_hidden_layers is {given.layers}")
    chunk = given.maybe("attention_chunk_size", Window)
    near, full = given.attention(chunk, chunked=chunk is not None), given.attention()
    experts, mlp = given.experts(shared=width), given.layout.mlp(wide)
    return given.found(
        [near if each else full for each in rotated],
        [experts if layer in sparse else mlp for layer in layers],
        mlp_width=wide,
    )


_Pattern = Annotated[int, Meta(ge=1, le=1000)] | str | None


def windowed(given: Given) -> list[Grouped]:
    """Attention of every layer, with its window.

    Windowed are the layers that `layer_types` names, else all but every n-th, else all. Qwen configs name a
    window and switch it off; theirs begins with the layer `max_window_layers`.
    """
    size, layers = given.maybe("sliding_window", Window), range(given.layers)
    kinds = given.maybe("layer_types", list[str])
    pattern = given.get("sliding_window_pattern", _Pattern, None)
    switched = given.maybe("use_sliding_window", bool)
    first = given.maybe("max_window_layers", Count)
    is_near = {"full_attention": False, "sliding_attention": True}
    for kind in kinds or ():
        given.known("layer_types", kind, is_near)
    if size is None or switched is False:
        near = [False] * given.layers
    elif kinds is not None:
        if len(kinds) != given.layers:
            given.refuse("layer_types", f"{len(kinds)} entries; num_hidden_layers is {given.layers}")
        near = [is_near[kind] for kind in kinds]
    elif isinstance(pattern, str):  # of letters: local, global
        near = [pattern[layer % len(pattern)] == "L" for layer in layers]
    elif pattern is not None:
        near = [(layer + 1) % pattern != 0 for layer in layers]
    else:
        near = [not switched or first is None or layer >= first for layer in layers]
    return [given.attention(size if each else None) for each in near]


def deci(given: Given) -> Found:
    """DeciLM (Llama-Nemotron): every layer has its own K/V heads and width, or lacks a part.

    Newer files give K/V heads, widths and experts themselves (`block_config.py` of NVIDIA/Model-Optimizer).
    """
    mixers: list[Mixer | None] = []
    parts: list[FeedForward | None] = []
    tables = given.one_each("block_configs", given.get("block_configs", list[dict[str, Any]]))
    for index, table in enumerate(tables):
        block = given.inside(f"block_configs[{index}]", table)
        attention, ffn = block.inside("attention"), block.inside("ffn")
        for part in (attention, ffn):
            for key in ("replace_with_linear", "mamba", "llama4"):
                if part.content.get(key):
                    given.refuse(f"{part.place}.{key}", "given; allowed: none (others are not modelled)")
        mixers.append(None if attention.get("no_op", bool, False) else _nas_attention(attention))
        parts.append(None if ffn.get("no_op", bool, False) else _nas_part(ffn))
    return given.found(mixers, parts)


def _nas_attention(block: Given) -> Grouped:
    key, kv_heads = "num_key_value_heads", block.maybe("num_key_value_heads", Width)
    if kv_heads is None:
        key = "n_heads_in_group"
    if (count := block.maybe(key, Width)) is None or block.heads % count:
        block.refuse(f"{block.place}.{key}", f"given {count}; a divisor of {block.heads}")
    window = block.maybe("window_length", Window)
    return block.attention(window, kv_heads=kv_heads or block.heads // count)


def _nas_part(block: Given) -> FeedForward:
    """Experts, or an MLP of a width or of a multiple of the hidden size."""
    if (moe := block.maybe("moe", dict[str, Any])) is not None:
        return block.inside("moe", moe).experts()
    multiple = block.maybe("ffn_mult", Annotated[float, Meta(gt=0, le=1000)])
    if (width := block.maybe("intermediate_size", Width)) is None:
        if multiple is None:
            missing = "missing; a number above 0 is needed, or intermediate_size"
            block.refuse(f"{block.place}.ffn_mult", missing)
        width = -(-int(2 * multiple * block.hidden / 3) // _ROUNDED_TO) * _ROUNDED_TO
    return changed(block.layout.mlp(width), gated=block.maybe("gated", bool) is not False)
