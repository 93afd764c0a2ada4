"""Operator rows: a CSV or Parquet table of shapes (and measured times) -> a checked frame -> operators.

A row is one launch. Columns are `op,m,n,k,batch,q_len,kv_len,heads,kv_heads,head_dim,dtype[,time_us]` and
those of other families (`Operator.ROWS`); cells that do not apply to an operator are blank. `engine` and
`kernel` say whose kernel was measured. A `gpu` column and unknown columns are kept but not used. Published
tables may use other column names (`columns.OTHER_NAMES`). An error is one line with row, column, what was
given and what is allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from medusa_sim.arrays import BoolArray, FloatArray
from medusa_sim.errors import DataError, shown, unknown_name
from medusa_sim.operators.columns import (
    BYTES_COLUMN,
    KINDS,
    LARGEST_BYTES,
    LARGEST_SIZE,
    LEAST_US,
    MORE_COLUMNS,
    NAME_COLUMNS,
    OPERATORS,
    OPTIONAL_COLUMNS,
    REQUIRED_COLUMNS,
    SIZE_COLUMNS,
    TIME_COLUMN,
    IndexArray,
    dtype_names,
    kinds_of,
    row_numbers,
    texts,
    with_names,
)
from medusa_sim.operators.gemm import Gemm
from medusa_sim.operators.operator import Fault, Operator, TextArray
from medusa_sim.reading.files import named, opened
from medusa_sim.reading.tables import csv_chunks, parquet_parts
from medusa_sim.units import FORMATS, format_of

if TYPE_CHECKING:
    import pandas as pd

CHUNK_ROWS = 32_768
"""Rows of a file that are in memory at a time."""
_TABLE = "a .csv or .parquet of operator rows"


class _Place(NamedTuple):
    """A table as messages refer to it: its name, rows of the file before it, columns that it lacks."""

    where: str
    first_row: int
    absent: tuple[str, ...] = ()

    def row(self, row: int) -> str:
        """A row as people count: 1 is the first below the header."""
        return f"{self.where}, row {self.first_row + row + 1}"

    def check(self, wrong: BoolArray, column: str, given: Callable[[int], str] | str, allowed: str) -> None:
        """Raise DataError for the first wrong row. given: its cell, as text or as a function of the row."""
        if wrong.any():
            row = int(np.argmax(wrong))
            told = shown(given if isinstance(given, str) else given(row))
            raise DataError(f"{self.row(row)}, column {column}: given {told} (allowed: {allowed})")


def check_rows(
    frame: pd.DataFrame, where: str, *, need_time: bool = False, first_row: int = 0
) -> pd.DataFrame:
    """A checked copy of a table in memory, as `read_rows` returns it.

    where: the table's name in messages. first_row: rows of the file before it. Raises DataError.
    """
    frame = with_names(frame.reset_index(drop=True))
    _check_columns(frame, where, need_time)
    absent = tuple(column for column in (*SIZE_COLUMNS, *MORE_COLUMNS) if column not in frame)
    checked = frame.assign(**{column: np.nan for column in absent if column in SIZE_COLUMNS})
    at = _Place(where, first_row, absent)
    for column in (*SIZE_COLUMNS, *MORE_COLUMNS):
        if column in checked:
            checked[column] = _numbers(checked[column], column, at, whole=True)
    for column, blank in OPTIONAL_COLUMNS.items():
        if column in checked:
            lowest = None if blank > 0.0 else 0.0
            checked[column] = _numbers(checked[column], column, at, whole=not np.isnan(blank), lowest=lowest)
    if TIME_COLUMN in checked:
        checked[TIME_COLUMN] = _numbers(checked[TIME_COLUMN], TIME_COLUMN, at, whole=False)
    checked["op"] = _filled(checked["op"], "op", at)
    kinds = kinds_of(checked)
    _check_dtypes(checked, kinds, at)
    _check_kinds(checked, kinds, at)
    if need_time:
        _require(checked, (TIME_COLUMN,), np.ones(len(checked), dtype=bool), at, "to calibrate or validate")
        _check_spread(checked, at)
    return checked


def _check_columns(frame: pd.DataFrame, where: str, need_time: bool) -> None:
    columns = [str(column) for column in frame.columns]
    required = (*NAME_COLUMNS, TIME_COLUMN) if need_time else NAME_COLUMNS
    missing = [column for column in required if column not in columns]
    if missing:
        raise DataError(
            f"{where}: missing column(s) {', '.join(missing)} (it has: {shown(', '.join(columns))}; a table "
            f"of operators has {', '.join(REQUIRED_COLUMNS)}; sizes that no row needs may be left out)"
        )
    # pandas renames the second `m` of a CSV to `m.1`.
    known = (*REQUIRED_COLUMNS, TIME_COLUMN)
    twice = [c for c in known if columns.count(c) > 1 or (c in columns and f"{c}.1" in columns)]
    if twice:
        raise DataError(f"{where}: column(s) {', '.join(twice)} given twice (keep one)")
    if frame.empty:
        raise DataError(f"{where}: no rows below the header (give at least one operator)")


def _numbers(
    column: pd.Series[Any], name: str, at: _Place, *, whole: bool, lowest: float | None = None
) -> FloatArray:
    """The cells of a column as numbers, NaN where blank.

    whole: whole numbers from 1 are allowed, else times from LEAST_US. lowest: the least number allowed
    instead, such as 0 for an optional count. Raises DataError for anything else.
    """
    import pandas as pd

    largest = LARGEST_SIZE if name != BYTES_COLUMN else LARGEST_BYTES

    blank = column.isna().to_numpy(dtype=bool)
    if not pd.api.types.is_numeric_dtype(column.dtype):
        text = column.astype(str).str.strip()
        blank = blank | text.str.lower().isin(("", "nan", "na", "none", "null", "<na>")).to_numpy(dtype=bool)
        column = text
    values = pd.to_numeric(column, errors="coerce")
    number = np.where(blank, np.nan, values.to_numpy(dtype=np.float64, na_value=np.nan))
    allowed = "a whole number from 1" if whole else f"a number of microseconds from {LEAST_US:g}"
    if lowest is not None:
        allowed = f"a {'whole ' if whole else ''}number from {lowest:g}"
    allowed += f" to {largest:.0e}"
    inside = number >= ((1.0 if whole else LEAST_US) if lowest is None else lowest)
    wrong = ~blank & ~(inside & (number <= largest))
    if whole:
        wrong |= ~blank & (number != np.floor(number))
    at.check(wrong, name, lambda row: str(column.iloc[row]), allowed)
    return number


def _check_spread(frame: pd.DataFrame, at: _Place) -> None:
    """Check p10_us and p90_us, the band around each row's time, and fill blanks with the time itself."""
    time_us = frame[TIME_COLUMN].to_numpy(dtype=np.float64)
    for column, side, words in (("p10_us", 1.0, "at most"), ("p90_us", -1.0, "at least")):
        if column not in frame:
            continue
        band = _numbers(frame[column], column, at, whole=False)
        wrong = side * (band - time_us) > 0.0
        row = int(np.argmax(wrong))
        at.check(wrong, column, f"{band[row]:g}", f"{words} time_us = {time_us[row]:g}")
        frame[column] = np.where(np.isnan(band), time_us, band)


