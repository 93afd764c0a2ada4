"""Narrow weights that are slower than those that were published."""

from __future__ import annotations

import numpy as np

from medusa_sim.errors import MedusaSimError
from medusa_sim.grid.cells import Cells
from medusa_sim.step.step import decode_step

_TOLD = 0.005
"""Share of a step; less is not seen in three digits."""


def slower_format_us(cells: Cells) -> tuple[float, float] | None:
    """The plain step at the first batch and length, and that of the model as published, if it is quicker.

    Narrow weights lose where a GPU's share of a layer is small: each kernel's start then counts more.
    """
    scenario, surface = cells.scenario, cells.surface
    asked = scenario.arguments
    if scenario.scope == "block" or scenario.runtime.local or not (asked.dtype or asked.weight_dtype):
        return None
    try:
        published = scenario.but(dtype=None, weight_dtype=None, kernels=None)
        plain = decode_step(published.setting, surface.batch[0], surface.seq_len[0])
    except MedusaSimError:  # the GPU has no kernels for it
        return None
    own_us, published_us = float(np.ravel(surface.decode.time_us)[0]), float(plain.time_us)
    return (own_us, published_us) if own_us > (1.0 + _TOLD) * published_us else None
