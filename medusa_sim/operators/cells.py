"""Cells of a table of operators: texts, kinds, formats and sizes of its rows as arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from medusa_sim.arrays import FloatArray
from medusa_sim.operators.columns import KINDS
from medusa_sim.operators.kinds import OPERATORS
from medusa_sim.operators.operator import ELEMENTWISE_KINDS, Gemm, Operator, TextArray

if TYPE_CHECKING:
    import pandas as pd

IndexArray: TypeAlias = npt.NDArray[np.intp]


def texts(
    frame: pd.DataFrame, column: str, index: IndexArray | slice = slice(None), blank: str = ""
) -> TextArray:
    """A text column of a checked frame at `index`, stripped; `blank` where there is none."""
    if column not in frame:
        return np.full(len(np.arange(len(frame))[index]), blank, dtype=object).astype(str)
    given = frame[column].iloc[index]
    codes, values = given.factorize(use_na_sentinel=True)
    told = np.asarray([*(str(value).strip() or blank for value in values), blank])
    found: TextArray = told[codes]
    return found


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
