"""How near a set-up lies to the servers whose steps were measured, and by how much a step errs there.

Terms of engines are fitted to served steps (`nearness.toml`, written by `benchmarks/hierarchy.py --write`).
What a group of cells errs by that such a fit did not see depends on what was new about it: the version of the
engine, the card, its generation, the model, the format of its weights, or the engine itself. Each measured
group differs from a set-up in some of these. A group ranks by its worst difference (KINDS, best first), and
the group that ranks best is the nearest.

The band of a step takes two more half-widths for what is new (`Widening`): a share of the step, and a share
of its layers of experts. Both are those of the mean engine, times how far the engine's own groups lie from
fits without them (`engines`): for experts at least 1 where mixtures of one network alone were measured in it.
What another version adds was measured in one engine and is every engine's, so that none that nobody measured
is known better than another version of one that somebody did.

    tokens = 8704

    [engines.vllm]
    steps = 0.7
    experts = 1.0

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

import re
from collections.abc import Mapping, Sequence
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
generation, the model, the format of its weights, the engine. Each may come with any of those before it, and
an engine that nobody measured is always a version that nobody measured."""
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
    """How far steps lie from a fit whose set-up differs in one kind, from groups that the fit did not see."""

    between_share: _Share
    """Half-width, in addition to the bands of kernels and of the engine, at which 80 % bands of the step
    hold on average over groups."""
    experts_share: _Share
    """The same for layers of experts, as a share of what they take: engines have kernels of their own there,
    about which dense models say nothing."""
    error: _Share
    """Mean relative error."""
    cells: Annotated[int, Meta(ge=0)]
    """Cells that it rests on."""
    groups: Annotated[int, Meta(ge=0)]
    """Groups of these."""
    held: _Share
    """Share of the cells in their bands, on average over groups."""
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


class Spread(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """By how much groups of an engine lie further from a fit without them than those of the mean engine."""

    steps: Annotated[float, Meta(gt=0.0, le=10.0)] = 1.0
    experts: Annotated[float, Meta(gt=0.0, le=10.0)] = 1.0
    """The same for layers of experts."""


class Nearest(NamedTuple):
    """The nearest of some places."""

    kind: Kind
    """The worst in which it differs from the set-up."""
    place: int
    """Its place among them."""
    is_other_version: bool
    """Whether a version is new too, in addition to something worse."""


class Widening(NamedTuple):
    """By how much the band of a step is wider for what is new about its set-up."""

    between_share: float
    """Half-width in addition to those of kernels and of the engine's terms; where a version is new too, at
    least that of versions."""
    experts_share: float
    """The same for layers of experts, as a share of what they take."""


class Nearness(NamedTuple):
    """How near a set-up lies to what was measured."""

    kind: Kind
    """What is new about it."""
    is_other_version: bool
    """Whether its version is new too, in addition to something worse."""
    near: Near
    """What is known of that."""
    nearest: Served
    """The group by which it was judged."""
    widening: Widening
    """By how much its band is wider for that."""


def between(
    whole: FloatArray | float, of_experts: FloatArray | float, experts: FloatArray | float
) -> FloatArray:
    """Half-width that the band of a step has for what is new about its set-up.

    whole: of the whole step (`Widening.between_share`). of_experts: of layers of experts, as a share of what
    they take (`Widening.experts_share`). experts: what they take. The result is in the unit of `whole` and
    `experts`: microseconds, or parts of the step.
    """
    return np.asarray(np.hypot(whole, of_experts * np.asarray(experts)))


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    source: Text
    tokens: Annotated[int, Meta(ge=1)]
    engines: dict[str, Spread]
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
    """What a place differs from another in, the worst first."""
    new: dict[Kind, bool] = {
        "engine": place.library != other.library,
        "format": place.formats != other.formats,
        "model": place.sizes != other.sizes,
        "generation": place.generation != other.generation,
        "card": place.gpu != other.gpu,
        "version": place.runtime != other.runtime,
    }
    return tuple(kind for kind in reversed(KINDS) if new.get(kind))


def nearest(place: Place, others: Sequence[Place]) -> Nearest:
    """The nearest of other places.

    The one whose worst difference is the least; of these one of the same version, then the one with the least
    besides, then the one of the nearest version; of equals the first.
    """
    new = [what_is_new(place, other) for other in others]

    def away(index: int) -> tuple[int, bool, list[int], tuple[int, ...]]:
        ranks = [KINDS.index(kind) for kind in new[index]] or [0]
        return ranks[0], "version" in new[index], ranks, _apart(place, others[index])

    found = min(range(len(others)), key=away)
    kind: Kind = next(iter(new[found]), "measured")
    return Nearest(
        kind=kind, place=found,
        is_other_version="version" in new[found] and kind != "version",
    )  # fmt: skip


def widening(place: Place, found: Nearest) -> Widening:
    """By how much the band of a step is wider where this is the nearest to its set-up."""
    kinds, spread = _file().kinds, spread_of(place.library, found.kind, _file().engines)
    near, least = kinds[found.kind], kinds["version"].between_share if found.is_other_version else 0.0
    return Widening(max(spread.steps * near.between_share, least), spread.experts * near.experts_share)


def spread_of(library: str, kind: Kind, engines: Mapping[str, Spread]) -> Spread:
    """That of an engine; of the mean one where nothing, a version alone, or the engine itself is new."""
    return Spread() if kind in ("measured", "version", "engine") else engines.get(library, Spread())


@cache
def nearness(place: Place) -> Nearness:
    """How near a set-up lies to what was measured: the one place where a band's kind is chosen.

    The band of a step grows by `widening` in quadrature (`Runtime.at`); `near.error` is the error to expect.
    The widening is the least that any group gives, so that no band opens by what is known: the same set-up
    in another version may tell less than another model in the same one.
    """
    groups = sorted(served_groups(), key=lambda group: -group.cells)
    places = [group.place for group in groups]
    found = nearest(place, places)
    return Nearness(
        kind=found.kind, is_other_version=found.is_other_version, near=_file().kinds[found.kind],
        nearest=groups[found.place],
        widening=min((widening(place, nearest(place, [other])) for other in places), key=half_width),
    )  # fmt: skip


def half_width(of: Widening) -> float:
    """That of a step half of which are layers of experts."""
    return float(between(of.between_share, of.experts_share, 0.5))


def _apart(place: Place, other: Place) -> tuple[int, ...]:
    """Majors, minors and patches between two versions; none between engines, whose numbers do not compare."""
    if place.library != other.library:
        return (0, 0, 0)
    numbers = zip(_version(place.runtime), _version(other.runtime), strict=True)
    return tuple(abs(number - another) for number, another in numbers)


def _version(runtime: str) -> tuple[int, ...]:
    """(0, 15, 0) of `vllm-0.15`; of a name without a number (0, 0, 0).

    >>> _version("sglang-0.5.9")
    (0, 5, 9)
    """
    return (*map(int, re.findall(r"\d+", runtime)), 0, 0, 0)[:3]
