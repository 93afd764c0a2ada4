"""Columns of a table of operators and the cells of its rows as arrays.

`recorded.toml`: how tables of other projects name what a table of operators calls `op` and `dtype`. Each
entry is recognised by the columns that it has; a new kind of table is a new entry.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
from msgspec import Struct, convert, field

from medusa_sim.arrays import FloatArray
from medusa_sim.operators.kinds import KIND_OF
from medusa_sim.operators.operator import (
    ELEMENTWISE_KINDS,
    Attention,
    Elementwise,
    Gemm,
    Operator,
    TextArray,
)
from medusa_sim.reading import read_toml

if TYPE_CHECKING:
    import pandas as pd


class Word(Struct, frozen=True, forbid_unknown_fields=True):
    """A word of each row: that of a column or, where `having` is told, one of two by whether it has that."""

    column: str
    having: str = field(name="with", default="")
    then: str = ""
    otherwise: str = field(name="else", default="")

    def of(self, frame: pd.DataFrame) -> pd.Series[Any]:
        """Of every row; blank without such a column."""
        if self.column not in frame:
            return frame.iloc[:, 0].map(lambda _: "")
        if not self.having:
            return frame[self.column]
        has = frame[self.column].astype(str).str.contains(self.having)
        return has.map({True: self.then, False: self.otherwise})


class Recorded(Struct, frozen=True, forbid_unknown_fields=True):
    """A table that leaves out `op` or `dtype`.

    tells, lacks: columns that it has and has not. op: the operator of every row where the column is missing,
    a name, a word of the row, or a key of RULES. dtype, kernel: the columns that hold these instead.
    no_dtype: words in `dtype` that say nothing. renamed: our column -> its name there. part: which part of a
    layer a row is, of tables without a dtype.
    """

    tells: frozenset[str]
    op: str | Word
    lacks: frozenset[str] = frozenset()
    dtype: str = ""
    kernel: str = ""
    no_dtype: frozenset[str] = frozenset()
    renamed: dict[str, str] = {}
    part: Word | None = None


LATENT_HEAD = 576
"""Width of a cached row of latent attention, by which tables without a name for it tell it (512 and 64)."""


def _by_queries(frame: pd.DataFrame) -> pd.Series[Any]:
    """Attention with several queries, with one, or latent: by q_len and the width of a cached row."""
    import pandas as pd

    several = pd.to_numeric(frame["q_len"], errors="coerce") > 1
    named = several.map({True: "verify_attention", False: "decode_attention"})
    return named.mask(pd.to_numeric(frame["head_dim"], errors="coerce") == LATENT_HEAD, "mla_decode")


RULES: dict[str, Callable[[pd.DataFrame], pd.Series[Any]]] = {"attention by q_len": _by_queries}
_TOLD = read_toml(Path(__file__).with_name("recorded.toml"), "tables of other projects")
RECORDED = convert(_TOLD["table"], tuple[Recorded, ...])


def with_names(frame: pd.DataFrame) -> pd.DataFrame:
    """The table with `op`, and with `dtype` where another column holds it; itself where it has both.

    A blank `dtype` of a row is filled from the other column too.
    """
    columns = {str(column) for column in frame.columns}
    if "engine" in columns:
        frame = frame.assign(engine=frame["engine"].replace(_TOLD["engines"]))
    for kind in RECORDED:
        if not kind.tells <= columns or kind.lacks & columns:
            continue
        own = {ours: frame[theirs] for ours, theirs in kind.renamed.items() if theirs in frame}
        told: dict[str, Any] = {} if kind.part is None else {"part": kind.part.of, "dtype": ""}
        told["op"] = kind.op.of if isinstance(kind.op, Word) else RULES.get(kind.op, kind.op)
        if kind.kernel in columns:
            told["kernel"] = frame[kind.kernel]
        frame = frame.assign(**own, **{name: told[name] for name in told if name not in columns})
        columns |= set(told)
        if kind.dtype:
            names = frame[kind.dtype].astype(str)
            given = frame["dtype"].astype("string") if "dtype" in columns else names
            frame = frame.assign(dtype=given.where(given.str.strip().fillna("") != "", names))
            columns.add("dtype")
        if kind.no_dtype and "dtype" in columns:
            names = frame["dtype"].astype("string").str.strip()
            frame = frame.assign(dtype=names.mask(names.isin(list(kind.no_dtype)), ""))
    return frame


OPERATORS: dict[str, type[Operator]] = {name: kind.operator for name, kind in KIND_OF.items()}
"""Every operator by kind."""
FAMILIES: dict[str, type[Operator]] = {made.FAMILY: made for made in OPERATORS.values()}
SIZE_COLUMNS = tuple(dict.fromkeys(name for made in (Gemm, Attention, Elementwise) for name in made.COLUMNS))
"""Sizes that every table has; those of further families are read where they are."""
MORE_COLUMNS = tuple(
    dict.fromkeys(
        name for made in FAMILIES.values() for name in made.row_numbers() if name not in SIZE_COLUMNS
    )
)
OPTIONAL_COLUMNS = {name: blank for made in FAMILIES.values() for name, blank in made.OPTIONAL.items()}
WHOLE_COLUMNS = (
    *SIZE_COLUMNS,
    *MORE_COLUMNS,
    *(name for name, blank in OPTIONAL_COLUMNS.items() if not np.isnan(blank)),
)
"""Columns of whole numbers."""
CHOICE_COLUMNS = ("engine", "kernel")
"""Whose kernel a row is of: library or engine, and the name of the kernel there."""
NAME_COLUMNS = ("op", "dtype")
REQUIRED_COLUMNS = ("op", *SIZE_COLUMNS, "dtype")
TIME_COLUMN = "time_us"
BYTES_COLUMN = "bytes"
LARGEST_BYTES = 1e15
LEAST_US = 1e-3
"""Shortest time of a kernel: a cycle of any device takes a quarter of it."""
LARGEST_SIZE = 1e9
"""Far above any real tensor extent; a larger number is a slip (a byte count, a time in ns)."""

KINDS: dict[str, str] = {**{kind: kind for kind in OPERATORS if kind != "gemm"}, **_TOLD["aliases"]}
"""What a name in the column `op` means; rows of any other name are linear layers if they have m, n and k."""


IndexArray: TypeAlias = npt.NDArray[np.intp]


def texts(
    frame: pd.DataFrame, column: str, index: IndexArray | slice = slice(None), blank: str = ""
) -> TextArray:
    """A text column of a checked frame at `index`, stripped; `blank` where there is none."""
    if column not in frame:
        return np.full(len(np.arange(len(frame))[index]), blank, dtype=object).astype(str)
    given = frame[column].iloc[index]
    codes, values = given.factorize(use_na_sentinel=True)
    words = np.asarray([*(str(value).strip() or blank for value in values), blank])
    cells: TextArray = words[codes]
    return cells


def dtype_names(frame: pd.DataFrame, kinds: TextArray) -> TextArray:
    """The name of each row's numeric format as given; a family's own where that is blank."""
    names = texts(frame, "dtype")
    for kind in np.unique(kinds[names == ""]):
        if kind in OPERATORS:
            names = np.where((names == "") & (kinds == kind), OPERATORS[str(kind)].BLANK_DTYPE, names)
    return names


def kinds_of(frame: pd.DataFrame) -> npt.NDArray[np.str_]:
    """The operator kind of each row, '' for a name that is none and has no m, n, k.

    The name decides, except that an elementwise name with m, n and k is a linear layer.
    """
    named = frame["op"].map(KINDS).fillna("").to_numpy(dtype=str)
    sized = frame[list(Gemm.COLUMNS)].notna().all(axis=1).to_numpy(dtype=bool)
    kinds: npt.NDArray[np.str_] = np.where(sized & np.isin(named, ("", *ELEMENTWISE_KINDS)), "gemm", named)
    return kinds


def row_numbers(frame: pd.DataFrame, made: type[Operator], rows: IndexArray) -> dict[str, FloatArray]:
    """Sizes of one family's rows by column; what a family leaves out where it is blank is filled in."""
    numbers = {name: frame[name].to_numpy(dtype=np.float64)[rows] for name in made.row_numbers()}
    for name, blank in made.OPTIONAL.items():
        given = frame[name].to_numpy(dtype=np.float64)[rows] if name in frame else np.full(rows.size, blank)
        numbers[name] = np.where(np.isnan(given), blank, given)
    return numbers