def _filled(column: pd.Series[Any], name: str, at: _Place) -> pd.Series[str]:
    """A text column without blanks, stripped."""
    blank = column.isna().to_numpy(dtype=bool)
    text = column.astype(str).str.strip()
    blank = blank | (text == "").to_numpy(dtype=bool)
    at.check(blank, name, "blank", "an operator name")
    return text


def _check_dtypes(frame: pd.DataFrame, kinds: TextArray, at: _Place) -> None:
    names = dtype_names(frame, kinds)
    at.check(names == "", "dtype", "blank", f"one of {', '.join(sorted(FORMATS))}")
    for name in np.unique(names):
        try:
            format_of(str(name))
        except ValueError as error:
            row = int(np.argmax(names == name))
            raise DataError(f"{at.row(row)}, column dtype: {error}") from None


def _check_kinds(frame: pd.DataFrame, kinds: TextArray, at: _Place) -> None:
    """Raise DataError for a row of an unknown operator, or whose sizes are missing or contradictory."""
    unknown = kinds == ""
    if unknown.any():
        row = int(np.argmax(unknown))
        name = str(frame["op"].iloc[row])
        given = ", ".join(c for c in Gemm.COLUMNS if frame[c].notna().iloc[row]) or "none"
        lacking = ", ".join(c for c in Gemm.COLUMNS if c in at.absent)
        given += f"; missing column {lacking}" if lacking else ""
        raise DataError(
            f"{at.row(row)}, column op: {unknown_name('operator', name, KINDS)}; "
            f"a linear layer of any name needs m, n and k (given: {given})"
        )
    present = np.unique(kinds)
    for made in dict.fromkeys(OPERATORS[str(kind)] for kind in present):
        of_family = np.isin(kinds, [kind for kind in present if OPERATORS[str(kind)] is made])
        _require(frame, made.row_numbers(), of_family, at, f"for {made.FAMILY} operators")
        rows = np.flatnonzero(of_family)
        for fault in made.faults(kinds[rows], row_numbers(frame, made, rows)):
            wrong = np.zeros(len(frame), dtype=bool)
            wrong[rows] = fault.wrong
            at.check(wrong, fault.column, partial(_given_text, frame, fault), fault.allowed)


