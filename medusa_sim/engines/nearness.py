"""Which measured servers a set-up is judged by, and by how much that widens the band of its steps.

The band of a step combines the bands of its kernels and of what its engine adds. The latter was fitted to
measured servers and errs more where a set-up differs from them. How much more:

- A set-up is reduced to a *place*: engine and version, GPU and its generation, formats of the weights, shape
  and form of the model (`Place`). Measured steps of one model at one place are a *group* (`ServedGroup`).
- How a set-up differs from a group is their *difference*. Its *kind* is the largest part of it: nothing
  ("measured"), then version, gpu, generation, model, form, format, engine.
- For each kind, `LeftOut` holds the error of steps that were predicted without any nearer group, for the mean
  engine. The *spread* of an engine (`Spread`) is its error over that of the mean engine.
- Both together give a *widening* (`Widening`): a half-width as a share of the step and a share of the time of
  its layers of experts. Where the version differs besides something larger, the first share is at least that
  of a new version.
- Where nothing differs, plain steps of the set-up itself were fitted. They told the sum of its kernels, so
  only a share of the kernels' own half-width counts (`kernels_half_share`).
- Each group gives a widening. The set-up is judged by the group that widens its band least, so another group
  can only narrow it.

In numbers (shares of a fit of November 2026, not those stored now). Nobody measured Llama-3.1-8B in vLLM 0.24
on an H100. Two groups are near; the spread of vLLM is 0.67 for steps and 1.0 for experts:

    group                  kind         of the step            of layers of experts
    8B, 0.15, on an H100   version      0.085                  0
    8B, 0.24, on an A100   generation   0.67 x 0.050 = 0.034   1.0 x 0.157 = 0.157

The model is dense, so the second group widens the band least: by 3.4 % of the step. If layers of experts took
half of the step, it would widen it by sqrt(0.034^2 + (0.5 x 0.157)^2) = 8.6 %, and the first group by 8.5:
then the first would count. `step/pass_cost.py` adds the half-width in quadrature to the other two.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import NamedTuple

from medusa_sim.engines.place import Difference, Kind, Place, difference
from medusa_sim.engines.served_groups import (
    LeftOut,
    ServedGroup,
    Spread,
    known_kinds,
    known_spreads,
    served_groups,
)
from medusa_sim.engines.widening import Widening, unbeaten


class Nearness(NamedTuple):
    """The group that a set-up is judged by, and what follows."""

    group: ServedGroup
    difference: Difference
    """How the set-up differs from it."""
    known: LeftOut
    """Errors known for that kind of difference."""
    widening: Widening
    """By how much the band of a step widens."""


def nearness(place: Place, experts_part: float) -> Nearness:
    """The group that a place is judged by: the one that widens the band of its step least.

    experts_part: share of the step that layers of experts take; 0 for a dense model. Ties go to the nearest
    group (`Difference.rank`), then to the one with the most cells.
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
    """The widenings at a place, without those that are nowhere the smallest, whatever share experts take.

    `least_half_width` picks it when the step is priced.
    """
    return widenings_beside(place, (group.place for group in served_groups()))


def widenings_beside(place: Place, others: Iterable[Place]) -> tuple[Widening, ...]:
    """The same for groups at these other places."""
    return unbeaten(widening_by(place.library, difference(place, other)) for other in others)


def widening_by(library: str, new: Difference) -> Widening:
    """The widening by a group from which an engine's step differs by `new`.

    At least that of a measured set-up, and where the version differs too that of a new version.
    """
    kinds, spread = known_kinds(), spread_of(library, new.kind, known_spreads())
    known, least = kinds[new.kind], kinds["version" if new.is_other_version else "measured"]
    return Widening(
        max(spread.steps * known.step_share, least.step_share),
        max(spread.experts * known.experts_share, least.experts_share),
    )


def spread_of(library: str, kind: Kind, spreads: Mapping[str, Spread]) -> Spread:
    """The spread of an engine for a kind of difference.

    For none, and for another version, that of the mean engine: the error of another version was measured in
    one engine and is used for all. For another engine, the largest of all engines: nothing says that an
    unmeasured engine is better than the worst.
    """
    if kind in ("measured", "version"):
        return Spread()
    if kind == "engine":
        return Spread(
            steps=max((each.steps for each in spreads.values()), default=1.0),
            experts=max((each.experts for each in spreads.values()), default=1.0),
        )
    return spreads.get(library, Spread())


def kernels_half_share(place: Place) -> float:
    """Share of the half-width of a plain step's kernels that counts: below 1 where the place was measured."""
    is_measured = any(not difference(place, group.place).kinds for group in served_groups())
    return known_kinds()["measured"].kernels_half_share if is_measured else 1.0


def nearest(place: Place, others: Iterable[Place]) -> Place:
    """The nearest of other places (`Difference.rank`); the first of equals."""
    return min(others, key=lambda other: difference(place, other).rank)
