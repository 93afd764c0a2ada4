"""Operator rows: a CSV or Parquet table of shapes (and measured times) -> a checked frame -> operators.

Columns `op,m,n,k,batch,q_len,kv_len,heads,kv_heads,head_dim,dtype[,time_us]`, one launch a row. Cells
that do not apply to an operator are blank. A `gpu` column and unknown columns are kept, never used.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from medusa_sim.arrays import FloatArray
from medusa_sim.errors import DataError, shown, unknown_name
from medusa_sim.operators.operator import (
    ELEMENTWISE_KINDS,
    OPERATORS,
    Attention,
    ElementwiseKind,
    Gemm,
    Operator,
    operator_of,
)
from medusa_sim.reading import check_regular, csv_chunks, named
from medusa_sim.units import BYTES_PER_ELEMENT

if TYPE_CHECKING:
    import pandas as pd

IndexArray: TypeAlias = npt.NDArray[np.intp]

SIZE_COLUMNS = tuple(dict.fromkeys(name for made in OPERATORS.values() for name in made.COLUMNS))
NAME_COLUMNS = ("op", "dtype")
REQUIRED_COLUMNS = ("op", *SIZE_COLUMNS, "dtype")
TIME_COLUMN = "time_us"
LARGEST_SIZE = 1e9
"""Far above any real tensor extent; a larger number is a slip (a byte count, a time in ns)."""

ELEMENTWISE_ALIASES: dict[str, ElementwiseKind] = {
    "rms_norm": "rms_norm",
    "input_layernorm": "rms_norm",
    "post_attention_layernorm": "rms_norm",
    "post_layernorm": "rms_norm",
    "final_layernorm": "rms_norm",
    "rope": "rope",
    "attn_rope": "rope",
    "activation": "activation",
    "mlp_act": "activation",
    "act_fn": "activation",
    "residual": "residual",
    "add": "residual",
    "embedding": "embedding",
    "emb": "embedding",
    "next_token": "next_token",
}
"""Names under which public benchmarks record an elementwise kernel -> its kind."""

_NAMES: dict[str, str] = {**{kind: kind for kind in OPERATORS if kind != "gemm"}, **ELEMENTWISE_ALIASES}
"""What a name in the column `op` means; rows of any other name are linear layers if they have m, n and k."""
CHUNK_ROWS = 32_768
"""Rows of a file that are in memory at a time."""


class _Place(NamedTuple):
    """A table in messages: its name, how many rows of the file came before, columns that it lacks."""

    where: str
    first_row: int
    absent: tuple[str, ...] = ()

    def row(self, row: int) -> str:
        """The row as a person counts: 1 is the first below the header."""
        return f"{self.where}, row {self.first_row + row + 1}"


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


def check_rows(
    frame: pd.DataFrame, where: str, *, need_time: bool = False, first_row: int = 0
) -> pd.DataFrame:
    """The same checks for a table that is in memory; a copy is returned.

    `where` names it in messages; first_row: rows of the file before it.
    """
    _check_columns(frame, where, need_time)
    absent = tuple(column for column in SIZE_COLUMNS if column not in frame)
    checked = frame.reset_index(drop=True).assign(**dict.fromkeys(absent, np.nan))
    at = _Place(where, first_row, absent)
    for column in SIZE_COLUMNS:
        checked[column] = _numbers(checked[column], column, at, whole=True)
    if TIME_COLUMN in checked:
        checked[TIME_COLUMN] = _numbers(checked[TIME_COLUMN], TIME_COLUMN, at, whole=False)
    for column in ("op", "dtype"):
        checked[column] = _names(checked[column], column, at)
    _check_dtypes(checked, at)
    _check_kinds(checked, at)
    if need_time:
        _require(checked, (TIME_COLUMN,), np.ones(len(checked), dtype=bool), at, "to calibrate or validate")
        _check_spread(checked, at)
    return checked


def operators_of(frame: pd.DataFrame) -> list[tuple[IndexArray, Operator]]:
    """Rows of a checked frame grouped into one broadcast operator per kind and dtype.

    Each entry is (positions in the frame, operator whose arrays have that length); every row is in
    exactly one entry. GEMM rows of any name share one entry per dtype.
    """
    kinds = _kinds(frame)
    keys = kinds.astype(str) + "|" + frame["dtype"].to_numpy(dtype=str)
    groups: list[tuple[IndexArray, Operator]] = []
    for key in sorted(set(keys)):
        index = np.flatnonzero(keys == key)
        groups.append((index, _operator(frame.iloc[index], str(kinds[index[0]]))))
    return groups


def _operator(rows: pd.DataFrame, kind: str) -> Operator:
    """One broadcast operator from rows of one kind and dtype."""
    sizes = {name: rows[name].to_numpy(dtype=np.float64) for name in OPERATORS[kind].COLUMNS}
    return operator_of(kind, str(rows["dtype"].iloc[0]), sizes)


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


def _numbers(column: pd.Series[Any], name: str, at: _Place, *, whole: bool) -> FloatArray:
    """Blank -> NaN; anything else must be a positive finite number (a whole one for a size)."""
    import pandas as pd

    blank = column.isna().to_numpy(dtype=bool)
    if not pd.api.types.is_numeric_dtype(column.dtype):
        text = column.astype(str).str.strip()
        blank = blank | text.str.lower().isin(("", "nan", "na", "none", "null", "<na>")).to_numpy(dtype=bool)
        column = text
    values = pd.to_numeric(column, errors="coerce")
    number = np.where(blank, np.nan, values.to_numpy(dtype=np.float64, na_value=np.nan))
    allowed = "a whole number from 1" if whole else "a number of microseconds above 0"
    allowed += f" to {LARGEST_SIZE:.0e}"
    wrong = ~blank & ~((number > 0.0) & (number <= LARGEST_SIZE))
    if whole:
        wrong |= ~blank & (number != np.floor(number))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise _cell_error(at, row, name, str(column.iloc[row]), allowed)
    return number


def _check_spread(frame: pd.DataFrame, at: _Place) -> None:
    """Read p10_us and p90_us, where a file has them, as the band around every row's time."""
    time_us = frame[TIME_COLUMN].to_numpy(dtype=np.float64)
    for column, side, words in (("p10_us", 1.0, "at most"), ("p90_us", -1.0, "at least")):
        if column not in frame:
            continue
        band = _numbers(frame[column], column, at, whole=False)
        wrong = side * (band - time_us) > 0.0
        if wrong.any():
            row = int(np.argmax(wrong))
            raise _cell_error(at, row, column, f"{band[row]:g}", f"{words} time_us = {time_us[row]:g}")
        frame[column] = np.where(np.isnan(band), time_us, band)


