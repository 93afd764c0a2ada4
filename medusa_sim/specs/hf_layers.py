"""Readers of families whose layers attend to all tokens or to a window: dense, and mixtures of experts.

`Given` is what a reader is given of a `config.json`, `Own` what it returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import msgspec
from msgspec import Meta

from medusa_sim.errors import SpecError
from medusa_sim.reading import named
from medusa_sim.specs.feed_forwards import FeedForward, Mlp, MoE
from medusa_sim.specs.mixers import Grouped, Latent, Mixer
from medusa_sim.specs.model import LayerGroup, Layers, Width
from medusa_sim.specs.strict import convert
from medusa_sim.specs.variants import Architecture

Count = Annotated[int, Meta(ge=0, le=1_000_000)]
WindowSize = Annotated[int, Meta(ge=1, le=100_000_000)]
ExpertCount = Annotated[int, Meta(ge=1, le=100_000)]
Flags = list[Annotated[int, Meta(ge=0, le=1)]]


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
        return convert(self.content, form, self.refuse.file)

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
    mtp: LayerGroup | None = None
    """The layer of an MTP module, where it is not like the last ones."""
    streams: int = 1
    notes: tuple[str, ...] = ()


def layered(mixers: Iterable[Mixer | None], parts: Iterable[FeedForward | None]) -> tuple[LayerGroup, ...]:
    """Layers of these mixers and feed-forward parts, one by one."""
    return tuple(LayerGroup(1, mixer, part) for mixer, part in zip(mixers, parts, strict=True))


Reader = Callable[[Given], Own]


class _Mtp(msgspec.Struct, frozen=True, kw_only=True):
    num_nextn_predict_layers: Count | None = None


class _Windows(msgspec.Struct, frozen=True, kw_only=True):
    sliding_window: WindowSize | None = None
    use_sliding_window: bool | None = None
    max_window_layers: Count | None = None
    sliding_window_pattern: Annotated[int, Meta(ge=1, le=1000)] | str | None = None
    layer_types: list[str] | None = None


class _Qwen(msgspec.Struct, frozen=True, kw_only=True):
    shared_expert_intermediate_size: Count = 0
    decoder_sparse_step: Layers = 1
    mlp_only_layers: list[Count] = []


class _DeepSeek(msgspec.Struct, frozen=True, kw_only=True):
    num_nextn_predict_layers: Count | None = None
    n_shared_experts: Count | None = None
    first_k_dense_replace: Count = 0
    moe_layer_freq: Layers = 1
    mlp_layer_types: list[str] | None = None


class _Latent(msgspec.Struct, frozen=True, kw_only=True):
    kv_lora_rank: Width
    qk_nope_head_dim: Width
    qk_rope_head_dim: Width
    v_head_dim: Width
    q_lora_rank: Width | None = None


class _Glm(_DeepSeek, frozen=True, kw_only=True):
    use_qk_norm: bool = False


class _Llama4(msgspec.Struct, frozen=True, kw_only=True):
    intermediate_size: Width
    intermediate_size_mlp: Width
    interleave_moe_layer_step: Layers = 1
    moe_layers: list[Count] | None = None
    attention_chunk_size: WindowSize | None = None
    no_rope_layers: list[Annotated[int, Meta(ge=0, le=1)]] | None = None


class _MiniMax(msgspec.Struct, frozen=True, kw_only=True):
    use_qk_norm: bool = True
    use_mtp: bool = False
    num_mtp_modules: Count = 0


def dense(given: Given) -> Own:
    """Dense layers, all alike but for their windows."""
    layers = layered(windowed(given), [given.mlp] * given.layers)
    notes = (_PARALLEL,) if given.layout.norms_per_layer == 1 else ()
    return Own(layers=layers, mtp_layers=given.read(_Mtp).num_nextn_predict_layers or 0, notes=notes)


_PARALLEL = (
    "attention and MLP of a layer read the same input: priced one after the other, each with its all-reduce"
)


def mixtral(given: Given) -> Own:
    """Mixtral: experts in every layer."""
    return Own(layers=layered(windowed(given), [experts_of(given, LOCAL)] * given.layers))


ROUTED = ("n_routed_experts", "num_experts_per_tok", "moe_intermediate_size")
"""Keys of the number of experts, of those that a token takes, and of their width."""
LOCAL = ("num_local_experts", "num_experts_per_tok", "intermediate_size")


def experts_of(
    given: Given, keys: tuple[str, str, str] = ROUTED, *, shared_experts: int = 0, **more: Any
) -> MoE:
    """Experts whose sizes stand under these keys; shared_experts: as wide as these; more: of `MoE`.

    Raises SpecError naming the first key that is missing or wrong.
    """
    sizes = msgspec.defstruct("Experts", list(zip(keys, (ExpertCount, ExpertCount, Width), strict=True)))
    experts, topk, inter = (getattr(given.read(sizes), key) for key in keys)
    if shared_experts:
        more["shared"] = shared_experts * inter
    return MoE(experts=experts, topk=topk, inter=inter, **more)


def qwen_experts(given: Given) -> list[FeedForward]:
    """The parts of a Qwen: experts in every `decoder_sparse_step`-th layer that `mlp_only_layers` lets be."""
    config = given.read(_Qwen)
    shared = config.shared_expert_intermediate_size
    keys = ("num_experts", "num_experts_per_tok", "moe_intermediate_size")
    experts = experts_of(given, keys, shared=shared, shared_gate=shared > 0)
    return [
        experts
        if layer not in config.mlp_only_layers and (layer + 1) % config.decoder_sparse_step == 0
        else given.mlp
        for layer in range(given.layers)
    ]


def qwen(given: Given) -> Own:
    """Qwen2-MoE and Qwen3-MoE."""
    return Own(layers=layered(windowed(given), qwen_experts(given)))


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


def deepseek(given: Given) -> Own:
    """DeepSeek-V2, V3, R1 and Kimi-K2: latent attention (none where `use_mla` is off), dense layers first."""
    parts, config = routed(given)
    is_latent = given.content.get("use_mla") is not False
    mixer = latent(given) if is_latent else given.attention()
    return Own(
        layers=layered([mixer] * given.layers, parts),
        mtp_layers=config.num_nextn_predict_layers or 0,
    )


def glm(given: Given) -> Own:
    """GLM-4.5 to 4.7, and others of grouped attention with dense layers first."""
    parts, config = routed(given)
    qk_norm = given.read(_Glm).use_qk_norm
    mixers = [msgspec.structs.replace(mixer, qk_norm=qk_norm) for mixer in windowed(given)]
    return Own(layers=layered(mixers, parts), mtp_layers=config.num_nextn_predict_layers or 0)


def afmoe(given: Given) -> Own:
    """Arcee's Trinity: as GLM, with a gate for every element of the output."""
    own = glm(given)
    gated = [msgspec.structs.replace(layer.mixer, gate="element") for layer in own.layers if layer.mixer]
    return replace(own, layers=layered(gated, [layer.feed_forward for layer in own.layers]))


