"""How near a set-up lies to the servers whose steps were measured, and by how much a step errs there.

Terms of engines are fitted to served steps (`nearness.toml`, written by `benchmarks/hierarchy.py --write`).
What a group of cells errs by that such a fit did not see depends on what was new about it: the version of the
engine, the card, its generation, the model, the format of its weights, or the engine itself. A set-up is as
near as the nearest group: the one of whose differences the worst is the least (KINDS, best first).

    tokens = 8704

    [[served]]
    library = "vllm"
    runtime = "vllm-0.15"
    gpu = "h200-sxm"
    generation = "hopper"
    formats = ["fp8"]
    sizes = "80 layers of 8192"
    model = "llama-3.1-70b"
    cells = 60

    [kinds.model]
    between_share = 0.12
    experts_share = 0.3
    error = 0.08
    cells = 900
    groups = 27
    held = 0.79
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, TypeAlias, get_args

import msgspec
import numpy as np
from msgspec import Meta

from medusa_sim.arrays import FloatArray
from medusa_sim.reading import read_toml
from medusa_sim.specs.model import Model
from medusa_sim.specs.strict import Text, convert

Kind: TypeAlias = Literal["measured", "version", "card", "generation", "model", "format", "engine"]
"""What is new about a set-up: nothing, the engine's version, the card beside one of its generation, the
generation, the model, the format of its weights, the engine. A worse one may come with any before it."""
KINDS: tuple[Kind, ...] = get_args(Kind)
NEARNESS_FILE = Path(__file__).with_name("nearness.toml")
_Share = Annotated[float, Meta(ge=0.0, le=10.0)]


class Place(NamedTuple):
    """A set-up by what its steps were measured by."""

    library: str
    """The engine without its version."""
    runtime: str
    """The engine with it."""
    gpu: str
    generation: str
    """Of the card (`Gpu.architecture`)."""
    formats: tuple[str, ...]
    """Of the weights (`engine_facts.weight_formats`)."""
    sizes: str
    """Of the model (`sizes_of`), by which models of one shape are one."""


class Near(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is known of one kind of nearness, from groups of cells that a fit did not see."""

    between_share: _Share
    """Half-width, beside the bands of kernels and of the engine, with which 80 % bands of the step hold, in
    the mean over groups."""
    experts_share: _Share
    """The same of layers of experts besides, as a share of what they take: engines have kernels of their own
    there, of which dense models tell nothing."""
    error: _Share
    """Mean relative error."""
    cells: Annotated[int, Meta(ge=0)]
    """Cells by which it was told."""
    groups: Annotated[int, Meta(ge=0)]
    """Groups of these."""
    held: _Share
    """Share of the cells in their bands, in the mean over groups."""
    note: str = ""


class Served(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A group of measured cells: where, and how many."""

    library: Text
    runtime: Text
    gpu: Text
    generation: Text
    formats: tuple[Text, ...]
    sizes: Text
    model: Text
    cells: Annotated[int, Meta(ge=1)]

    @property
    def place(self) -> Place:
        """Without its name and its cells."""
        return Place(self.library, self.runtime, self.gpu, self.generation, self.formats, self.sizes)


class Nearness(NamedTuple):
    """How near a set-up lies to what was measured."""

    kind: Kind
    """What is new about it."""
    near: Near
    """What is known of that. Layers of experts have `near.experts_share` besides."""
    nearest: Served
    """The group by which it was judged."""
    between_share: float
    """Half-width that the band of a step has beside those of kernels and engines. Versions were held out
    apart from the rest: where one is new beside something worse, both count, in quadrature."""


def between(
    whole: FloatArray | float, of_experts: FloatArray | float, experts: FloatArray | float
) -> FloatArray:
    """Half-width that the band of a step has for what is new about its set-up.

    whole: of the whole step (`Nearness.between_share`). of_experts: of layers of experts, as a share of what
    they take (`Near.experts_share`). experts: what they take. The result is in the unit of `whole` and
    `experts`: microseconds, or parts of the step.
    """
    return np.asarray(np.hypot(whole, of_experts * np.asarray(experts)))


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    source: Text
    tokens: Annotated[int, Meta(ge=1)]
    served: tuple[Served, ...]
    kinds: dict[Kind, Near]


@cache
def _file() -> _File:
    return convert(read_toml(NEARNESS_FILE), _File, NEARNESS_FILE)


def served_groups() -> tuple[Served, ...]:
    """Every group of measured cells."""
    return _file().served


def known_kinds() -> dict[Kind, Near]:
    """What is known of each kind, best first."""
    return {kind: _file().kinds[kind] for kind in KINDS}


def longest_tokens() -> int:
    """Committed tokens of the longest requests whose steps were measured, half way through their outputs."""
    return _file().tokens


def sizes_of(model: Model) -> str:
    """The shape of a model (whole or a GPU's part of it), by which checkpoints of one network are one."""
    return f"{model.layers} layers of {model.hidden}"


def what_is_new(place: Place, other: Place) -> tuple[Kind, ...]:
    """What is new about a place beside another, the worst first."""
    new: dict[Kind, bool] = {
        "engine": place.library != other.library,
        "format": place.formats != other.formats,
        "model": place.sizes != other.sizes,
        "generation": place.generation != other.generation,
        "card": place.gpu != other.gpu,
        "version": place.runtime != other.runtime,
    }
    return tuple(kind for kind in reversed(KINDS) if new.get(kind))


def kind_of(place: Place, other: Place) -> Kind:
    """The worst of what is new about a place beside another."""
    return next(iter(what_is_new(place, other)), "measured")


def nearest_kind(place: Place, others: Iterable[Place]) -> tuple[Kind, int]:
    """(what is new beside the nearest of others, which of them that is: the first of equals)."""
    ranks = [KINDS.index(kind_of(place, other)) for other in others]
    nearest = min(range(len(ranks)), key=ranks.__getitem__)
    return KINDS[ranks[nearest]], nearest


@cache
def nearness(place: Place) -> Nearness:
    """How near a set-up lies to what was measured: the one place where a band's kind is chosen.

    The band of a step holds both shares in quadrature (`Runtime.at`), `near.error` is what to expect.
    """
    groups, kinds = served_groups(), _file().kinds
    kind, nearest = nearest_kind(place, (group.place for group in groups))
    share = kinds[kind].between_share
    is_other = place.runtime != groups[nearest].runtime
    if is_other and kind not in ("version", "engine"):
        share = math.hypot(share, kinds["version"].between_share)
    equals = (
        group for group in groups
        if kind_of(place, group.place) == kind and (place.runtime != group.runtime) == is_other
    )  # fmt: skip
    return Nearness(kind, kinds[kind], min(equals, key=lambda group: _apart(place.runtime, group)), share)


def _apart(runtime: str, group: Served) -> tuple[int, int, int]:
    """Of groups that are as near, the one of the nearest version is named, of these the largest."""
    (own, own_minor), (other, minor) = _version(runtime), _version(group.runtime)
    return abs(own - other), abs(own_minor - minor), -group.cells


def _version(runtime: str) -> tuple[int, int]:
    """(0, 15) of `vllm-0.15`; of a name without a number (0, 0)."""
    major, minor, *_ = [*map(int, re.findall(r"\d+", runtime)), 0, 0]
    return major, minor