def _names(column: pd.Series[Any], name: str, at: _Place) -> pd.Series[str]:
    blank = column.isna().to_numpy(dtype=bool)
    text = column.astype(str).str.strip()
    blank = blank | (text == "").to_numpy(dtype=bool)
    if blank.any():
        allowed = "an operator name" if name == "op" else f"one of {', '.join(sorted(BYTES_PER_ELEMENT))}"
        raise _cell_error(at, int(np.argmax(blank)), name, "blank", allowed)
    return text


def _check_dtypes(frame: pd.DataFrame, at: _Place) -> None:
    for dtype in frame["dtype"].unique():
        if dtype not in BYTES_PER_ELEMENT:
            row = int(np.argmax((frame["dtype"] == dtype).to_numpy(dtype=bool)))
            raise DataError(f"{at.row(row)}, column dtype: {unknown_name('dtype', dtype, BYTES_PER_ELEMENT)}")


def _kinds(frame: pd.DataFrame) -> npt.NDArray[np.str_]:
    """The operator kind of each row, '' for a name that is none and has no m, n, k.

    The name decides, except that an elementwise name with m, n and k is a linear layer.
    """
    named = frame["op"].map(_NAMES).fillna("").to_numpy(dtype=str)
    sized = frame[list(Gemm.COLUMNS)].notna().all(axis=1).to_numpy(dtype=bool)
    kinds: npt.NDArray[np.str_] = np.where(sized & np.isin(named, ("", *ELEMENTWISE_KINDS)), "gemm", named)
    return kinds


