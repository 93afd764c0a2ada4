"""Predicted against measured: errors by operator, dtype and size."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from medusa_sim.arrays import BoolArray, FloatArray, IntArray
from medusa_sim.gpus.gpu import Gpu
from medusa_sim.lab.calibrate.errors import growth_mape, mape, ratio_mape
from medusa_sim.operators.attention import Attention
from medusa_sim.operators.columns import texts
from medusa_sim.operators.operator import Operator
from medusa_sim.operators.table import operators_of
from medusa_sim.step.rows import CHOSEN_COLUMN

if TYPE_CHECKING:
    import pandas as pd


SIZE_EDGES = (16, 64, 128, 512)
"""Upper ends of the ranges of m that are reported; 129..512 is the hard one."""
DECIDING_MAX = 512
_OTHER_UNITS = {"seconds": 1e6, "milliseconds": 1e3, "nanoseconds": 1e-3}
"""Units that times are in by mistake, in microseconds."""
_TOLD_MORE = ("tokens", "hidden", "inter", "experts", "topk", "tp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Errors of one group of rows, as fractions of the measured time.

    mean, median, p90, worst: of |predicted / measured - 1|. bias: mean of predicted / measured - 1.
    ratio: mean error of T(m) / T(1) over shapes with a row at m = 1 for linear layers, of T(2, 4, 8 times the
    tokens) / T for layers of experts (NaN elsewhere). within_band: share of measurements inside
    low_us..high_us (0.8 is what the band promises). kernels: place of the fitted kernel, where rows name an
    engine or a kernel.
    """

    op: str
    dtype: str
    size: str
    rows: int
    mean: float
    median: float
    p90: float
    worst: float
    worst_at: str
    bias: float
    ratio: float
    within_band: float
    kernels: str = ""


def scores(frame: pd.DataFrame, gpu: Gpu) -> list[Score]:
    """Scores of rows with time_us and predictions, for each operator, dtype and range of sizes, then all.

    Rows that were predicted by different kernels (CHOSEN_COLUMN) are told apart.
    """
    judged: list[Score] = []
    for index, operator in operators_of(frame, by=(CHOSEN_COLUMN,)):
        rows = frame.iloc[index]
        name = "linear" if operator.kind == "gemm" else operator.kind
        place = str(texts(frame, CHOSEN_COLUMN, index[:1])[0])
        for label, keep in _ranges(operator, gpu):
            if keep.any():
                score = _score(rows[keep], name, operator.form, label)
                judged.append(replace(score, kernels=place))
    return judged


def unit_meant(frame: pd.DataFrame) -> str:
    """The unit that the times are probably in where it is not microseconds; empty where it is."""
    ratio = float(np.median(frame["predicted_us"] / frame["time_us"]))
    return next((unit for unit, us in _OTHER_UNITS.items() if 0.2 < ratio / us < 5.0), "")


def _ranges(operator: Operator, gpu: Gpu) -> list[tuple[str, BoolArray]]:
    """Labels and masks of the sizes that are told apart; the last one is `all`."""
    ranges = _RANGES[operator.FAMILY](operator, gpu) if operator.FAMILY in _RANGES else []
    return [*ranges, ("all", np.ones(np.shape(operator.size), dtype=bool))]


def _kv_ranges(operator: Attention, gpu: Gpu) -> list[tuple[str, BoolArray]]:
    kv = np.asarray(operator.kv_bytes) / gpu.l2_bytes
    return [("KV within L2", kv <= 1.0), ("KV to 2 x L2", (kv > 1.0) & (kv <= 2.0)), ("KV beyond", kv > 2.0)]


def _deciding_range(operator: Operator, _: Gpu) -> list[tuple[str, BoolArray]]:
    return [(f"m <= {DECIDING_MAX}", operator.size <= DECIDING_MAX)]


def _m_ranges(operator: Operator, gpu: Gpu) -> list[tuple[str, BoolArray]]:
    m, edges = operator.size, (0, *SIZE_EDGES)
    ranges = [(f"m {low + 1}..{high}", (m > low) & (m <= high)) for low, high in itertools.pairwise(edges)]
    return [*ranges, (f"m > {edges[-1]}", m > edges[-1]), *_deciding_range(operator, gpu)]


def _token_ranges(operator: Operator, _: Gpu) -> list[tuple[str, BoolArray]]:
    return [(f"tokens <= {edge}", operator.size <= edge) for edge in (SIZE_EDGES[1], DECIDING_MAX)]


_RANGES: dict[str, Callable[[Any, Gpu], list[tuple[str, BoolArray]]]] = {
    "gemm": _m_ranges,
    "attention": _kv_ranges,
    "elementwise": _deciding_range,
    "moe": _token_ranges,
}
"""Ranges of size by operator family; a family that is not here is scored as a whole."""


def _score(rows: pd.DataFrame, op: str, dtype: str, size: str) -> Score:
    measured = rows["time_us"].to_numpy(dtype=np.float64)
    predicted = rows["predicted_us"].to_numpy(dtype=np.float64)
    error = np.abs(predicted / measured - 1.0)
    worst = int(np.argmax(error))
    inside = (measured >= rows["low_us"].to_numpy()) & (measured <= rows["high_us"].to_numpy())
    return Score(
        op=op,
        dtype=dtype,
        size=size,
        rows=len(rows),
        mean=mape(predicted, measured),
        median=float(np.median(error)),
        p90=float(np.quantile(error, 0.9)),
        worst=float(error[worst]),
        worst_at=_shape(rows.iloc[worst]),
        bias=float(np.mean(predicted / measured - 1.0)),
        ratio=_RATIOS[op](rows, predicted, measured) if op in _RATIOS else float("nan"),
        within_band=float(np.mean(inside)),
    )


def _ratio(rows: pd.DataFrame, predicted: FloatArray, measured: FloatArray) -> float:
    m = rows["m"].to_numpy(dtype=np.int64)
    shape = rows["n"].to_numpy(dtype=np.int64) * (1 << 32) + rows["k"].to_numpy(dtype=np.int64)
    return ratio_mape(predicted, measured, m, shape)


def _growth(rows: pd.DataFrame, predicted: FloatArray, measured: FloatArray) -> float:
    layer = [name for name in _LAYER_OF_EXPERTS if name in rows]
    groups = rows.groupby(layer, dropna=False, observed=True).ngroup()
    shape: IntArray = np.asarray(groups, dtype=np.int64)
    return growth_mape(predicted, measured, rows["tokens"].to_numpy(dtype=np.int64), shape)


_LAYER_OF_EXPERTS = ("hidden", "inter", "experts", "topk", "tp", "ep", "distribution", "engine", "kernel")
_RATIOS: dict[str, Callable[[pd.DataFrame, FloatArray, FloatArray], float]] = {
    "linear": _ratio,
    "moe": _growth,
}


def _shape(row: pd.Series[float]) -> str:
    """The sizes of a row and both times: `m 136, n 4096, k 11008: 87 for 120 us`."""
    import pandas as pd

    columns = ("m", "n", "k", "batch", "q_len", "kv_len", "heads", "kv_heads", *_TOLD_MORE)
    sizes = ", ".join(f"{c} {int(row[c])}" for c in columns if c in row and not pd.isna(row[c]))
    return f"{sizes}: {row['predicted_us']:.4g} for {row['time_us']:.4g} us"
