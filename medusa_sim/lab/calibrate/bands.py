"""Bands of a fitted kernel: what 80 % of measured times are within, by the size of their operators."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from medusa_sim.arrays import FloatArray
from medusa_sim.gpus.fitted import Residual
from medusa_sim.gpus.inheritance import widen_band


def residual_bands(
    measured_us: FloatArray,
    predicted_us: FloatArray | float,
    size: FloatArray,
    upper_ends: Sequence[int],
    least_rows: int = 1,
    widen: float = 1.0,
) -> tuple[Residual, ...]:
    """10 % and 90 % quantiles of measured / predicted in each range of size that has rows enough.

    upper_ends: ascending; a row belongs to the first range whose end is not below its size. Rows beyond
    the last end are in no band. A range with fewer than `least_rows` joins the next; where no range has
    as many, the last holds all. A band always holds the prediction itself: where few rows err to one side,
    its other end is 1. widen: about its own centre, so many times as wide.
    """
    ratio = measured_us / predicted_us
    bands: list[Residual] = []
    lower = 0
    for upper in upper_ends:
        inside = ratio[(size > lower) & (size <= upper)]
        alone = not bands and upper == upper_ends[-1]
        if inside.size >= (1 if alone else least_rows):
            low, high = np.quantile(inside, (0.1, 0.9))
            band = Residual(size_max=float(upper), low=min(1.0, float(low)), high=max(1.0, float(high)))
            bands.append(widen_band(band, widen, 0.0))
            lower = upper
    return tuple(bands)