def hunyuan(given: Given) -> Own:
    """Hunyuan's mixtures: sizes of experts stand once a layer, and are alike in all."""
    content = dict(given.content)
    for key in (*ROUTED, "n_shared_experts"):
        if isinstance(values := content.get(key), list):
            if any(value != values[0] for value in values):
                given.refuse(key, "layers differ; allowed: one value for all")
            content[key] = next(iter(values), None)
    return glm(replace(given, content={**content, "use_qk_norm": content.get("use_qk_norm", False)}))


def routed(given: Given) -> tuple[list[FeedForward], _DeepSeek]:
    """The parts of a DeepSeek: dense first, experts in every `moe_layer_freq`-th layer behind."""
    config = given.read(_DeepSeek)
    experts = experts_of(given, shared_experts=config.n_shared_experts or 0)
    if (named := config.mlp_layer_types) is None:
        return dense_first(given, experts, config.first_k_dense_replace, config.moe_layer_freq), config
    is_dense = [kind == "dense" for kind in one_each(given, "mlp_layer_types", named)]
    return [given.mlp if each else experts for each in is_dense], config


def dense_first(given: Given, experts: MoE, first: int, every: int) -> list[FeedForward]:
    """Dense layers before the layer `first`, experts in every `every`-th layer from it on."""
    sparse = [layer >= first and layer % every == 0 for layer in range(given.layers)]
    return [experts if each else given.mlp for each in sparse]


