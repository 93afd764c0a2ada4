"""Which measured servers a set-up is judged by, and by how much wider that makes the band of its steps.

The band of a step is that of its kernels and of what its engine adds to them. The latter was fitted to
servers that were measured, and errs by more where a set-up is unlike them. How much more is found so:

- A set-up is reduced to a *place*: engine and version, card and its generation, formats of the weights, shape
  of the model (`Place`). Measured steps of one model at one place are a *group* (`ServedGroup`).
- What is new about the set-up beside a group is their *difference*. The worst of it is its *kind*, which is
  how far apart they are: nothing ("measured"), then version, card, generation, model, format, engine.
- Of each kind it is known by how much steps erred that were predicted without any group nearer than that
  (`LeftOut`), in the mean engine. Some engines err by more than others: the *spread* of an engine says how
  many times as much (`Spread`).
- Both together are a *widening*: a half-width of so many per cent of the step, and of so many of what its
  layers of experts take (`Widening`). Where a version is new beside something worse, the first is at least
  that of versions.
- Each group tells a widening. The set-up is judged by the group that widens its band least: one more group
  can only narrow it.

In numbers (shares of a fit of November 2026, not those stored now). Nobody measured Llama-3.1-8B in vLLM 0.24
on an H100. Two groups are near; the spread of vLLM is 0.67 for steps and 1.0 for experts:

    group                  kind         of the step            of layers of experts
    8B, 0.15, on an H100   version      0.085                  0
    8B, 0.24, on an A100   generation   0.67 x 0.050 = 0.034   1.0 x 0.157 = 0.157

The model is dense, so the second group widens the band least: by 3.4 % of the step. If layers of experts took
half of the step, it would widen it by sqrt(0.034^2 + (0.5 x 0.157)^2) = 8.6 %, and the first group by 8.5:
then the first would count. `step/pass_time.py` adds the half-width in quadrature to the other two.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import NamedTuple

from medusa_sim.specs.place import Difference, Kind, Place, difference
from medusa_sim.specs.served_groups import (
    LeftOut,
    ServedGroup,
    Spread,
    known_kinds,
    known_spreads,
    served_groups,
)
from medusa_sim.specs.widening import Widening, unbeaten


class Nearness(NamedTuple):
    """The group that a set-up is judged by, and what follows from it."""

    group: ServedGroup
    difference: Difference
    """What is new about the set-up beside it."""
    known: LeftOut
    """What is known of the worst of that."""
    widening: Widening
    """By how much the band of a step is wider."""


def nearness(place: Place, experts_part: float) -> Nearness:
    """By which group a place is judged: the one that widens the band of its step least.

    experts_part: of the step, what layers of experts take; 0 for a dense model. Of groups that widen it alike
    the nearest counts (`Difference.rank`), then the one with the most cells.
    """
    found = []
    for group in served_groups():
        new = difference(place, group.place)
        found.append(Nearness(group, new, known_kinds()[new.kind], widening_by(place.library, new)))

    def order(each: Nearness) -> tuple[object, ...]:
        half_width = float(each.widening.half_width(1.0, experts_part))
        return half_width, each.difference.rank, -each.group.cells

    return min(found, key=order)


@cache
def widenings(place: Place) -> tuple[Widening, ...]:
    """The widenings by measured groups of which one is the least at a place, whatever its experts take.

    `least_half_width` takes that one when the step is priced.
    """
    return widenings_beside(place, (group.place for group in served_groups()))


def widenings_beside(place: Place, others: Iterable[Place]) -> tuple[Widening, ...]:
    """The same by groups at these other places."""
    return unbeaten(widening_by(place.library, difference(place, other)) for other in others)


def widening_by(library: str, new: Difference) -> Widening:
    """By how much a group widens the band of an engine's step, beside which so much of it is new."""
    kinds, spread = known_kinds(), spread_of(library, new.kind, known_spreads())
    known, least = kinds[new.kind], kinds["version"].step_share if new.is_other_version else 0.0
    return Widening(max(spread.steps * known.step_share, least), spread.experts * known.experts_share)


def spread_of(library: str, kind: Kind, spreads: Mapping[str, Spread]) -> Spread:
    """The spread of an engine where that is the worst that is new.

    Where nothing or a version is, that of the mean engine: what another version adds was measured in one
    engine and is every engine's. Where the engine itself is, the largest of all: it may be as bad as the
    worst, and is not known better for never having been measured.
    """
    if kind in ("measured", "version"):
        return Spread()
    if kind == "engine":
        return Spread(
            steps=max((each.steps for each in spreads.values()), default=1.0),
            experts=max((each.experts for each in spreads.values()), default=1.0),
        )
    return spreads.get(library, Spread())


def nearest(place: Place, others: Iterable[Place]) -> Place:
    """The nearest of other places, by what is new alone (`Difference.rank`); of equals the first."""
    return min(others, key=lambda other: difference(place, other).rank)
