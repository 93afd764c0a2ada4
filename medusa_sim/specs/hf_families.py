"""What the layers of each family of `config.json` are: heads, windows, latent attention, MLPs, experts.

A family is a table of `families.toml`: the classes under which its checkpoints are published, its reader and
the values that its configs leave out.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec

from medusa_sim.errors import shown
from medusa_sim.reading import read_toml
from medusa_sim.specs import hf_hybrids, hf_layers
from medusa_sim.specs.feed_forwards import MoE
from medusa_sim.specs.hf_given import Given, Own
from medusa_sim.specs.strict import convert


class Family(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One architecture; `families.toml` says what each key means."""

    classes: tuple[str, ...]
    types: tuple[str, ...] = ()
    read: str = "dense"
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


_PATH = Path(__file__).with_name("families.toml")
_FILE = convert(read_toml(_PATH), _File, _PATH)
FAMILIES = _FILE.families
"""Every family that is modelled, by `model_type`."""
UNMODELLED = _FILE.unmodelled
"""What other families have that is not, by how their names begin."""
CLASSES = {name: family for family, about in FAMILIES.items() for name in about.classes}
"""Class of a checkpoint -> its family."""
WRAPPERS = {about.wrapper: family for family, about in FAMILIES.items() if about.wrapper}
"""Class of a multimodal checkpoint -> the family of its `text_config`."""
TYPES = {name: family for family, about in FAMILIES.items() for name in (family, *about.types)}
"""`model_type` -> its family."""


_READERS: dict[str, Any] = {**vars(hf_layers), **vars(hf_hybrids)}


def unmodelled(name: str) -> str | None:
    """Why a model is unsupported, judging by its name, class or model type; None where nothing is known.

    >>> unmodelled("MiniMax-M1-80k"), unmodelled("qwen3-8b")
    ('linear attention (lightning attention)', None)
    """
    letters = re.sub(r"[^a-z0-9]", "", name[:100].rpartition("/")[2].lower())
    return next((what for begins, what in UNMODELLED.items() if letters.startswith(begins)), None)


def read_family(family: str, given: Given) -> Own:
    """What the family's reader finds; experts are refused where the family has none.

    Raises SpecError naming file and field: missing, of a wrong type, or contradicting another.
    """
    if given.content.get("block_configs") and FAMILIES[family].read != "deci":
        given.refuse(
            "block_configs", f"layers of their own sizes; allowed: none in {family} (DeciLM's are read)"
        )
    own: Own = _READERS[FAMILIES[family].read](given)
    mixtures = [layer.feed_forward for layer in own.layers if isinstance(layer.feed_forward, MoE)]
    if FAMILIES[family].read == "dense":
        for key in ("num_local_experts", "num_experts", "n_routed_experts", "moe_intermediate_size"):
            if given.content.get(key) not in (None, 0, 1):
                known = ", ".join(name for name in FAMILIES if FAMILIES[name].read != "dense")
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
