"""Every candidate count of a search at every batch: the curve behind a recommendation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from medusa_sim.plan.surface import PLAIN, Surface

if TYPE_CHECKING:
    import pyarrow as pa


def count_table(surface: Surface) -> pa.Table:
    """One row a length, batch and count, with the drafting that is best for that count there.

    Columns: batch, seq_len, candidates, drafts (in a row; Medusa: heads run), tokens_per_step,
    decode_step_us, verify_step_us, overhead, speedup, fits_memory. One candidate is plain decoding.
    """
    import pyarrow as pa

    counts, inverse = np.unique(surface.candidates, return_inverse=True)
    depth = np.asarray([0, *(option.depth for option in surface.options)])[surface.option + 1]
    shape = (surface.batch.size, surface.seq_len.size, counts.size)
    chosen = np.full(shape, PLAIN)
    for place in range(counts.size):
        members = np.flatnonzero(inverse == place)
        chosen[..., place] = members[np.argmax(surface.speedup[..., members], axis=-1)]
    step_us = np.take_along_axis(surface.step_us, chosen, axis=-1)
    decode_us = np.broadcast_to(surface.decode_us[..., None], shape)
    columns = {
        "batch": np.broadcast_to(surface.batch[:, None, None], shape),
        "seq_len": np.broadcast_to(surface.seq_len[None, :, None], shape),
        "candidates": np.broadcast_to(counts, shape),
        "drafts": depth[chosen],
        "tokens_per_step": surface.tokens_per_step[chosen],
        "decode_step_us": decode_us,
        "verify_step_us": step_us,
        "overhead": step_us / decode_us,
        "speedup": np.take_along_axis(surface.speedup, chosen, axis=-1),
        "fits_memory": np.take_along_axis(surface.fits, chosen, axis=-1),
    }
    return pa.table({name: np.moveaxis(values, 1, 0).ravel() for name, values in columns.items()})
