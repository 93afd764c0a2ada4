"""What the reader of a family is given of a `config.json`, and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import msgspec
from msgspec import Meta

from medusa_sim.errors import SpecError
from medusa_sim.reading import named
from medusa_sim.specs.feed_forwards import FeedForward, Mlp
from medusa_sim.specs.mixers import Grouped
from medusa_sim.specs.model import Architecture, LayerGroup, Mixers
from medusa_sim.specs.strict import convert

Count = Annotated[int, Meta(ge=0, le=1_000_000)]
WindowSize = Annotated[int, Meta(ge=1, le=100_000_000)]
ExpertCount = Annotated[int, Meta(ge=1, le=100_000)]


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


def layered(mixers: Iterable[Mixers | None], parts: Iterable[FeedForward | None]) -> tuple[LayerGroup, ...]:
    """Layers of these mixers and feed-forward parts, one by one."""
    return tuple(LayerGroup(1, mixer, part) for mixer, part in zip(mixers, parts, strict=True))


Reader = Callable[[Given], Own]