def _given_text(frame: pd.DataFrame, fault: Fault, row: int) -> str:
    given = f"{frame[fault.column].iloc[row]:g}"
    return f"{given} with {fault.beside} {frame[fault.beside].iloc[row]:g}" if fault.beside else given


def _require(frame: pd.DataFrame, columns: tuple[str, ...], rows: BoolArray, at: _Place, why: str) -> None:
    for column in columns:
        blank = rows & (frame[column].isna().to_numpy(dtype=bool) if column in frame else True)
        if column in at.absent and blank.any():
            row = int(np.argmax(blank))
            raise DataError(f"{at.where}: missing column {column}, which {at.row(row)} needs {why}")
        at.check(blank, column, "blank", f"a number, needed {why}")


def read_rows(path: str | Path, *, need_time: bool = False) -> pd.DataFrame:
    """Operator rows of a `.csv` or `.parquet` file, checked.

    Sizes come back as float64 (NaN where blank), `op` and `dtype` as strings, `time_us` (if present)
    as float64; other columns as they were. The column of a size may be missing where no row needs it; it is
    then blank. Row order and index (0, 1, ...) are those of the file.

    need_time: every row must carry a positive `time_us` (for `calibrate` and `validate`).

    Raises:
        DataError: the file cannot be read, a column is missing or doubled, there are no rows, or a
            cell is wrong: one line with file, row (1 is the first below the header), column, what was
            given and what is allowed.
    """
    import pandas as pd

    return pd.concat(list(row_chunks(path, need_time=need_time)), ignore_index=True)


def row_chunks(path: str | Path, *, need_time: bool = False) -> Iterator[pd.DataFrame]:
    """The rows of `read_rows` in parts of at most CHUNK_ROWS, each with an index from 0.

    Raises DataError at the part with the wrong cell, before later parts are read.
    """
    where = Path(path)
    first_row = 0
    for part in _raw_parts(where, CHUNK_ROWS):
        yield check_rows(part, str(where), need_time=need_time, first_row=first_row)
        first_row += len(part)


def operators_of(frame: pd.DataFrame, *, by: tuple[str, ...] = ()) -> list[tuple[IndexArray, Operator]]:
    """Rows of a checked frame grouped into one broadcast operator per kind and dtype.

    Each entry is (positions in the frame, operator whose arrays have that length); every row is in
    exactly one entry. GEMM rows of any name share one entry per dtype. by: further text columns to group by,
    such as CHOICE_COLUMNS; columns that the frame lacks are ignored.
    """
    kinds = kinds_of(frame)
    names = dtype_names(frame, kinds)
    shared = [kinds, names, *(texts(frame, column) for column in by if column in frame)]
    groups: list[tuple[IndexArray, Operator]] = []
    for index in _alike(shared):
        made = OPERATORS[str(kinds[index[0]])]
        words = {column: texts(frame, column, index, blank) for column, blank in made.ROWS.words.items()}
        for part in (
            _alike([words[column] for column in made.ROWS.splits]) if made.ROWS.splits else [slice(None)]
        ):
            rows = index[part]
            own = {column: word[part] for column, word in words.items()}
            form = format_of(str(names[rows[0]]))
            groups.append(
                (rows, made.of_rows(str(kinds[rows[0]]), form, row_numbers(frame, made, rows), own))
            )
    return groups


def _alike(columns: list[TextArray]) -> list[IndexArray]:
    """Positions of rows that agree in every column, one array a group, in the order of the columns' text."""
    import pandas as pd

    group = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        codes, values = pd.factorize(column, sort=True)
        group = group * len(values) + codes
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order])) + 1
    return np.split(order, starts)


def _raw_parts(path: Path, rows: int) -> Iterator[pd.DataFrame]:
    """The table as stored, in parts. CSV cells stay text: a word among numbers can then be named."""
    if path.suffix.lower() == ".csv":
        yield from csv_chunks(
            path, rows, dtype=str, keep_default_na=False, skipinitialspace=True, encoding="utf-8-sig"
        )
        return
    if path.suffix.lower() != ".parquet":
        with opened(path, _TABLE, DataError):  # a folder or no file at all is told first
            pass
        raise DataError(f"{named(path)}: cannot tell the format from its suffix (allowed: .csv, .parquet)")
    for part in parquet_parts(path, rows, _TABLE):
        yield part.to_pandas()
