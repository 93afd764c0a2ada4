"""Batches at which one request more gives less throughput."""

from __future__ import annotations

import numpy as np

from medusa_sim.arrays import FloatArray
from medusa_sim.grid.cells import Cells

SLOWER = 0.03
"""Share of plain throughput that one more request may cost before an answer names it."""


def slower_with_more(cells: Cells) -> tuple[tuple[int, float], ...]:
    """Batches after which one more request costs over SLOWER of the plain throughput, each with the change.

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
