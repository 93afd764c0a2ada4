"""The properties of a set-up that group measured steps, and how two set-ups differ."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple, TypeAlias, get_args

from medusa_sim.models.model import Model

Kind: TypeAlias = Literal["measured", "version", "gpu", "generation", "model", "form", "format", "engine"]
"""The largest difference from a measured set-up: none, the engine's version, another GPU of the same
generation, the generation, the model, its form, the format of its weights, the engine. Smaller ones may come
with it; a new engine always brings a new version."""
KINDS: tuple[Kind, ...] = get_args(Kind)
"""From the nearest to the farthest."""


class Place(NamedTuple):
    """The properties of a set-up that group measured steps."""

    library: str
    """Engine without its version."""
    runtime: str
    """Engine with its version."""
    gpu: str
    generation: str
    """Generation of the GPU (`Gpu.architecture`)."""
    formats: tuple[str, ...]
    """Formats of the weights (`case.weight_formats`)."""
    sizes: str
    """Shape of the model (`sizes_of`): models of one shape count as one."""
    form: str
    """Form of the model (`case.form_of`)."""


class Difference(NamedTuple):
    """How a place differs from another; the nearest of several places has the least `rank`."""

    kinds: tuple[Kind, ...]
    """Kinds of difference, the largest first."""
    versions_apart: tuple[int, ...]
    """Majors, minors and patches between the versions; zeros for different engines."""

    @property
    def kind(self) -> Kind:
        """The largest difference."""
        return self.kinds[0] if self.kinds else "measured"

    @property
    def is_other_version(self) -> bool:
        """Whether the version differs too, besides something larger."""
        return "version" in self.kinds[1:]

    @property
    def rank(self) -> tuple[int, bool, list[int], tuple[int, ...]]:
        """Sorts by the largest difference, whether the version differs, smaller ones, version numbers."""
        ranks = [KINDS.index(kind) for kind in self.kinds] or [0]
        return ranks[0], "version" in self.kinds, ranks, self.versions_apart


def difference(place: Place, other: Place) -> Difference:
    """How a place differs from another."""
    is_new: dict[Kind, bool] = {
        "engine": place.library != other.library,
        "format": place.formats != other.formats,
        "form": place.form != other.form,
        "model": place.sizes != other.sizes,
        "generation": place.generation != other.generation,
        "gpu": place.gpu != other.gpu,
        "version": place.runtime != other.runtime,
    }
    kinds = tuple(kind for kind in reversed(KINDS) if is_new.get(kind))
    if is_new["engine"]:
        return Difference(kinds, (0, 0, 0))
    numbers = zip(version_numbers(place.runtime), version_numbers(other.runtime), strict=True)
    return Difference(kinds, tuple(abs(number - another) for number, another in numbers))


def sizes_of(model: Model) -> str:
    """The shape of a model, whole or one GPU's part: checkpoints of one network count as one."""
    return f"{model.layers} layers of {model.hidden}"


def version_numbers(name: str) -> tuple[int, int, int]:
    """(major, minor, patch) of an engine's name with its version, or of a version; zeros where it has none.

    >>> version_numbers("sglang-0.5.9")
    (0, 5, 9)
    """
    major, minor, patch, *_ = (*map(int, re.findall(r"\d+", name)), 0, 0, 0)
    return major, minor, patch
