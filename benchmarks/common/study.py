"""What studies share: measured rows, groups held out of a refit, mean (bias; worst), bands, Markdown tables.

The rows are not part of this project (CONTRIBUTING.md): they lie in $MEDUSA_SIM_DATA, else in ../shared/data
beside the checkout.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import brentq

from common.script import ROOT
from medusa_sim.arrays import FloatArray
from medusa_sim.lab.calibrate.rows import Rows
from medusa_sim.latency.operator_time import OperatorTime
from medusa_sim.report.table import TextTable, markdown

PROMISED = 0.8
"""Share of the rows that a band is to hold."""
GPU_OF_ROWS = {
    "a100_sxm": "a100-80gb-sxm",
    "h100_sxm": "h100-sxm",
    "h200_sxm": "h200-sxm",
    "b200_sxm": "b200",
    "gb200": "gb200",
    "l40s": "l40s",
    "rtx_pro_6000_server": "rtx-pro-6000",
}
"""`gpu` of rows under moe_tp -> hardware file."""


def data_folder() -> Path:
    """Where measured rows lie."""
    return Path(os.environ.get("MEDUSA_SIM_DATA") or ROOT.parent / "shared" / "data")


def measured(name: str) -> Path:
    """A file or folder of measured rows; where it is not there, the script ends with a line that says so."""
    path = data_folder() / name
    if not path.exists():
        sys.exit(
            f"no rows at {path}: they are not part of this project (CONTRIBUTING.md); give the folder that "
            "holds them in MEDUSA_SIM_DATA"
        )
    return path


def is_here(name: str) -> bool:
    """Whether a file or folder of measured rows is there."""
    return (data_folder() / name).exists()


def measured_rows(name: str, **options: Any) -> pd.DataFrame:
    """The rows of NAME.csv in the folder of engines. options: of `pandas.read_csv`."""
    rows: pd.DataFrame = pd.read_csv(measured(f"engines/{name}.csv"), **options)
    return rows


def named_rows(table: pd.DataFrame) -> Iterator[Any]:
    """Rows as named tuples; only the file knows the types of their columns."""
    return iter(table.itertuples())


def table(headers: str, words: int, rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; headers: divided by `|`; the first `words` columns stand left."""
    names = tuple(header.strip() for header in headers.split("|"))
    cells = tuple(tuple(map(str, row)) for row in rows)
    return markdown(TextTable(names, cells, tuple(i >= words for i in range(len(names)))))


def mean_bias_worst(errors: Any, digits: int = 1) -> str:
    """Relative errors as `mean (bias; worst)` in per cent."""
    percent = 100.0 * np.asarray(errors, dtype=np.float64)
    worst = percent[int(np.argmax(np.abs(percent)))]
    return f"{np.abs(percent).mean():.{digits}f} ({percent.mean():+.{digits}f}; {worst:+.{digits}f})"


def left_out(groups: Any, refit: Callable[[Any], Any], predict: Callable[[Any, Any], Any]) -> FloatArray:
    """Every row predicted by a fit without its group.

    groups: the group of each row, shape (rows,). refit: a fit to the rows that a mask keeps. predict: that
    fit on the rows of a mask, one number each.
    """
    names = np.asarray(groups)
    found = np.empty(names.size)
    for group in dict.fromkeys(names.tolist()):
        own = names == group
        found[own] = predict(refit(~own), own)
    return found


def left_out_us(
    rows: Rows[Any], groups: Any, refit: Callable[[Rows[Any]], Any], time: Callable[[Any, Any], OperatorTime]
) -> FloatArray:
    """Microseconds of every row by a kernel that was fitted without its group; time: (kernel, operator)."""
    return left_out(
        groups,
        lambda keep: refit(rows.where(keep)),
        lambda kernel, own: time(kernel, rows.where(own).operator).time_us,
    )


@dataclass(frozen=True, slots=True)
class Beside:
    """Rows beside the predictions of a kernel: measured / predicted, and the ends of its band likewise."""

    ratio: FloatArray
    low: FloatArray
    high: FloatArray

    @property
    def errors(self) -> FloatArray:
        """Relative errors of the prediction."""
        return 1.0 / self.ratio - 1.0

    @property
    def error(self) -> float:
        """Their mean size."""
        return float(np.mean(np.abs(self.errors)))

    def coverage(self, more: float = 0.0) -> float:
        """Share of the rows in the band, `more` added to its half-width (of the logarithm) in quadrature."""
        half = np.hypot(0.5 * np.log(self.high / self.low), more)
        return float(np.mean(np.abs(np.log(self.ratio / np.sqrt(self.low * self.high))) <= half))


def width_to_add(found: Sequence[Beside]) -> float:
    """What bands need more, in quadrature, to hold PROMISED of the rows on average; 0 where they do."""
    if np.mean([each.coverage() for each in found]) >= PROMISED:
        return 0.0
    return float(brentq(lambda x: np.mean([each.coverage(x) for each in found]) - PROMISED, 0.0, 2.0))
