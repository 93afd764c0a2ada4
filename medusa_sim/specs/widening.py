"""By how much the band of a step is wider for what is new about its set-up.

Dense models say nothing of layers of experts, so a widening has two parts. A step that takes `step`, and
`experts` of that in its layers of experts, has the half-width

    sqrt((step_share step)^2 + (experts_share experts)^2)

Each measured group tells one of its own, and the least of them counts. Which one is the least depends on what
experts take of the step, so all that may be are kept (`unbeaten`) until the step is priced.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from medusa_sim.arrays import FloatArray


class Widening(NamedTuple):
    """The two parts of a half-width, each as a share of what it belongs to."""

    step_share: float
    """Of the whole step, in addition to kernels and terms of the engine."""
    experts_share: float
    """Of its layers of experts."""

    def half_width(self, step: FloatArray | float, experts: FloatArray | float) -> FloatArray:
        """In the unit of both: microseconds, or parts of a step that is 1."""
        return np.asarray(np.hypot(self.step_share * step, np.multiply(self.experts_share, experts)))


def least_half_width(
    widenings: Iterable[Widening], step: FloatArray | float, experts: FloatArray | float
) -> FloatArray:
    """The least half-width that any widening gives each step; 0 without any.

    >>> offered = Widening(0.085, 0.0), Widening(0.034, 0.157)
    >>> [round(float(least_half_width(offered, 1.0, experts)), 3) for experts in (0.0, 0.3, 0.6)]
    [0.034, 0.058, 0.085]
    """
    halves = [widening.half_width(step, experts) for widening in widenings]
    return np.minimum.reduce(halves) if halves else np.zeros_like(step, dtype=np.float64)


def unbeaten(widenings: Iterable[Widening]) -> tuple[Widening, ...]:
    """Those that are the least for some step: no other is smaller in both parts."""
    kept: list[Widening] = []
    for each in sorted(set(widenings)):  # the next has a larger step_share, so its experts_share must be less
        if not kept or each.experts_share < kept[-1].experts_share:
            kept.append(each)
    return tuple(kept)
