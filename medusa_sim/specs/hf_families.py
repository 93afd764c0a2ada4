"""What the layers of each family of `config.json` are: heads, windows, latent attention, MLPs, experts.

A family is a line of FAMILIES: the classes under which its checkpoints are published, its reader and the
values that its configs leave out. Defaults are those of the `transformers` configuration classes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import msgspec
from msgspec import Meta

from medusa_sim.errors import SpecError, shown
from medusa_sim.reading import named
from medusa_sim.specs.feed_forwards import FeedForward, Mlp, MoE
from medusa_sim.specs.mixers import Grouped, Latent, Mixers
from medusa_sim.specs.model import Architecture, LayerGroup, Layers, Width
from medusa_sim.specs.strict import converted

_Count = Annotated[int, Meta(ge=0, le=1_000_000)]
_Window = Annotated[int, Meta(ge=1, le=100_000_000)]
_Experts = Annotated[int, Meta(ge=1, le=100_000)]


class Refusal:
    """Raises SpecError for a key of a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __call__(self, key: str, problem: str) -> NoReturn:
        """One line: file, key, problem."""
        raise SpecError(f"{named(self.file)}: {key}: {problem}")


StructT = TypeVar("StructT", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What every config says, for the reader of its family."""

    content: dict[str, Any]
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    own_head_dim: int | None
    own_width: int | None
    width_key: str
    layout: Architecture
    """The family's, with the biases that the config switches."""
    refuse: Refusal

    def read(self, form: type[StructT]) -> StructT:
        """Keys that a family adds. Raises SpecError naming the first that is missing or wrong."""
        return converted(self.content, form, self.refuse.file)

    @property
    def head_dim(self) -> int:
        """Width of a head. Raises SpecError where it is neither given nor a whole share."""
        if self.own_head_dim is None and self.hidden % self.heads:
            self.refuse(
                "num_attention_heads",
                f"given {self.heads}, which does not divide hidden_size = {self.hidden}; add head_dim",
            )
        return self.own_head_dim or self.hidden // self.heads

    @property
    def width(self) -> int:
        """Width of a dense MLP. Raises SpecError where it is missing."""
        if self.own_width is None:
            self.refuse(self.width_key, "missing; a whole number from 1 to 1e+06 is needed")
        return self.own_width

    @property
    def mlp(self) -> Mlp:
        """A dense MLP."""
        return self.layout.mlp(self.width)

    def attention(self, size: int | None = None, *, chunked: bool = False) -> Grouped:
        """Attention of its heads; `size` as in `Grouped`."""
        return self.layout.attention(self.heads, self.kv_heads, self.head_dim, size, chunked=chunked)


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """What a family's reader found."""

    layers: tuple[LayerGroup, ...]
    """One by one, from the first."""
    mlp_width: int | None = None
    """Of dense MLPs that no layer has, where it stands under a key of its own."""
    mtp_layers: int = 0
    notes: tuple[str, ...] = ()


def layered(mixers: Iterable[Mixers | None], parts: Iterable[FeedForward | None]) -> tuple[LayerGroup, ...]:
    """Layers of these mixers and feed-forward parts, one by one."""
    return tuple(LayerGroup(1, mixer, part) for mixer, part in zip(mixers, parts, strict=True))


class _Moe(msgspec.Struct, frozen=True, kw_only=True):
    num_experts_per_tok: _Experts


class _Mtp(msgspec.Struct, frozen=True, kw_only=True):
    num_nextn_predict_layers: _Count | None = None


class _Windows(msgspec.Struct, frozen=True, kw_only=True):
    sliding_window: _Window | None = None
    use_sliding_window: bool | None = None
    max_window_layers: _Count | None = None
    sliding_window_pattern: Annotated[int, Meta(ge=1, le=1000)] | None = None
    layer_types: list[str] | None = None


class _LocalExperts(_Moe, frozen=True, kw_only=True):
    num_local_experts: _Experts
    intermediate_size: Width


class _Qwen(_Moe, frozen=True, kw_only=True):
    num_experts: _Experts
    moe_intermediate_size: Width
    shared_expert_intermediate_size: _Count = 0
    decoder_sparse_step: Layers = 1
    mlp_only_layers: list[_Count] = []


class _DeepSeek(_Moe, frozen=True, kw_only=True):
    num_nextn_predict_layers: _Count | None = None
    n_routed_experts: _Experts
    moe_intermediate_size: Width
    n_shared_experts: _Count | None = None
    first_k_dense_replace: _Count = 0
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
    moe_layers: list[_Count] | None = None
    attention_chunk_size: _Window | None = None
    no_rope_layers: list[Annotated[int, Meta(ge=0, le=1)]] | None = None


class _MiniMax(_LocalExperts, frozen=True, kw_only=True):
    use_qk_norm: bool = True
    use_mtp: bool = False
    num_mtp_modules: _Count = 0


Reader = Callable[[Given], Own]


def _dense(given: Given) -> Own:
    layers = layered(_windowed(given), [given.mlp] * given.layers)
    return Own(layers=layers, mtp_layers=given.read(_Mtp).num_nextn_predict_layers or 0)


def _mixtral(given: Given) -> Own:
    experts = _local(given.read(_LocalExperts))
    return Own(layers=layered(_windowed(given), [experts] * given.layers))


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


def _qwen(given: Given) -> Own:
    return Own(layers=layered(_windowed(given), qwen_experts(given)))


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


def _deepseek(given: Given) -> Own:
    parts, config = routed(given)
    return Own(
        layers=layered([latent(given)] * given.layers, parts),
        mtp_layers=config.num_nextn_predict_layers or 0,
    )


def _glm(given: Given) -> Own:
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


def _gpt_oss(given: Given) -> Own:
    experts = _local(given.read(_LocalExperts), biases=True)
    return Own(layers=layered(_windowed(given), [experts] * given.layers), notes=(_SINKS,))


_SINKS = "attention sinks: one number a head in the softmax, which costs nothing"


def _llama4(given: Given) -> Own:
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


def _minimax(given: Given) -> Own:
    config = given.read(_MiniMax)
    mixer = msgspec.structs.replace(given.attention(), qk_norm=config.use_qk_norm)
    return Own(
        layers=layered([mixer] * given.layers, [_local(config)] * given.layers),
        mtp_layers=config.num_mtp_modules if config.use_mtp else 0,
    )


def _windowed(given: Given) -> list[Grouped]:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One architecture.

    classes: names of its checkpoints; wrapper: of multimodal ones around it. layout_of: the family whose
    class its checkpoints may name.
    """

    classes: tuple[str, ...]
    read: Reader = _dense
    wrapper: str | None = None
    layout_of: str | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)


FAMILIES: dict[str, Family] = {
    "llama": Family(classes=("LlamaForCausalLM",)),
    "mistral": Family(classes=("MistralForCausalLM",)),
    "qwen2": Family(classes=("Qwen2ForCausalLM",)),
    "qwen3": Family(classes=("Qwen3ForCausalLM",)),
    "gemma3_text": Family(
        classes=("Gemma3ForCausalLM",),
        wrapper="Gemma3ForConditionalGeneration",
        defaults={
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "vocab_size": 262_208,
            "max_position_embeddings": 131_072,
            "sliding_window": 4096,
            "sliding_window_pattern": 6,
        },
    ),
    "opt": Family(classes=("OPTForCausalLM",)),
    "mixtral": Family(classes=("MixtralForCausalLM",), read=_mixtral),
    "qwen2_moe": Family(classes=("Qwen2MoeForCausalLM",), read=_qwen),
    "qwen3_moe": Family(classes=("Qwen3MoeForCausalLM",), read=_qwen),
    "deepseek_v2": Family(classes=("DeepseekV2ForCausalLM",), read=_deepseek),
    "deepseek_v3": Family(classes=("DeepseekV3ForCausalLM",), read=_deepseek),
    "kimi_k2": Family(
        classes=("KimiK2ForCausalLM",),
        read=_deepseek,
        wrapper="KimiK25ForConditionalGeneration",
        layout_of="deepseek_v3",
    ),
    "gpt_oss": Family(
        classes=("GptOssForCausalLM",),
        read=_gpt_oss,
        defaults={"sliding_window": 128, "sliding_window_pattern": 2},
    ),
    "llama4_text": Family(
        classes=("Llama4ForCausalLM",),
        read=_llama4,
        wrapper="Llama4ForConditionalGeneration",
        defaults={"attention_chunk_size": 8192},
    ),
    "glm4_moe": Family(classes=("Glm4MoeForCausalLM",), read=_glm),
    "minimax_m2": Family(classes=("MiniMaxM2ForCausalLM",), read=_minimax),
}
"""Every family that is modelled, by `model_type`."""
CLASSES = {name: family for family, about in FAMILIES.items() for name in about.classes}
"""Class of a checkpoint -> its family."""
WRAPPERS = {about.wrapper: family for family, about in FAMILIES.items() if about.wrapper}
"""Class of a multimodal checkpoint -> the family of its `text_config`."""

_DELTA = "linear attention (gated DeltaNet)"
_KDA = "linear attention (Kimi delta attention)"
_MAMBA = "Mamba layers"
_LIGHTNING = "linear attention (lightning attention)"
_SPARSE = "sparse attention (an indexer that chooses keys)"
_MIXED = "layers of two attention shapes"
UNMODELLED = {
    "qwen3next": _DELTA,
    "qwen35": _DELTA,
    "qwen36": _DELTA,
    "kimilinear": _KDA,
    "kimik3": _KDA,
    "deepseekv32": _SPARSE,
    "deepseekv4": _SPARSE,
    "glm5": _SPARSE,
    "glmmoedsa": _SPARSE,
    "minimaxm3": _SPARSE,
    "minimaxm1": _LIGHTNING,
    "minimaxtext": _LIGHTNING,
    "nemotron": _MAMBA,
    "nvidianemotron": _MAMBA,
    "jamba": _MAMBA,
    "mamba": _MAMBA,
    "falconh1": _MAMBA,
    "gemma4": _MIXED,
    "mimov2": _MIXED,
    "step3": _MIXED,
}
"""What known families have that is not modelled, by how their names, classes and model types begin, in
letters and digits alone. What `models.toml` or FAMILIES names is looked up before."""


def unmodelled(name: str) -> str | None:
    """What a model has that is refused, told from its name, class or model type; None where nothing is known.

    >>> unmodelled("Qwen3.5-397B-A17B"), unmodelled("Qwen3NextForCausalLM"), unmodelled("qwen3-8b")
    ('linear attention (gated DeltaNet)', 'linear attention (gated DeltaNet)', None)
    """
    letters = re.sub(r"[^a-z0-9]", "", name[:100].rpartition("/")[2].lower())
    return next((what for begins, what in UNMODELLED.items() if letters.startswith(begins)), None)


def read_family(family: str, given: Given) -> Own:
    """What the family's reader finds; experts are refused where the family has none.

    Raises SpecError naming file and field: missing, of a wrong type, or contradicting another.
    """
    own = FAMILIES[family].read(given)
    mixtures = [layer.feed_forward for layer in own.layers if isinstance(layer.feed_forward, MoE)]
    if FAMILIES[family].read is _dense:
        for key in ("num_local_experts", "num_experts", "n_routed_experts", "moe_intermediate_size"):
            if given.content.get(key) not in (None, 0, 1):
                known = ", ".join(name for name in FAMILIES if FAMILIES[name].read is not _dense)
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
