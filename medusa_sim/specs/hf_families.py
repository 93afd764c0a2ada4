"""What the layers of each family of `config.json` are: heads, windows, latent attention, MLPs, experts.

A family is a line of FAMILIES: the classes under which its checkpoints are published, its reader and the
values that its configs leave out. Defaults are those of the `transformers` configuration classes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from medusa_sim.errors import shown
from medusa_sim.specs.feed_forwards import MoE
from medusa_sim.specs.hf_hybrids import deci, gemma4, mimo_v2, step
from medusa_sim.specs.hf_layers import (
    Given,
    Own,
    Reader,
    afmoe,
    deepseek,
    dense,
    glm,
    gpt_oss,
    hunyuan,
    llama4,
    minimax,
    mixtral,
    qwen,
)
from medusa_sim.specs.hf_recurrent import (
    deepseek_v4,
    granite,
    kimi_linear,
    minimax_m3,
    nemotron_h,
    qwen_hybrid,
    sparse_latent,
)

_BIASES = {"attention_bias": ("qkv_bias", "output_bias"), "mlp_bias": ("mlp_bias",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One architecture."""

    classes: tuple[str, ...]
    """Names of its checkpoints."""
    read: Reader = dense
    types: tuple[str, ...] = ()
    """Further values of `model_type`."""
    wrapper: str | None = None
    """Class of multimodal checkpoints whose text_config may lack its model_type."""
    layout_of: str | None = None
    """The family whose class its checkpoints may name."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Values that its configs leave out."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Its own name of a key -> the name that readers know."""
    biases: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: _BIASES)
    """Key -> the biases of its layout that it switches."""
    plain: tuple[str, ...] = ()
    """Keys whose value is absent, false, 0 or 1: what they switch on is not modelled."""


_NO_WINDOW = {"use_sliding_window": False}
"""Qwen's configs name a window that is off unless this key says otherwise."""
_TIED = {"tie_word_embeddings": True}
_THREE_DENSE = {"first_k_dense_replace": 3}
_EXPERTS = {"num_experts": "n_routed_experts", "num_shared_experts": "n_shared_experts"}


