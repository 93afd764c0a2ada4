"""Rows that are cells, one each: what they hold and in which order, in a sweep and by count."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from medusa_sim.grid.cells import Cells
from medusa_sim.grid.quantities import BY_COUNT, SWEEP, values
from medusa_sim.grid.quantity import with_unlisted

if TYPE_CHECKING:
    import pyarrow as pa


def sweep_columns() -> tuple[str, ...]:
    """Columns of a sweep: names of quantities."""
    return with_unlisted(SWEEP)


def count_table(by_count: Cells) -> pa.Table:
    """One row a length, batch and count, with the drafting that is best for that count there: BY_COUNT.

    drafts: draft length (Medusa: heads run). One candidate is plain decoding.
    """
    import pyarrow as pa

    def column(value: npt.NDArray[Any]) -> pa.Array:
        cells = np.moveaxis(by_count.spread(value), 1, 0).ravel()
        return pa.array(cells, from_pandas=True)  # nan becomes null

    return pa.table(
        {name: column(value) for name, value in values(by_count, with_unlisted(BY_COUNT)).items()}
    )
