"""What each family of `config.json` adds to the sizes that all have: experts, latent attention, windows.

A family is a line of FAMILIES: the classes under which its checkpoints are published, its reader and the
values that its configs leave out. Defaults are those of the `transformers` configuration classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NoReturn

import msgspec
from msgspec import Meta

from medusa_sim.errors import SpecError, shown
from medusa_sim.reading import named
from medusa_sim.specs.experts import MoE
from medusa_sim.specs.latent import Latent
from medusa_sim.specs.model import Layers, Width
from medusa_sim.specs.strict import converted
from medusa_sim.specs.windows import Windows

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """What a family's reader found. None: as all decoders have it."""

    experts: MoE | None = None
    latent: Latent | None = None
    windows: Windows | None = None
    intermediate: int | None = None
    head_dim: int | None = None
    qk_norm: bool | None = None
    mtp_layers: int = 0
    notes: tuple[str, ...] = ()


class _Moe(msgspec.Struct, frozen=True, kw_only=True):
    num_experts_per_tok: _Experts


class _Mtp(msgspec.Struct, frozen=True, kw_only=True):
    num_nextn_predict_layers: _Count | None = None


class _Windowed(msgspec.Struct, frozen=True, kw_only=True):
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


Reader = Callable[[dict[str, Any], int, Refusal], Own]


def _dense(content: dict[str, Any], layers: int, refuse: Refusal) -> Own:
    return Own(windows=_windows(content, layers, refuse), mtp_layers=_mtp(content, refuse))


def _mixtral(content: dict[str, Any], layers: int, refuse: Refusal) -> Own:
    config = converted(content, _LocalExperts, refuse.file)
    return Own(experts=_local(config, layers), windows=_windows(content, layers, refuse))


def _local(config: _LocalExperts, layers: int, *, shared: int = 0, biases: bool = False) -> MoE:
    return MoE(
        experts=config.num_local_experts,
        topk=config.num_experts_per_tok,
        inter=config.intermediate_size,
        layers=layers,
        shared=shared,
        biases=biases,
    )


def _qwen(content: dict[str, Any], layers: int, refuse: Refusal) -> Own:
    config = converted(content, _Qwen, refuse.file)
    sparse = [
        layer
        for layer in range(layers)
        if layer not in config.mlp_only_layers and (layer + 1) % config.decoder_sparse_step == 0
    ]
    experts = MoE(
        experts=config.num_experts,
        topk=config.num_experts_per_tok,
        inter=config.moe_intermediate_size,
        layers=len(sparse),
        shared=config.shared_expert_intermediate_size,
        shared_gate=config.shared_expert_intermediate_size > 0,
    )
    return Own(experts=experts, windows=_windows(content, layers, refuse))


def _deepseek(content: dict[str, Any], layers: int, refuse: Refusal) -> Own:
    config = converted(content, _DeepSeek, refuse.file)
    latent = converted(content, _Latent, refuse.file)
    return Own(
        experts=_routed(config, layers),
        latent=Latent(
            kv_rank=latent.kv_lora_rank,
            rope_dim=latent.qk_rope_head_dim,
            nope_dim=latent.qk_nope_head_dim,
            v_dim=latent.v_head_dim,
            q_rank=latent.q_lora_rank,
        ),
        head_dim=latent.qk_nope_head_dim + latent.qk_rope_head_dim,
        mtp_layers=config.num_nextn_predict_layers or 0,
    )


def _glm(content: dict[str, Any], layers: int, refuse: Refusal) -> Own:
    config = converted(content, _Glm, refuse.file)
    return Own(
        experts=_routed(config, layers),
        qk_norm=config.use_qk_norm,
        mtp_layers=config.num_nextn_predict_layers or 0,
    )


def _routed(config: _DeepSeek, layers: int) -> MoE:
    sparse = range(config.first_k_dense_replace, layers)
    return MoE(
        experts=config.n_routed_experts,
        topk=config.num_experts_per_tok,
        inter=config.moe_intermediate_size,
        layers=sum(layer % config.moe_layer_freq == 0 for layer in sparse),
        shared=(config.n_shared_experts or 0) * config.moe_intermediate_size,
    )


def _gpt_oss(content: dict[str, Any], layers: int, refuse: Refusal) -> Own:
    config = converted(content, _LocalExperts, refuse.file)
    experts = _local(config, layers, biases=True)
    return Own(experts=experts, windows=_windows(content, layers, refuse), notes=(_SINKS,))