FAMILIES: dict[str, Family] = {
    "llama": Family(classes=("LlamaForCausalLM",)),
    "mistral": Family(classes=("MistralForCausalLM", "Ministral3ForCausalLM"), types=("ministral3",)),
    "granite": Family(classes=("GraniteForCausalLM",)),
    "phi3": Family(classes=("Phi3ForCausalLM",)),
    "smollm3": Family(classes=("SmolLM3ForCausalLM",), defaults={**_TIED, **_NO_WINDOW}),
    "seed_oss": Family(
        classes=("SeedOssForCausalLM",),
        biases={
            "attention_bias": ("qkv_bias",),
            "attention_out_bias": ("output_bias",),
            "mlp_bias": ("mlp_bias",),
        },
    ),
    "ernie4_5": Family(
        classes=("Ernie4_5ForCausalLM",),
        defaults={**_TIED, "head_dim": 128},
        biases={"use_bias": ("qkv_bias", "output_bias", "mlp_bias")},
    ),
    "hunyuan_v1_dense": Family(classes=("HunYuanDenseV1ForCausalLM",), plain=("use_cla",)),
    "glm4": Family(
        classes=("Glm4ForCausalLM",), types=("glm4v_text",), biases={"attention_bias": ("qkv_bias",)}
    ),
    "gemma": Family(classes=("GemmaForCausalLM",), defaults={**_TIED, "head_dim": 256}),
    "gemma2": Family(
        classes=("Gemma2ForCausalLM",),
        defaults={**_TIED, "head_dim": 256, "sliding_window": 4096, "sliding_window_pattern": 2},
    ),
    "olmo2": Family(classes=("Olmo2ForCausalLM", "Olmo3ForCausalLM"), types=("olmo3",)),
    "exaone4": Family(classes=("Exaone4ForCausalLM",)),
    "cohere2": Family(classes=("CohereForCausalLM", "Cohere2ForCausalLM"), types=("cohere",), defaults=_TIED),
    "arcee": Family(classes=("ArceeForCausalLM",)),
    "apertus": Family(classes=("ApertusForCausalLM",)),
    "nemotron": Family(classes=("NemotronForCausalLM",)),
    "qwen2": Family(
        classes=("Qwen2ForCausalLM", "Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration"),
        types=("qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text", "qwen2_5_omni_text"),
        defaults=_NO_WINDOW,
        biases={},
    ),
    "qwen3": Family(classes=("Qwen3ForCausalLM",), types=("qwen3_vl_text",), defaults=_NO_WINDOW),
    "gemma3_text": Family(
        classes=("Gemma3ForCausalLM",),
        wrapper="Gemma3ForConditionalGeneration",
        defaults={
            **_TIED,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "vocab_size": 262_208,
            "max_position_embeddings": 131_072,
            "sliding_window": 4096,
            "sliding_window_pattern": 6,
        },
    ),
    "opt": Family(
        classes=("OPTForCausalLM",),
        defaults=_TIED,
        biases={"enable_bias": ("qkv_bias", "output_bias", "mlp_bias")},
    ),
    "mixtral": Family(classes=("MixtralForCausalLM",), read=mixtral),
    "phimoe": Family(classes=("PhiMoEForCausalLM", "PhimoeForCausalLM"), read=mixtral),
    "hunyuan_v1_moe": Family(
        classes=("HunYuanMoEV1ForCausalLM",),
        read=hunyuan,
        aliases={
            **_EXPERTS,
            "num_shared_expert": "n_shared_experts",
            "moe_topk": "num_experts_per_tok",
            "moe_layer_num_skipped": "first_k_dense_replace",
        },
        plain=("use_cla",),
    ),
    "ernie4_5_moe": Family(
        classes=("Ernie4_5_MoeForCausalLM",),
        read=glm,
        defaults=_TIED,
        aliases={
            "moe_num_experts": "n_routed_experts",
            "moe_num_shared_experts": "n_shared_experts",
            "moe_k": "num_experts_per_tok",
            "moe_layer_start_index": "first_k_dense_replace",
        },
        biases={"use_bias": ("qkv_bias", "output_bias", "mlp_bias")},
        plain=("moe_layer_interval",),
    ),
    "dots1": Family(classes=("Dots1ForCausalLM",), read=glm, defaults={"use_qk_norm": True}),
    "bailing_moe": Family(
        classes=("BailingMoeV2ForCausalLM",),
        types=("bailing_moe_v2",),
        read=glm,
        aliases=_EXPERTS,
        biases={"use_qkv_bias": ("qkv_bias",), "use_bias": ("output_bias",)},
    ),
    "afmoe": Family(
        classes=("AfmoeForCausalLM",),
        read=afmoe,
        aliases={**_EXPERTS, "num_dense_layers": "first_k_dense_replace"},
        defaults={"use_qk_norm": True},
    ),
    "exaone_moe": Family(
        classes=("ExaoneMoEForCausalLM", "ExaoneMoeForCausalLM"),
        read=glm,
        aliases=_EXPERTS,
        defaults={"use_qk_norm": True, "first_k_dense_replace": 1},
    ),
    "qwen2_moe": Family(classes=("Qwen2MoeForCausalLM",), read=qwen, defaults=_NO_WINDOW, biases={}),
    "qwen3_moe": Family(
        classes=("Qwen3MoeForCausalLM",),
        types=("qwen3_vl_moe_text", "qwen3_omni_moe_text"),
        read=qwen,
        defaults=_NO_WINDOW,
    ),
    "deepseek_v2": Family(classes=("DeepseekV2ForCausalLM",), read=deepseek),
    "deepseek_v3": Family(classes=("DeepseekV3ForCausalLM",), read=deepseek, defaults=_THREE_DENSE),
    "mistral4": Family(classes=("Mistral4ForCausalLM",), read=deepseek),
    "kimi_k2": Family(classes=("KimiK2ForCausalLM",), read=deepseek, layout_of="deepseek_v3"),
    "gpt_oss": Family(
        classes=("GptOssForCausalLM",),
        read=gpt_oss,
        defaults={"sliding_window": 128, "sliding_window_pattern": 2, "torch_dtype": "bfloat16"},
    ),
    "llama4_text": Family(
        classes=("Llama4ForCausalLM",),
        read=llama4,
        wrapper="Llama4ForConditionalGeneration",
        defaults={"attention_chunk_size": 8192},
    ),
    "glm4_moe": Family(
        classes=("Glm4MoeForCausalLM", "SolarOpenForCausalLM"),
        types=("glm4v_moe_text", "solar_open"),
        read=glm,
        defaults={"first_k_dense_replace": 1},
        biases={"attention_bias": ("qkv_bias",)},
    ),
    "glm4_moe_lite": Family(
        classes=("Glm4MoeLiteForCausalLM",), read=deepseek, defaults={"first_k_dense_replace": 1}
    ),
    "minimax_m2": Family(classes=("MiniMaxM2ForCausalLM",), read=minimax),
    "qwen3_next": Family(classes=("Qwen3NextForCausalLM",), read=qwen_hybrid),
    "qwen3_5": Family(
        classes=("Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM"),
        types=("qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"),
        read=qwen_hybrid,
    ),
    "kimi_linear": Family(
        classes=("KimiLinearForCausalLM",), read=kimi_linear, defaults={"first_k_dense_replace": 1}
    ),
    "nemotron_h": Family(
        classes=("NemotronHForCausalLM",),
        read=nemotron_h,
        aliases={"attention_head_dim": "head_dim", "layer_types": "layers_block_type"},
        defaults={"head_dim": 128},
    ),
    "granitemoehybrid": Family(classes=("GraniteMoeHybridForCausalLM",), read=granite),
    "deepseek_v32": Family(classes=("DeepseekV32ForCausalLM",), read=sparse_latent, defaults=_THREE_DENSE),
    "glm_moe_dsa": Family(classes=("GlmMoeDsaForCausalLM",), read=sparse_latent, defaults=_THREE_DENSE),
    "minimax_m3": Family(
        classes=("MiniMaxM3ForCausalLM",), types=("minimax_m3_text", "minimax_m3_vl_text"), read=minimax_m3
    ),
    "deepseek_v4": Family(classes=("DeepseekV4ForCausalLM",), types=("deepseek_ref",), read=deepseek_v4),
    "gemma4_text": Family(
        classes=("Gemma4ForCausalLM",),
        read=gemma4,
        wrapper="Gemma4ForConditionalGeneration",
        defaults=_TIED,
    ),
    "mimo": Family(classes=("MiMoForCausalLM",), defaults=_NO_WINDOW, biases={}),
    "mimo_v2_flash": Family(
        classes=("MiMoV2FlashForCausalLM", "MiMoV2ForCausalLM"), types=("mimo_v2",), read=mimo_v2
    ),
    "step3p5": Family(
        classes=("Step3p5ForCausalLM", "Step3p7FlashForCausalLM"),
        types=("step3p7",),
        read=step,
        wrapper="Step3p7ForConditionalGeneration",
        aliases={
            "num_key_value_heads": "num_attention_groups",
            "n_routed_experts": "moe_num_experts",
            "num_local_experts": "moe_num_experts",
            "num_experts_per_tok": "moe_top_k",
            "share_expert_dims": "share_expert_dim",
            "num_mtp_layers": "num_nextn_predict_layers",
        },
    ),
    "nemotron-nas": Family(classes=("DeciLMForCausalLM",), types=("deci", "nemotron_nas"), read=deci),
}
"""Every family that is modelled, by `model_type`."""
CLASSES = {name: family for family, about in FAMILIES.items() for name in about.classes}
"""Class of a checkpoint -> its family."""
WRAPPERS = {about.wrapper: family for family, about in FAMILIES.items() if about.wrapper}
"""Class of a multimodal checkpoint -> the family of its `text_config`."""

