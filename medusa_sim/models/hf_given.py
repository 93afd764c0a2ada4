"""Input of the readers of families (`Given`, of a `config.json`), and their result (`Found`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import msgspec
from msgspec import NODEFAULT, Meta

from medusa_sim.errors import SpecError
from medusa_sim.models.feed_forwards import Mlp, MoE
from medusa_sim.models.layer_group import LayerGroup, side_by_side
from medusa_sim.models.mixers import Grouped, Mixer
from medusa_sim.models.variants import Architecture
from medusa_sim.reading.files import named
from medusa_sim.reading.strict import convert

Count = Annotated[int, Meta(ge=0, le=1_000_000)]
Flags = list[Annotated[int, Meta(ge=0, le=1)]]
PARTS = {
    "experts": {
        "experts": "n_routed_experts",
        "topk": "num_experts_per_tok",
        "inter": "moe_intermediate_size",
    },
    "latent": {
        "kv_rank": "kv_lora_rank",
        "nope_dim": "qk_nope_head_dim",
        "rope_dim": "qk_rope_head_dim",
        "v_dim": "v_head_dim",
        "q_rank": "q_lora_rank",
    },
}
"""Keys of DeepSeek's sizes, which other families took over."""


class Refusal:
    """Raises SpecError for a key of a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __call__(self, key: str, problem: str) -> NoReturn:
        """One line: file, key, problem."""
        raise SpecError(f"{named(self.file)}: {key}: {problem}")


StructT = TypeVar("StructT", bound=msgspec.Struct)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Result of a family's reader."""

    layers: tuple[LayerGroup, ...]
    """One by one, from the first."""
    mlp_width: int | None = None
    """Width of a dense MLP that no layer has, where the config names it under another key."""
    mtp_layers: int = 0
    mtp: LayerGroup | None = None
    """The layer of an MTP module, where it is not like the last ones."""
    streams: int = 1
    """Residual streams (`Model.streams`)."""
    notes: tuple[str, ...] = ()
    """Notes for answers about such a model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A config for the reader of its family; its methods raise SpecError naming a key."""

    content: dict[str, Any]
    keys: Mapping[str, Mapping[str, str]]
    """By part of its family, as in PARTS: the key under which each field of a struct stands."""
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    given_head_dim: int | None
    """None where the config leaves it to `hidden / heads`."""
    given_width: int | None
    """Of a dense MLP; None where the config names none."""
    layout: Architecture
    """The family's, with the biases that the config switches."""
    refuse: Refusal
    place: str = ""
    """Where `content` stands in the file, as keys with dots between; empty: it is the whole file."""

    def get(self, key: str, form: Any, default: Any = NODEFAULT) -> Any:
        """A key that a family adds, as a `form`; default: where it is missing."""
        if default is not NODEFAULT and key not in self.content:
            return default
        return getattr(self._read(((key, form, NODEFAULT),)), key)

    def maybe(self, key: str, form: Any) -> Any:
        """The same, or None where it is missing or null."""
        return self.get(key, form | None, None)

    def inside(self, key: str, table: dict[str, Any] | None = None) -> Given:
        """The same of the table at `key`."""
        content = self.get(key, dict[str, Any]) if table is None else table
        return replace(self, content=content, place=f"{self.place}.{key}".lstrip("."))

    def part(self, form: type[StructT], part: str, /, **fixed: Any) -> StructT:
        """A struct `form` whose fields stand under the keys of a part of PARTS; fixed: its other fields.

        Each value is checked by the range of its field.
        """
        keys = self.keys[part]
        types = {field.name: field for field in msgspec.structs.fields(form)}
        asked = ((key, types[name].type, types[name].default) for name, key in keys.items())
        read = self._read(tuple(asked))
        return form(**{name: getattr(read, key) for name, key in keys.items()}, **fixed)

    def _read(self, keys: tuple[tuple[str, Any, Any], ...]) -> Any:
        given = {key: self.content[key] for key, _, _ in keys if key in self.content}
        return convert(given, _keys(keys), self.refuse.file, key=self.place)

    @property
    def head_dim(self) -> int:
        """Width of a head, where it is given or a whole share."""
        if self.given_head_dim is None and self.hidden % self.heads:
            self.refuse(
                "num_attention_heads",
                f"given {self.heads}, which does not divide hidden_size = {self.hidden}; add head_dim",
            )
        return self.given_head_dim or self.hidden // self.heads

    @property
    def width(self) -> int:
        """Width of a dense MLP."""
        if self.given_width is None:
            self.refuse("intermediate_size", "missing; a whole number from 1 to 1,000,000 is needed")
        return self.given_width

    @property
    def mlp(self) -> Mlp:
        """A dense MLP."""
        return self.layout.mlp(self.width)

    @property
    def nextn(self) -> int:
        """Modules for multi-token prediction."""
        return self.maybe("num_nextn_predict_layers", Count) or 0

    def attention(self, size: int | None = None, **more: Any) -> Grouped:
        """Attention of its heads; `size` and more as in `Grouped`."""
        plain = self.layout.attention(self.heads, self.kv_heads, self.head_dim, size)
        return msgspec.structs.replace(plain, **more)

    def experts(self, *, shared_experts: int = 0, **fixed: Any) -> MoE:
        """Its experts; shared_experts: as wide as these; fixed: of `MoE`."""
        experts = self.part(MoE, "experts", **fixed)
        shared = shared_experts * experts.inter
        return msgspec.structs.replace(experts, shared=shared) if shared_experts else experts

    def one_each(self, key: str, entries: Sequence[Any] | None, more: int = 0) -> list[Any]:
        """A list with an entry a layer. more: layers of modules after them, which it may name too."""
        if entries is None or not self.layers <= len(entries) <= self.layers + more + 1:
            held = "missing" if entries is None else f"{len(entries)} entries"
            self.refuse(key, f"{held}; num_hidden_layers is {self.layers}")
        return list(entries[: self.layers])

    def flagged(self, key: str, on: Any, off: Any) -> list[Any]:
        """`on` for each layer whose flag is 1 under that key."""
        return [on if flag else off for flag in self.one_each(key, self.get(key, Flags))]

    def by_type(self, known: dict[str, Any], usual: Sequence[str] | None = None, more: int = 0) -> list[Any]:
        """Entry of `layer_types` for each layer; usual: where it is missing; more: as of `one_each`."""
        kinds = self.maybe("layer_types", list[str]) or usual
        return [self.known("layer_types", kind, known) for kind in self.one_each("layer_types", kinds, more)]

    def known(self, key: str, name: str, known: dict[str, Any]) -> Any:
        """Value that a name stands for."""
        if name not in known:
            self.refuse(key, f"given {name[:60]!r}; allowed: {', '.join(known)}")
        return known[name]

    def found(self, mixers: Mixer | Sequence[Any], parts: Any, **more: Any) -> Found:
        """Layers of these mixers and feed-forward parts: what a reader returns. more: fields of `Found`.

        mixers, parts: one for every layer, or one that all layers have. The mixer of a layer is one, a tuple
        of those that stand side by side, or None.
        """
        each = (
            [given] * self.layers if isinstance(given, msgspec.Struct) else given for given in (mixers, parts)
        )
        layers = (LayerGroup(1, side_by_side(mixer), part) for mixer, part in zip(*each, strict=True))
        return Found(layers=tuple(layers), **more)


@cache
def _keys(keys: tuple[tuple[str, Any, Any], ...]) -> type[msgspec.Struct]:
    return msgspec.defstruct("Keys", keys, kw_only=True, frozen=True)
