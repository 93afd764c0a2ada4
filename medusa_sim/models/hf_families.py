"""Layers of each family of `config.json`: heads, windows, latent attention, MLPs, experts.

A family is a table of `families.toml`: the classes under which its checkpoints are published, the values
that its configs leave out; READERS has what reads its layers.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec

from medusa_sim.errors import shown
from medusa_sim.models import hf_hybrids, hf_layers
from medusa_sim.models.feed_forwards import MoE
from medusa_sim.models.hf_given import Found, Given
from medusa_sim.models.variants import FAMILIES_FILE, Architecture
from medusa_sim.reading.documents import read_toml
from medusa_sim.reading.strict import convert

READERS: dict[str, Callable[[Given], Found]] = {
    "mixtral": hf_layers.mixtral,
    "phimoe": hf_layers.mixtral,
    "hunyuan_v1_moe": hf_layers.hunyuan,
    "ernie4_5_moe": hf_layers.glm,
    "dots1": hf_layers.glm,
    "bailing_moe": hf_layers.glm,
    "afmoe": hf_layers.afmoe,
    "exaone_moe": hf_layers.glm,
    "qwen2_moe": hf_layers.qwen,
    "qwen3_moe": hf_layers.qwen,
    "deepseek_v2": hf_layers.deepseek,
    "deepseek_v3": hf_layers.deepseek,
    "mistral4": hf_layers.deepseek,
    "kimi_k2": hf_layers.deepseek,
    "gpt_oss": hf_layers.gpt_oss,
    "llama4_text": hf_layers.llama4,
    "glm4_moe": hf_layers.glm,
    "glm4_moe_lite": hf_layers.deepseek,
    "minimax_m2": hf_layers.minimax,
    "qwen3_next": hf_hybrids.qwen_hybrid,
    "qwen3_5": hf_hybrids.qwen_hybrid,
    "kimi_linear": hf_hybrids.kimi_linear,
    "bailing_hybrid": hf_hybrids.ling,
    "nemotron_h": hf_hybrids.nemotron_h,
    "granitemoehybrid": hf_hybrids.granite,
    "falcon_h1": hf_hybrids.falcon_h1,
    "deepseek_v32": hf_hybrids.sparse_latent,
    "glm_moe_dsa": hf_hybrids.sparse_latent,
    "minimax_m3": hf_hybrids.minimax_m3,
    "deepseek_v4": hf_hybrids.deepseek_v4,
    "gemma4_text": hf_hybrids.gemma4,
    "mimo_v2_flash": hf_hybrids.mimo_v2,
    "step3p5": hf_hybrids.step,
    "nemotron-nas": hf_layers.deci,
}
"""Reader of the layers of each family; of others `hf_layers.dense`."""


class Family(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One architecture; `families.toml` says what each key means."""

    classes: tuple[str, ...]
    layout: Architecture = Architecture()
    types: tuple[str, ...] = ()
    wrapper: str | None = None
    layout_of: str | None = None
    defaults: dict[str, Any] = {}
    aliases: dict[str, str] = {}
    biases: dict[str, tuple[str, ...]] = msgspec.field(
        default_factory=lambda: {"attention_bias": ("qkv_bias", "output_bias"), "mlp_bias": ("mlp_bias",)}
    )
    plain: tuple[str, ...] = ()
    keys: dict[str, dict[str, str]] = {}


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    families: dict[str, Family]
    unmodelled: dict[str, str]


_FILE = convert(read_toml(FAMILIES_FILE), _File, FAMILIES_FILE)
FAMILIES = _FILE.families
"""Every family that is modelled, by `model_type`."""
UNMODELLED = _FILE.unmodelled
"""Features of other families that are not modelled, by how their names begin."""
CLASSES = {name: family for family, about in FAMILIES.items() for name in about.classes}
"""Class of a checkpoint -> its family."""
WRAPPERS = {about.wrapper: family for family, about in FAMILIES.items() if about.wrapper}
"""Class of a multimodal checkpoint -> the family of its `text_config`."""
TYPES = {name: family for family, about in FAMILIES.items() for name in (family, *about.types)}
"""`model_type` -> its family."""


def unmodelled(name: str) -> str | None:
    """Why a model is unsupported, judging by its name, class or model type; None where nothing is known.

    >>> unmodelled("MiniMax-M1-80k"), unmodelled("qwen3-8b")
    ('linear attention (lightning attention)', None)
    """
    letters = re.sub(r"[^a-z0-9]", "", name[:100].rpartition("/")[2].lower())
    return next((what for begins, what in UNMODELLED.items() if letters.startswith(begins)), None)


def read_family(family: str, given: Given) -> Found:
    """Result of the family's reader; experts are refused where the family has none.

    Raises SpecError naming file and field: missing, of a wrong type, or contradicting another.
    """
    if given.content.get("block_configs") and READERS.get(family) is not hf_layers.deci:
        given.refuse(
            "block_configs", f"layers of their own sizes; allowed: none in {family} (DeciLM's are read)"
        )
    found = READERS.get(family, hf_layers.dense)(given)
    mixtures = [layer.feed_forward for layer in found.layers if isinstance(layer.feed_forward, MoE)]
    if family not in READERS:
        for key in ("num_local_experts", "num_experts", "n_routed_experts", "moe_intermediate_size"):
            if given.content.get(key) not in (None, 0, 1):
                known = ", ".join(name for name in FAMILIES if name in READERS)
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
    return found