_SINKS = "attention sinks: one number a head in the softmax, which costs nothing"


def _llama4(content: dict[str, Any], layers: int, refuse: Refusal) -> Own:
    config = converted(content, _Llama4, refuse.file)
    step = config.interleave_moe_layer_step
    sparse = range(step - 1, layers, step) if config.moe_layers is None else config.moe_layers
    rotated = config.no_rope_layers or [int((layer + 1) % 4 != 0) for layer in range(layers)]
    chunk = config.attention_chunk_size
    return Own(
        experts=_local(config, len(sparse), shared=config.intermediate_size),
        intermediate=config.intermediate_size_mlp,
        windows=None
        if chunk is None
        else Windows(size=chunk, layers=min(sum(rotated), layers), chunked=True),
    )


def _minimax(content: dict[str, Any], layers: int, refuse: Refusal) -> Own:
    config = converted(content, _MiniMax, refuse.file)
    return Own(
        experts=_local(config, layers),
        qk_norm=config.use_qk_norm,
        mtp_layers=config.num_mtp_modules if config.use_mtp else 0,
    )


def _mtp(content: dict[str, Any], refuse: Refusal) -> int:
    return converted(content, _Mtp, refuse.file).num_nextn_predict_layers or 0


def _windows(content: dict[str, Any], layers: int, refuse: Refusal) -> Windows | None:
    """Layers with a sliding window: those that `layer_types` names, else all but every n-th, else all.

    Qwen configs name a window and switch it off; theirs begins with the layer `max_window_layers`.
    """
    config = converted(content, _Windowed, refuse.file)
    if config.sliding_window is None or config.use_sliding_window is False:
        return None
    if config.layer_types is not None:
        if len(config.layer_types) != layers:
            refuse("layer_types", f"{len(config.layer_types)} entries; num_hidden_layers is {layers}")
        windowed = config.layer_types.count("sliding_attention")
    elif config.sliding_window_pattern is not None:
        windowed = layers - layers // config.sliding_window_pattern
    elif config.use_sliding_window and config.max_window_layers is not None:
        windowed = max(layers - config.max_window_layers, 0)
    else:
        windowed = layers
    return Windows(size=config.sliding_window, layers=windowed) if windowed else None


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
    "kimi_k2": Family(classes=("KimiK2ForCausalLM",), read=_deepseek, layout_of="deepseek_v3"),
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

_DELTA = "its linear attention (gated DeltaNet), for whose kernels there are no public measurements,"
_SPARSE = "its sparse attention (an indexer that chooses keys)"
UNMODELLED = {
    "Qwen3NextForCausalLM": _DELTA,
    "qwen3_next": _DELTA,
    "Qwen3_5MoeForConditionalGeneration": _DELTA,
    "qwen3_5_moe": _DELTA,
    "qwen3_5_moe_text": _DELTA,
    "DeepseekV32ForCausalLM": _SPARSE,
    "deepseek_v32": _SPARSE,
    "DeepseekV4ForCausalLM": _SPARSE,
    "deepseek_v4": _SPARSE,
    "GlmMoeDsaForCausalLM": _SPARSE,
    "glm_moe_dsa": _SPARSE,
}
"""Known families that are refused, and what of them is missing here."""


def read_family(family: str, content: dict[str, Any], layers: int, refuse: Refusal) -> Own:
    """What the family's reader finds; experts are refused where the family has none.

    Raises SpecError naming file and field: missing, of a wrong type, or contradicting another.
    """
    own = FAMILIES[family].read(content, layers, refuse)
    if own.experts is None:
        for key in ("num_local_experts", "num_experts", "n_routed_experts", "moe_intermediate_size"):
            if content.get(key) not in (None, 0, 1):
                known = ", ".join(name for name in FAMILIES if FAMILIES[name].read is not _dense)
                refuse(
                    key,
                    f"given {shown(content[key])}; {family} is no mixture-of-experts family; known: {known}",
                )
    elif not 1 <= own.experts.topk <= own.experts.experts:
        refuse("num_experts_per_tok", f"given {own.experts.topk}; at most the {own.experts.experts} experts")
    elif own.experts.layers < 1:
        refuse("num_hidden_layers", f"{layers} layers leave none with experts")
    return own
