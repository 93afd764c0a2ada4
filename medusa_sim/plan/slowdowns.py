"""Answers that are slower than a reader expects: of one request more, of a narrower format."""

from __future__ import annotations

import numpy as np

from medusa_sim.arrays import FloatArray
from medusa_sim.errors import MedusaSimError
from medusa_sim.grid.cells import Cells
from medusa_sim.step.step import decode_step

SLOWER = 0.03
"""Share of plain throughput that one more request may cost before an answer names it."""

_TOLD = 0.005
"""Share of a step; less is not seen in three digits."""


def slower_with_more(cells: Cells) -> tuple[tuple[int, float], ...]:
    """(batch, change) from which the next searched one gives over SLOWER less plain throughput.

    Over all lengths, the largest first: a row of tiles begins there, or a graph of another size.
    """
    if cells.scenario.scope == "block":
        return ()
    batch, plain = cells.surface.batch, cells.plain
    rate = plain.tokens_per_s[..., 0]
    change: FloatArray = np.min(np.diff(rate, axis=0) / rate[:-1], axis=1)
    if not change.size:
        return ()
    named = (change < -SLOWER) & np.all(plain.fits[1:, :, 0], axis=1)
    return tuple((int(batch[i]), float(change[i])) for i in np.argsort(change) if named[i])


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