def _check_kinds(frame: pd.DataFrame, at: _Place) -> None:
    """Every row is a known operator, has the sizes of its kind and none that contradict it."""
    kinds = _kinds(frame)
    unknown = kinds == ""
    if unknown.any():
        row = int(np.argmax(unknown))
        name = str(frame["op"].iloc[row])
        given = [c for c in Gemm.COLUMNS if frame[c].notna().iloc[row]]
        raise DataError(
            f"{at.row(row)}, column op: {unknown_name('operator', name, _NAMES)}; "
            f"a linear layer of any name needs m, n and k (given: {', '.join(given) or 'none'}{_absent(at)})"
        )
    families = np.asarray([OPERATORS[kind].FAMILY for kind in kinds])
    for made in dict.fromkeys(OPERATORS.values()):
        _require(frame, made.COLUMNS, families == made.FAMILY, at, f"for {made.FAMILY} operators")
    _check_attention(frame, families == Attention.FAMILY, at)


def _absent(at: _Place) -> str:
    lacking = [column for column in Gemm.COLUMNS if column in at.absent]
    return f"; missing column {', '.join(lacking)}" if lacking else ""


def _check_attention(frame: pd.DataFrame, attention: npt.NDArray[np.bool_], at: _Place) -> None:
    """Query heads share K/V heads evenly; a fused kernel's kv_len includes its own new tokens."""
    heads, kv_heads = frame["heads"].to_numpy(), frame["kv_heads"].to_numpy()
    uneven = attention.copy()
    uneven[attention] = heads[attention] % kv_heads[attention] != 0
    if uneven.any():
        row = int(np.argmax(uneven))
        raise _cell_error(
            at, row, "kv_heads", f"{kv_heads[row]:g} with heads {heads[row]:g}", "a divisor of heads"
        )
    q_len, kv_len = frame["q_len"].to_numpy(), frame["kv_len"].to_numpy()
    fused = attention & ~frame["op"].isin(("qk", "pv")).to_numpy(dtype=bool)
    short = fused.copy()
    short[fused] = kv_len[fused] < q_len[fused]
    if short.any():
        row = int(np.argmax(short))
        given = f"{kv_len[row]:g} with q_len {q_len[row]:g}"
        raise _cell_error(at, row, "kv_len", given, "at least q_len (kv_len includes the q_len new tokens)")
    many = attention & (frame["op"] == "decode_attention").to_numpy(dtype=bool) & (q_len != 1.0)
    if many.any():
        row = int(np.argmax(many))
        raise _cell_error(
            at, row, "q_len", f"{q_len[row]:g}", "1 for decode_attention (else verify_attention)"
        )


def _require(
    frame: pd.DataFrame, columns: tuple[str, ...], rows: npt.NDArray[np.bool_], at: _Place, why: str
) -> None:
    for column in columns:
        blank = rows & frame[column].isna().to_numpy(dtype=bool)
        if blank.any():
            row = int(np.argmax(blank))
            if column in at.absent:
                raise DataError(f"{at.where}: missing column {column}, which {at.row(row)} needs {why}")
            raise _cell_error(at, row, column, "blank", f"a number, needed {why}")


def _cell_error(at: _Place, row: int, column: str, given: str, allowed: str) -> DataError:
    return DataError(f"{at.row(row)}, column {column}: given {shown(given)} (allowed: {allowed})")
