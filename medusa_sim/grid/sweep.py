"""Rows that are cells, one each: a sweep, priced block by block and bounded in memory; counts of a search."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from medusa_sim.arrays import FloatArray, IntArray
from medusa_sim.grid.axes import Grid
from medusa_sim.grid.cells import Cells, price
from medusa_sim.grid.configurations import at_counts
from medusa_sim.grid.quantities import BY_COUNT, SWEEP, values
from medusa_sim.grid.quantity import BY_NAME, with_unlisted
from medusa_sim.latency.operator_time import CodeArray
from medusa_sim.scenario.draft_options import DraftOption
from medusa_sim.scenario.scenario import Scenario

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

CHUNK_ROWS = 1 << 18
"""Rows of a table, whatever the size of the grid: bounds the memory that it takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepTable:
    """Rows of a sweep: text that is the same in every row, numbers, and codes with their labels."""

    text: dict[str, str]
    numbers: dict[str, npt.NDArray[np.int64] | FloatArray | npt.NDArray[np.bool_]]
    codes: dict[str, CodeArray]

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(self.numbers["batch"].size)

    def arrow(self) -> pa.Table:
        """The rows as an Arrow table in their order; text and codes are dictionary-encoded."""
        import pyarrow as pa

        same = np.zeros(self.rows, dtype=np.int8)
        columns = {}
        for name in with_unlisted(SWEEP):
            if name in self.text:
                columns[name] = pa.DictionaryArray.from_arrays(same, [self.text[name]])
            elif name in self.codes:
                columns[name] = pa.DictionaryArray.from_arrays(self.codes[name], list(BY_NAME[name].labels))
            else:
                columns[name] = pa.array(self.numbers[name], from_pandas=True)
        return pa.table(columns)

    def lists(self, names: Iterable[str], most: int) -> dict[str, list[Any]]:
        """The first rows of some columns as in `arrow`, without importing Arrow; None where empty."""
        columns: dict[str, list[Any]] = {}
        for name in names:
            if name in self.codes:
                columns[name] = [BY_NAME[name].labels[code] for code in self.codes[name][:most]]
            else:
                values = self.numbers[name][:most]
                empty = np.isnan(values).tolist()
                columns[name] = [
                    None if no else value for no, value in zip(empty, values.tolist(), strict=True)
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
        tables = Slices.of(grid, counts.size, chunk_rows)
        options = grid_options(scenario, grid)
        for batch, seq_len in map(tables.at, range(tables.count)):
            yield _table(price(scenario, grid.batch[batch], grid.seq_len[seq_len], options).by_count, counts)


def grid_options(scenario: Scenario, grid: Grid) -> tuple[DraftOption, ...]:
    """Ways of drafting with the counts of a grid alone."""
    return at_counts(scenario.options(int(max(grid.candidates.max(), 2))), grid.candidates)


@dataclass(frozen=True, slots=True)
class Slices:
    """The axes of batch and length, cut into numbered pieces of a largest number of rows.

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
        """Pieces of about `rows` rows of a grid with `counts` rows a batch and length."""
        batches, lengths = grid.batch.size, grid.seq_len.size
        if lengths * counts > rows:
            return cls(batches, lengths, counts, 1, max(1, rows // counts))
        return cls(batches, lengths, counts, max(1, rows // (lengths * counts)), lengths)

    @property
    def count(self) -> int:
        """Number of pieces."""
        return -(-self.batches // self.batch_step) * -(-self.lengths // self.length_step)

    def at(self, number: int) -> tuple[slice, slice]:
        """(batches, lengths) of a piece, counted from 0."""
        outer, inner = divmod(number, -(-self.lengths // self.length_step))
        batch, length = outer * self.batch_step, inner * self.length_step
        return slice(batch, batch + self.batch_step), slice(length, length + self.length_step)


def _table(by_count: Cells, candidates: IntArray) -> SweepTable:
    """A row a cell, with these of its counts."""
    counts = by_count.configurations.counts
    place = np.searchsorted(counts, candidates)
    in_order = np.array_equal(place, np.arange(counts.size))
    shape = (*by_count.shape[:2], candidates.size)

    def column(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if values.size == 1:  # not copied
            return np.broadcast_to(values.ravel(), int(np.prod(shape)))
        is_whole = in_order or not values.ndim or values.shape[-1] == 1
        return np.broadcast_to(values if is_whole else values[..., place], shape).ravel()

    read = values(by_count, with_unlisted(SWEEP))
    columns = {name: column(value) for name, value in read.items() if not isinstance(value, str)}
    return SweepTable(
        text={name: value for name, value in read.items() if isinstance(value, str)},
        numbers={name: value for name, value in columns.items() if not BY_NAME[name].labels},
        codes={
            name: value.astype(np.int8, copy=False) for name, value in columns.items() if BY_NAME[name].labels
        },
    )


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
