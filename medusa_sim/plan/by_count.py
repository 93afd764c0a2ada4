"""Every candidate count of a search at every batch: the curve behind a recommendation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from medusa_sim.plan.surface import Surface

if TYPE_CHECKING:
    import pyarrow as pa


def count_table(surface: Surface) -> pa.Table:
    """One row a length, batch and count, with the drafting that is best for that count there.

    Columns: batch, seq_len, candidates, drafts (draft length; Medusa: heads run), tokens_per_step,
    decode_step_us, verify_step_us, overhead, speedup, fits_memory. One candidate is plain decoding.
    """
    import pyarrow as pa

    found = surface.by_count
    shape = found.fits.shape
    columns = {
        "batch": surface.batch[:, None, None],
        "seq_len": surface.seq_len[None, :, None],
        "candidates": found.counts,
        "drafts": found.drafts,
        "tokens_per_step": found.tokens_per_step,
        "decode_step_us": found.decode_us,
        "verify_step_us": found.step_us,
        "overhead": found.step_us / found.decode_us,
        "speedup": found.speedup,
        "fits_memory": found.fits,
    }
    return pa.table(
        {name: np.moveaxis(np.broadcast_to(values, shape), 1, 0).ravel() for name, values in columns.items()}
    )
