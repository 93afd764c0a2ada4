"""Every candidate count of a search at every batch: the curve behind a recommendation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from medusa_sim.plan.quantities import values
from medusa_sim.plan.surface import Surface

if TYPE_CHECKING:
    import pyarrow as pa


COLUMNS = (
    "batch", "seq_len", "candidates", "drafts", "tokens_per_step", "decode_step_us", "verify_step_us",
    "overhead", "speedup", "fits_memory",
)  # fmt: skip


def count_table(surface: Surface) -> pa.Table:
    """One row a length, batch and count, with the drafting that is best for that count there: COLUMNS.

    drafts: draft length (Medusa: heads run). One candidate is plain decoding.
    """
    import pyarrow as pa

    shape, columns = surface.by_count.fits.shape, values(surface, COLUMNS)
    return pa.table(
        {name: np.moveaxis(np.broadcast_to(each, shape), 1, 0).ravel() for name, each in columns.items()}
    )
