"""A set-up reduced to what its steps were measured by, and what is new about one beside another."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple, TypeAlias, get_args

from medusa_sim.specs.model import Model

Kind: TypeAlias = Literal["measured", "version", "card", "generation", "model", "format", "engine"]
"""What is new about a set-up: nothing, the engine's version, the card beside one of its generation, the
generation, the model, the format of its weights, the engine. Each may come with any of those before it, and
an engine that nobody measured is always a version that nobody measured."""
KINDS: tuple[Kind, ...] = get_args(Kind)
"""From the nearest to the farthest."""


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


class Difference(NamedTuple):
    """In what a place differs from another; of several the nearest has the least `rank`."""

    kinds: tuple[Kind, ...]
    """What is new, the worst first."""
    versions_apart: tuple[int, ...]
    """Majors, minors, patches between the versions; 0 between two engines, whose numbers do not compare."""

    @property
    def kind(self) -> Kind:
        """The worst that is new."""
        return self.kinds[0] if self.kinds else "measured"

    @property
    def is_other_version(self) -> bool:
        """Whether a version is new too, in addition to something worse."""
        return "version" in self.kinds[1:]

    @property
    def rank(self) -> tuple[int, bool, list[int], tuple[int, ...]]:
        """By the worst that is new, then by whether the version is, then by what else is."""
        ranks = [KINDS.index(kind) for kind in self.kinds] or [0]
        return ranks[0], "version" in self.kinds, ranks, self.versions_apart


def difference(place: Place, other: Place) -> Difference:
    """In what a place differs from another."""
    is_new: dict[Kind, bool] = {
        "engine": place.library != other.library,
        "format": place.formats != other.formats,
        "model": place.sizes != other.sizes,
        "generation": place.generation != other.generation,
        "card": place.gpu != other.gpu,
        "version": place.runtime != other.runtime,
    }
    kinds = tuple(kind for kind in reversed(KINDS) if is_new.get(kind))
    if is_new["engine"]:
        return Difference(kinds, (0, 0, 0))
    numbers = zip(_version(place.runtime), _version(other.runtime), strict=True)
    return Difference(kinds, tuple(abs(number - another) for number, another in numbers))


def sizes_of(model: Model) -> str:
    """The shape of a model (whole or a GPU's part of it), by which checkpoints of one network are one."""
    return f"{model.layers} layers of {model.hidden}"


def _version(runtime: str) -> tuple[int, ...]:
    """(0, 15, 0) of `vllm-0.15`; of a name without a number (0, 0, 0).

    >>> _version("sglang-0.5.9")
    (0, 5, 9)
    """
    return (*map(int, re.findall(r"\d+", runtime)), 0, 0, 0)[:3]
