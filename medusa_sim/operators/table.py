"""Operator rows: a CSV or Parquet table of shapes (and measured times) -> a checked frame -> operators.

Columns `op,m,n,k,batch,q_len,kv_len,heads,kv_heads,head_dim,dtype[,time_us]`, one launch a row, and those of
the further families (`Operator.NUMBERS`, `OPTIONAL`, `WORDS`). Cells that do not apply to an operator are
blank. `engine` and `kernel` name whose kernels a row is of. A `gpu` column and unknown columns are kept,
never used. Tables of other projects may leave out `op` and `dtype` (`operators.recorded`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from medusa_sim.errors import DataError
from medusa_sim.operators.cells import IndexArray, dtype_names, kinds_of, row_numbers, texts
from medusa_sim.operators.kinds import OPERATORS
from medusa_sim.operators.operator import Operator, TextArray
from medusa_sim.operators.table_check import check_rows
from medusa_sim.reading import check_regular, csv_chunks, named
from medusa_sim.specs.formats import format_of

if TYPE_CHECKING:
    import pandas as pd

CHUNK_ROWS = 32_768
"""Rows of a file that are in memory at a time."""


def read_rows(path: str | Path, *, need_time: bool = False) -> pd.DataFrame:
    """Operator rows of a `.csv` or `.parquet` file, checked.

    Sizes come back as float64 (NaN where blank), `op` and `dtype` as strings, `time_us` (if present)
    as float64; other columns as they were. A size that no row of the file needs may be without a column
    and is blank. Row order and index (0, 1, ...) are those of the file.

    need_time: every row must carry a positive `time_us` (for `calibrate` and `validate`).

    Raises:
        DataError: the file cannot be read, a column is missing or doubled, there are no rows, or a
            cell is wrong: one line with file, row (1 is the first below the header), column, what was
            given and what is allowed.
    """
    import pandas as pd

    return pd.concat(list(row_chunks(path, need_time=need_time)), ignore_index=True)


def row_chunks(
    path: str | Path, *, need_time: bool = False, rows: int = CHUNK_ROWS
) -> Iterator[pd.DataFrame]:
    """The same rows, at most `rows` at a time, each part with an index from 0; same errors.

    A wrong cell ends the reading where it stands; nothing behind it is read.
    """
    where = Path(path)
    first_row = 0
    for part in _raw_parts(where, rows):
        yield check_rows(part, str(where), need_time=need_time, first_row=first_row)
        first_row += len(part)


def operators_of(frame: pd.DataFrame, *, by: tuple[str, ...] = ()) -> list[tuple[IndexArray, Operator]]:
    """Rows of a checked frame grouped into one broadcast operator per kind and dtype.

    Each entry is (positions in the frame, operator whose arrays have that length); every row is in
    exactly one entry. GEMM rows of any name share one entry per dtype. by: text columns whose rows are told
    apart too, such as CHOICE_COLUMNS; those that the frame lacks tell nothing.
    """
    kinds = kinds_of(frame)
    names = dtype_names(frame, kinds)
    shared = [kinds, names, *(texts(frame, column) for column in by if column in frame)]
    groups: list[tuple[IndexArray, Operator]] = []
    for index in _alike(shared):
        made = OPERATORS[str(kinds[index[0]])]
        words = {column: texts(frame, column, index, blank) for column, blank in made.WORDS.items()}
        for part in _alike([words[column] for column in made.SPLITS]) if made.SPLITS else [slice(None)]:
            rows = index[part]
            own = {column: word[part] for column, word in words.items()}
            form = format_of(str(names[rows[0]]))
            groups.append(
                (rows, made.of_rows(str(kinds[rows[0]]), form, row_numbers(frame, made, rows), own))
            )
    return groups


def _alike(columns: list[TextArray]) -> list[IndexArray]:
    """Positions of the rows that agree in every column, groups in the order of their text."""
    import pandas as pd

    group = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        codes, values = pd.factorize(column, sort=True)
        group = group * len(values) + codes
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order])) + 1
    return np.split(order, starts)


def _raw_parts(path: Path, rows: int) -> Iterator[pd.DataFrame]:
    """The table as stored, in parts. CSV cells stay text, so that a word among numbers is seen and named."""
    if path.suffix.lower() == ".csv":
        yield from csv_chunks(
            path, rows, dtype=str, keep_default_na=False, skipinitialspace=True, encoding="utf-8-sig"
        )
        return
    if path.suffix.lower() != ".parquet":
        raise DataError(f"{named(path)}: cannot tell the format from its suffix (allowed: .csv, .parquet)")
    from pyarrow import ArrowException, parquet

    check_regular(path, "a .csv or .parquet of operator rows")
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=rows):
                yield batch.to_pandas()
            if file.metadata.num_rows == 0:
                yield file.schema_arrow.empty_table().to_pandas()
    except (OSError, ValueError, ArrowException) as error:
        reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        raise DataError(f"{named(path)}: cannot be read as operator rows: {reason}") from error
