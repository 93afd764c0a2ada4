"""Operator rows: a CSV or Parquet table of shapes (and measured times) -> a checked frame -> operators.

Columns `op,m,n,k,batch,q_len,kv_len,heads,kv_heads,head_dim,dtype[,time_us]`, one launch a row. Cells
that do not apply to an operator are blank. A `gpu` column and unknown columns are kept, never used.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from medusa_sim.arrays import FloatArray
from medusa_sim.errors import DataError, unknown_name
from medusa_sim.operators.operator import (
    ELEMENTWISE_KINDS,
    OPERATORS,
    Attention,
    ElementwiseKind,
    Gemm,
    Operator,
    operator_of,
)
from medusa_sim.units import BYTES_PER_ELEMENT

if TYPE_CHECKING:
    import pandas as pd

IndexArray: TypeAlias = npt.NDArray[np.intp]

SIZE_COLUMNS = tuple(dict.fromkeys(name for made in OPERATORS.values() for name in made.COLUMNS))
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


def read_rows(path: str | Path, *, need_time: bool = False) -> pd.DataFrame:
    """Operator rows of a `.csv` or `.parquet` file, checked.

    Sizes come back as float64 (NaN where blank), `op` and `dtype` as strings, `time_us` (if present)
    as float64; other columns as they were. Row order and index (0, 1, ...) are those of the file.

    need_time: every row must carry a positive `time_us` (for `calibrate` and `validate`).

    Raises:
        DataError: the file cannot be read, a column is missing or doubled, there are no rows, or a
            cell is wrong: one line with file, row (1 is the first below the header), column, what was
            given and what is allowed.
    """
    where = Path(path)
    return check_rows(_raw_table(where), str(where), need_time=need_time)


def check_rows(frame: pd.DataFrame, where: str, *, need_time: bool = False) -> pd.DataFrame:
    """The same checks for a table that is in memory; `where` names it in messages. A copy is returned."""
    _check_columns(frame, where, need_time)
    checked = frame.reset_index(drop=True).copy()
    for column in SIZE_COLUMNS:
        checked[column] = _numbers(checked[column], column, where, whole=True)
    if TIME_COLUMN in checked:
        checked[TIME_COLUMN] = _numbers(checked[TIME_COLUMN], TIME_COLUMN, where, whole=False)
    for column in ("op", "dtype"):
        checked[column] = _names(checked[column], column, where)
    _check_dtypes(checked, where)
    _check_kinds(checked, where)
    if need_time:
        _require(
            checked, (TIME_COLUMN,), np.ones(len(checked), dtype=bool), where, "to calibrate or validate"
        )
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


def _raw_table(path: Path) -> pd.DataFrame:
    """The table as stored. CSV cells stay text, so that a word among numbers is seen and named."""
    import pandas as pd

    if path.suffix.lower() not in (".csv", ".parquet"):
        raise DataError(f"{path}: cannot tell the format of {path.name!r} (allowed: .csv, .parquet)")
    try:
        if path.suffix.lower() == ".parquet":
            return pd.read_parquet(path)
        return pd.read_csv(
            path, dtype=str, keep_default_na=False, skipinitialspace=True, encoding="utf-8-sig"
        )
    except FileNotFoundError:
        raise DataError(f"{path}: no such file (give a .csv or .parquet of operator rows)") from None
    except (OSError, ValueError, pd.errors.ParserError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"{path}: cannot be read as operator rows: {reason}") from error


def _check_columns(frame: pd.DataFrame, where: str, need_time: bool) -> None:
    columns = [str(column) for column in frame.columns]
    required = (*REQUIRED_COLUMNS, TIME_COLUMN) if need_time else REQUIRED_COLUMNS
    missing = [column for column in required if column not in columns]
    if missing:
        raise DataError(
            f"{where}: missing column(s) {', '.join(missing)} (required: {', '.join(required)}; "
            f"leave a cell blank where it does not apply)"
        )
    # pandas renames the second `m` of a CSV to `m.1`.
    twice = [c for c in required if columns.count(c) > 1 or f"{c}.1" in columns]
    if twice:
        raise DataError(f"{where}: column(s) {', '.join(twice)} given twice (keep one)")
    if frame.empty:
        raise DataError(f"{where}: no rows below the header (give at least one operator)")


def _numbers(column: pd.Series[Any], name: str, where: str, *, whole: bool) -> FloatArray:
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
        raise _cell_error(where, row, name, str(column.iloc[row]), allowed)
    return number


def _names(column: pd.Series[Any], name: str, where: str) -> pd.Series[str]:
    blank = column.isna().to_numpy(dtype=bool)
    text = column.astype(str).str.strip()
    blank = blank | (text == "").to_numpy(dtype=bool)
    if blank.any():
        allowed = "an operator name" if name == "op" else f"one of {', '.join(sorted(BYTES_PER_ELEMENT))}"
        raise _cell_error(where, int(np.argmax(blank)), name, "blank", allowed)
    return text


def _check_dtypes(frame: pd.DataFrame, where: str) -> None:
    for dtype in frame["dtype"].unique():
        if dtype not in BYTES_PER_ELEMENT:
            row = int(np.argmax((frame["dtype"] == dtype).to_numpy(dtype=bool))) + 1
            raise DataError(
                f"{where}, row {row}, column dtype: {unknown_name('dtype', dtype, BYTES_PER_ELEMENT)}"
            )


def _kinds(frame: pd.DataFrame) -> npt.NDArray[np.str_]:
    """The operator kind of each row, '' for a name that is none and has no m, n, k.

    The name decides, except that an elementwise name with m, n and k is a linear layer.
    """
    named = frame["op"].map(_NAMES).fillna("").to_numpy(dtype=str)
    sized = frame[list(Gemm.COLUMNS)].notna().all(axis=1).to_numpy(dtype=bool)
    kinds: npt.NDArray[np.str_] = np.where(sized & np.isin(named, ("", *ELEMENTWISE_KINDS)), "gemm", named)
    return kinds


def _check_kinds(frame: pd.DataFrame, where: str) -> None:
    """Every row is a known operator, has the sizes of its kind and none that contradict it."""
    kinds = _kinds(frame)
    unknown = kinds == ""
    if unknown.any():
        row = int(np.argmax(unknown))
        name = str(frame["op"].iloc[row])
        given = [c for c in Gemm.COLUMNS if frame[c].notna().iloc[row]]
        raise DataError(
            f"{where}, row {row + 1}, column op: {unknown_name('operator', name, _NAMES)}; "
            f"a linear layer of any name needs m, n and k (given: {', '.join(given) or 'none'})"
        )
    families = np.asarray([OPERATORS[kind].FAMILY for kind in kinds])
    for made in dict.fromkeys(OPERATORS.values()):
        _require(frame, made.COLUMNS, families == made.FAMILY, where, f"for {made.FAMILY} operators")
    _check_attention(frame, families == Attention.FAMILY, where)


def _check_attention(frame: pd.DataFrame, attention: npt.NDArray[np.bool_], where: str) -> None:
    """Query heads share K/V heads evenly; a fused kernel's kv_len includes its own new tokens."""
    heads, kv_heads = frame["heads"].to_numpy(), frame["kv_heads"].to_numpy()
    uneven = attention.copy()
    uneven[attention] = heads[attention] % kv_heads[attention] != 0
    if uneven.any():
        row = int(np.argmax(uneven))
        raise _cell_error(
            where, row, "kv_heads", f"{kv_heads[row]:g} with heads {heads[row]:g}", "a divisor of heads"
        )
    q_len, kv_len = frame["q_len"].to_numpy(), frame["kv_len"].to_numpy()
    fused = attention & ~frame["op"].isin(("qk", "pv")).to_numpy(dtype=bool)
    short = fused.copy()
    short[fused] = kv_len[fused] < q_len[fused]
    if short.any():
        row = int(np.argmax(short))
        given = f"{kv_len[row]:g} with q_len {q_len[row]:g}"
        raise _cell_error(
            where, row, "kv_len", given, "at least q_len (kv_len includes the q_len new tokens)"
        )
    many = attention & (frame["op"] == "decode_attention").to_numpy(dtype=bool) & (q_len != 1.0)
    if many.any():
        row = int(np.argmax(many))
        raise _cell_error(
            where, row, "q_len", f"{q_len[row]:g}", "1 for decode_attention (else verify_attention)"
        )


def _require(
    frame: pd.DataFrame, columns: tuple[str, ...], rows: npt.NDArray[np.bool_], where: str, why: str
) -> None:
    for column in columns:
        blank = rows & frame[column].isna().to_numpy(dtype=bool)
        if blank.any():
            row = int(np.argmax(blank))
            raise _cell_error(where, row, column, "blank", f"a number, needed {why}")


def _cell_error(where: str, row: int, column: str, given: str, allowed: str) -> DataError:
    return DataError(f"{where}, row {row + 1}, column {column}: given {given!r} (allowed: {allowed})")