TYPES = {name: family for family, about in FAMILIES.items() for name in (family, *about.types)}
"""`model_type` -> its family."""


UNMODELLED = {
    "minimaxm1": "linear attention (lightning attention)",
    "minimaxtext": "linear attention (lightning attention)",
    "bailingmoelinear": "linear attention (lightning attention)",
    "lfm2": "short convolutions in place of attention",
    "gemma3n": "sharing of K and V between layers",
    "mllama": "attention to an image's states in some layers",
    "longcat": "two attentions a layer",
    "jamba": "Mamba-1 layers",
    "mamba": "Mamba-1 layers",
    "falconh1": "layers of attention and Mamba side by side",
    "gemma4e": "sharing of K and V between layers",
    "deepseekv4pro": "list of layers (known from its config.json alone, whose path may be given)",
}
"""What known families have that is not modelled, by how their names, classes and model types begin, in
letters and digits alone. What `models.toml` or FAMILIES names is looked up before."""


def unmodelled(name: str) -> str | None:
    """What a model has that is refused, told from its name, class or model type; None where nothing is known.

    >>> unmodelled("MiniMax-M1-80k"), unmodelled("qwen3-8b")
    ('linear attention (lightning attention)', None)
    """
    letters = re.sub(r"[^a-z0-9]", "", name[:100].rpartition("/")[2].lower())
    return next((what for begins, what in UNMODELLED.items() if letters.startswith(begins)), None)


def read_family(family: str, given: Given) -> Own:
    """What the family's reader finds; experts are refused where the family has none.

    Raises SpecError naming file and field: missing, of a wrong type, or contradicting another.
    """
    if given.content.get("block_configs") and FAMILIES[family].read is not deci:
        given.refuse(
            "block_configs", f"layers of their own sizes; allowed: none in {family} (DeciLM's are read)"
        )
    own = FAMILIES[family].read(given)
    mixtures = [layer.feed_forward for layer in own.layers if isinstance(layer.feed_forward, MoE)]
    if FAMILIES[family].read is dense:
        for key in ("num_local_experts", "num_experts", "n_routed_experts", "moe_intermediate_size"):
            if given.content.get(key) not in (None, 0, 1):
                known = ", ".join(name for name in FAMILIES if FAMILIES[name].read is not dense)
                given.refuse(
                    key,
                    f"given {shown(given.content[key])}; {family} is no mixture-of-experts family; "
                    f"known: {known}",
                )
    for experts in mixtures[:1]:
        if not 1 <= experts.topk <= experts.experts:
            given.refuse(
                "num_experts_per_tok", f"given {experts.topk}; at most the {experts.experts} experts"
            )
    return own
