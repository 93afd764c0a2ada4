"""A grid of configurations -> one tidy table, priced by `Surface` and bounded in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from medusa_sim.arrays import FloatArray, IntArray
from medusa_sim.latency.base import CodeArray
from medusa_sim.plan.quantities import BY_NAME, gain_column, values
from medusa_sim.plan.scenario import Scenario
from medusa_sim.plan.surface import Surface, grid_surface
from medusa_sim.step.workload import Grid

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

CHUNK_ROWS = 1 << 16
"""Rows of a table, whatever the size of the grid: arrays that stay in a core's cache are the fastest."""
MOST_ROWS = 1 << 18
"""Rows of a table that holds one batch."""
SHARED_CELLS = 1 << 16
"""Cells of batch and length, and of batch and count, that tables share: what fills no grid is priced once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepTable:
    """Rows of a sweep: text that is the same in every row, numbers, and codes with their labels.

    gain: the column by which a count is chosen.
    """

    text: dict[str, str]
    numbers: dict[str, npt.NDArray[np.int64] | FloatArray | npt.NDArray[np.bool_]]
    codes: dict[str, CodeArray]
    gain: str

    COLUMNS: ClassVar[tuple[str, ...]] = tuple(BY_NAME)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(self.numbers["batch"].size)

    def arrow(self) -> pa.Table:
        """The rows as an Arrow table in the order of COLUMNS; text and codes are dictionary-encoded."""
        import pyarrow as pa

        same = np.zeros(self.rows, dtype=np.int8)
        columns = {}
        for name in self.COLUMNS:
            if name in self.text:
                columns[name] = pa.DictionaryArray.from_arrays(same, [self.text[name]])
            elif name in self.codes:
                columns[name] = pa.DictionaryArray.from_arrays(self.codes[name], list(BY_NAME[name].labels))
            else:
                columns[name] = pa.array(self.numbers[name], from_pandas=True)
        return pa.table(columns)

    def lists(self, names: Iterable[str], most: int) -> dict[str, list[Any]]:
        """The first rows of some columns, as `arrow` has them but without its start; None where empty."""
        columns: dict[str, list[Any]] = {}
        for name in names:
            if name in self.codes:
                columns[name] = [BY_NAME[name].labels[code] for code in self.codes[name][:most]]
            else:
                values = self.numbers[name][:most]
                empty = np.isnan(values).tolist()
                columns[name] = [
                    None if no else each for no, each in zip(empty, values.tolist(), strict=True)
                ]
        return columns

    def pandas(self) -> pd.DataFrame:
        """The rows as a pandas frame; text and codes are categorical."""
        frame: pd.DataFrame = self.arrow().to_pandas()
        return frame


def sweep(scenarios: Sequence[Scenario], grid: Grid, chunk_rows: int = CHUNK_ROWS) -> Iterator[SweepTable]:
    """Tables of about `chunk_rows` rows, or of a batch: scenario by scenario, then batch, length, candidates.

    Each row has the drafting that is best for its count. Counts that a scenario's acceptance does not
    describe have no rows (`Scenario.covered` tells which those are).
    Raises SpecError or CoverageError before the first table that cannot be computed.
    """
    for scenario in scenarios:
        counts = scenario.covered(grid.candidates)
        of_batch = grid.seq_len.size * counts.size
        tables = Slices.of(grid, counts.size, max(chunk_rows, min(of_batch, MOST_ROWS)))
        step = tables.batch_step
        # lengths in pieces come batch by batch
        shared = SHARED_CELLS // (step * max(tables.length_step, counts.size)) * (of_batch <= MOST_ROWS)
        surfaces = replace(tables, batch_step=step * max(1, shared))
        for batch, seq_len in map(surfaces.at, range(surfaces.count)):
            part = Grid(batch=grid.batch[batch], seq_len=grid.seq_len[seq_len], candidates=counts)
            surface = grid_surface(scenario, part)
            for first in range(0, part.batch.size, step):
                yield _table(surface, counts, slice(first, first + step))


@dataclass(frozen=True, slots=True)
class Slices:
    """The axes of batch and length cut into numbered pieces of at most so many rows.

    counts: rows of one batch and length, which are never cut. A piece is some whole batches with all lengths,
    or one batch with some lengths.
    """

    batches: int
    lengths: int
    counts: int
    batch_step: int
    length_step: int

    @classmethod
    def of(cls, grid: Grid, counts: int, rows: int) -> Slices:
        """Pieces of a grid with so many counts, of about `rows` rows."""
        batches, lengths = grid.batch.size, grid.seq_len.size
        if lengths * counts > rows:
            return cls(batches, lengths, counts, 1, max(1, rows // counts))
        return cls(batches, lengths, counts, max(1, rows // (lengths * counts)), lengths)

    @property
    def count(self) -> int:
        """How many pieces there are."""
        return -(-self.batches // self.batch_step) * -(-self.lengths // self.length_step)

    def at(self, number: int) -> tuple[slice, slice]:
        """(batches, lengths) of a piece, counted from 0."""
        outer, inner = divmod(number, -(-self.lengths // self.length_step))
        batch, length = outer * self.batch_step, inner * self.length_step
        return slice(batch, batch + self.batch_step), slice(length, length + self.length_step)


def _table(surface: Surface, candidates: IntArray, batches: slice) -> SweepTable:
    """The rows of some of a surface's batches, with these of its counts."""
    part = surface.batches(batches)
    counts = part.by_count.counts
    place = np.searchsorted(counts, candidates)
    in_order = np.array_equal(place, np.arange(counts.size))
    shape = (part.batch.size, part.seq_len.size, candidates.size)

    def column(each: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if each.size == 1:  # not copied
            return np.broadcast_to(each.ravel(), int(np.prod(shape)))
        if each.shape == shape and in_order:
            return each.ravel()
        is_whole = in_order or not each.ndim or each.shape[-1] == 1
        return np.broadcast_to(each if is_whole else each[..., place], shape).ravel()

    read = values(part)
    columns = {name: column(each) for name, each in read.items() if not isinstance(each, str)}
    return SweepTable(
        text={name: each for name, each in read.items() if isinstance(each, str)},
        numbers={name: each for name, each in columns.items() if not BY_NAME[name].labels},
        codes={
            name: each.astype(np.int8, copy=False) for name, each in columns.items() if BY_NAME[name].labels
        },
        gain=gain_column(surface.scenario),
    )