def gpt_oss(given: Given) -> Own:
    """gpt-oss: every second layer sees a window."""
    experts = experts_of(given, LOCAL, biases=True)
    return Own(layers=layered(windowed(given), [experts] * given.layers), notes=(SINKS,))


SINKS = "attention sinks: one number a head in the softmax, which costs nothing"


def llama4(given: Given) -> Own:
    """Llama 4: three layers of four see their chunk alone."""
    config = given.read(_Llama4)
    step, layers = config.interleave_moe_layer_step, range(given.layers)
    sparse = layers[step - 1 :: step] if config.moe_layers is None else config.moe_layers
    rotated = config.no_rope_layers or [int((layer + 1) % 4 != 0) for layer in layers]
    if len(rotated) != given.layers:
        given.refuse("no_rope_layers", f"{len(rotated)} entries; num_hidden_layers is {given.layers}")
    chunk = config.attention_chunk_size
    near = given.attention() if chunk is None else given.attention(chunk, chunked=True)
    experts = experts_of(given, LOCAL, shared=config.intermediate_size)
    dense = given.layout.mlp(config.intermediate_size_mlp)
    return Own(
        layers=layered(
            [near if each else given.attention() for each in rotated],
            [experts if layer in sparse else dense for layer in layers],
        ),
        mlp_width=config.intermediate_size_mlp,
    )


def minimax(given: Given) -> Own:
    """MiniMax-M2: experts in every layer."""
    config = given.read(_MiniMax)
    mixer = msgspec.structs.replace(given.attention(), qk_norm=config.use_qk_norm)
    return Own(
        layers=layered([mixer] * given.layers, [experts_of(given, LOCAL)] * given.layers),
        mtp_layers=config.num_mtp_modules if config.use_mtp else 0,
    )


def windowed(given: Given) -> list[Grouped]:
    """Attention of every layer, with its window.

    Windowed are the layers that `layer_types` names, else all but every n-th, else all. Qwen configs name a
    window and switch it off; theirs begins with the layer `max_window_layers`.
    """
    config, layers = given.read(_Windows), range(given.layers)
    near = [False] * given.layers
    for kind in config.layer_types or ():
        kind_of(given, kind, dict.fromkeys(("full_attention", "sliding_attention")))
    if config.sliding_window is None or config.use_sliding_window is False:
        pass
    elif config.layer_types is not None:
        if len(config.layer_types) != given.layers:
            given.refuse(
                "layer_types", f"{len(config.layer_types)} entries; num_hidden_layers is {given.layers}"
            )
        near = [kind == "sliding_attention" for kind in config.layer_types]
    elif isinstance(pattern := config.sliding_window_pattern, str):  # of letters: local, global
        near = [pattern[layer % len(pattern)] == "L" for layer in layers]
    elif pattern is not None:
        near = [(layer + 1) % pattern != 0 for layer in layers]
    else:
        first = config.max_window_layers if config.use_sliding_window else None
        near = [first is None or layer >= first for layer in layers]
    return [given.attention(config.sliding_window if each else None) for each in near]


def one_each(given: Given, key: str, entries: Sequence[Any] | None, least: int | None = None) -> list[Any]:
    """A list with an entry a layer. Raises SpecError naming the key where it has another length."""
    if entries is None or not (least or given.layers) <= len(entries) <= max(given.layers, least or 0) + 1:
        held = "missing" if entries is None else f"{len(entries)} entries"
        given.refuse(key, f"{held}; num_hidden_layers is {given.layers}")
    return list(entries[: given.layers])


def kind_of(given: Given, kind: str, known: dict[str, Any]) -> Any:
    """What an entry of layer_types names. Raises SpecError for what is not known."""
    if kind not in known:
        given.refuse("layer_types", f"given {kind[:60]!r}; allowed: {', '.join(known)}")
    return known[kind]
