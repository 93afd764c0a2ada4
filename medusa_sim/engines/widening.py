"""By how much the band of a step widens because its set-up differs from measured ones.

Steps of dense models say nothing about layers of experts, so a widening has two parts. Where a step takes
`step`, of which layers of experts take `experts`, the half-width is

    sqrt((step_share step)^2 + (experts_share experts)^2)

Each measured group gives one widening, and the smallest counts. Which one that is depends on the experts'
part of the step, so every candidate is kept (`unbeaten`) until the step is priced.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from medusa_sim.arrays import FloatArray


class Widening(NamedTuple):
    """A half-width in two parts, each a share of a time."""

    step_share: float
    """Share of the whole step, in addition to the bands of kernels and of the engine's terms."""
    experts_share: float
    """Share of the time of its layers of experts."""

    def half_width(self, step: FloatArray | float, experts: FloatArray | float) -> FloatArray:
        """The half-width, in the unit of both arguments: microseconds, or shares of a step."""
        return np.asarray(np.hypot(self.step_share * step, np.multiply(self.experts_share, experts)))


def least_half_width(
    widenings: Iterable[Widening], step: FloatArray | float, experts: FloatArray | float
) -> FloatArray:
    """The smallest half-width that any widening gives each step; 0 without widenings.

    >>> offered = Widening(0.085, 0.0), Widening(0.034, 0.157)
    >>> [round(float(least_half_width(offered, 1.0, experts)), 3) for experts in (0.0, 0.3, 0.6)]
    [0.034, 0.058, 0.085]
    """
    halves = [widening.half_width(step, experts) for widening in widenings]
    return np.minimum.reduce(halves) if halves else np.zeros_like(step, dtype=np.float64)


def unbeaten(widenings: Iterable[Widening]) -> tuple[Widening, ...]:
    """The widenings that are the smallest for some step: no other is smaller in both parts."""
    kept: list[Widening] = []
    for each in sorted(set(widenings)):  # the next has a larger step_share, so its experts_share must be less
        if not kept or each.experts_share < kept[-1].experts_share:
            kept.append(each)
    return tuple(kept)
