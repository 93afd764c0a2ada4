"""Predicted against measured: errors by operator, dtype and size, and what a wrong choice of count costs.

`step_operators` gives the operators that steps of the decoder are made of: what to measure.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from medusa_sim.acceptance.profile import AcceptanceProfile
from medusa_sim.arrays import FloatArray, IntArray
from medusa_sim.lab.calibrate.errors import growth_mape, mape, ratio_mape
from medusa_sim.lab.validate.comparison import choice_of
from medusa_sim.lab.validate.steps import MASK, decoder_step
from medusa_sim.latency.operator_time import Bound, OperatorTime, Source
from medusa_sim.operators.attention import Attention
from medusa_sim.operators.columns import texts
from medusa_sim.operators.elementwise import Elementwise
from medusa_sim.operators.gemm import Gemm
from medusa_sim.operators.operator import Operator
from medusa_sim.operators.table import operators_of
from medusa_sim.specs.gpu import Gpu
from medusa_sim.specs.model import Model
from medusa_sim.step.rows import CHOSEN_COLUMN

if TYPE_CHECKING:
    import pandas as pd


Mask: TypeAlias = npt.NDArray[np.bool_]

SIZE_EDGES = (16, 64, 128, 512)
"""Upper ends of the ranges of m that are reported; 129..512 is the hard one."""
DECIDING_MAX = 512
REGRET_BATCHES = tuple(range(1, 17))
REGRET_CANDIDATES = (1, 8, *range(16, 129, 8))
_FEWEST_COUNTS = 4
_TOLD_MORE = ("tokens", "hidden", "inter", "experts", "topk", "tp")
_NOT_IN_A_LAYER = ("lm_head", "embed_tokens")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Regret:
    """Speedup given away by choosing the count with predicted times, for one group of linear layers.

    mean, worst: over the batches, as fractions of the attainable speedup; always_64: mean of always
    taking 64 candidates. worst_at: batch, chosen count and best count of the worst case.
    """

    model: str
    cases: int
    mean: float
    worst: float
    worst_at: str
    always_64: float


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


def _ranges(operator: Operator, gpu: Gpu) -> list[tuple[str, Mask]]:
    """Labels and masks of the sizes that are told apart; the last one is `all`."""
    ranges = _RANGES[operator.FAMILY](operator, gpu) if operator.FAMILY in _RANGES else []
    return [*ranges, ("all", np.ones(np.shape(operator.size), dtype=bool))]


def _kv_ranges(operator: Attention, gpu: Gpu) -> list[tuple[str, Mask]]:
    kv = np.asarray(operator.kv_bytes) / gpu.l2_bytes
    return [("KV within L2", kv <= 1.0), ("KV to 2 x L2", (kv > 1.0) & (kv <= 2.0)), ("KV beyond", kv > 2.0)]


def _deciding_range(operator: Operator, _: Gpu) -> list[tuple[str, Mask]]:
    return [(f"m <= {DECIDING_MAX}", operator.size <= DECIDING_MAX)]


def _m_ranges(operator: Operator, gpu: Gpu) -> list[tuple[str, Mask]]:
    m = operator.size
    edges = (0, *SIZE_EDGES)
    ranges = [
        (f"m {lower + 1}..{upper}", (m > lower) & (m <= upper)) for lower, upper in itertools.pairwise(edges)
    ]
    return [*ranges, (f"m > {edges[-1]}", m > edges[-1]), *_deciding_range(operator, gpu)]


def _token_ranges(operator: Operator, _: Gpu) -> list[tuple[str, Mask]]:
    return [(f"tokens <= {edge}", operator.size <= edge) for edge in (SIZE_EDGES[1], DECIDING_MAX)]


_RANGES: dict[str, Callable[[Any, Gpu], list[tuple[str, Mask]]]] = {
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


def regrets(frame: pd.DataFrame, acceptance: AcceptanceProfile) -> list[Regret]:
    """Choice regret of every model whose linear layers were all measured at the same m.

    A model is a value of the column `given_source` (or `model`); a layer's time is the sum over its
    linear layers. Cases are batches 1..16; counts 1, 8, 16..128 by 8 wherever batch x count was measured.
    """
    groups = next((name for name in ("given_source", "model") if name in frame), None)
    linear = frame[frame["m"].notna() & frame["n"].notna() & frame["k"].notna()]
    linear = linear[~linear["op"].isin(_NOT_IN_A_LAYER)]
    if groups is None or linear.empty:
        return []
    by_model = []
    for model, rows in linear.groupby(groups, sort=True):
        if rows["op"].nunique() >= 2:
            by_model += _model_regret(str(model), rows, acceptance)
    return by_model


def _model_regret(model: str, rows: pd.DataFrame, acceptance: AcceptanceProfile) -> list[Regret]:
    measured_at, predicted_at = (
        rows.pivot_table(index="m", columns="op", values=name, aggfunc="median").dropna()
        for name in ("time_us", "predicted_us")
    )
    sizes = measured_at.index.to_numpy(dtype=np.int64)
    measured = measured_at.to_numpy(dtype=np.float64).sum(axis=1)
    predicted = predicted_at.to_numpy(dtype=np.float64).sum(axis=1)
    candidates = np.asarray(REGRET_CANDIDATES, dtype=np.int64)
    tokens = acceptance.tokens_per_step(candidates)
    regret, always, baseline = [], [], []
    for batch in REGRET_BATCHES:
        present = np.isin(batch * candidates, sizes)
        if present.sum() < _FEWEST_COUNTS or not present[0]:
            continue
        at = np.searchsorted(sizes, batch * candidates[present])
        counts, gain = candidates[present].tolist(), tokens[present] / measured[at]
        choice = choice_of(model, batch, counts, gain, tokens[present] / predicted[at])
        regret.append(choice.regret)
        baseline.append(f"batch {batch}: {choice.predicted} for {choice.measured}")
        if 64 in counts:
            always.append(1.0 - float(gain[counts.index(64)] / gain.max()))
    if not regret:
        return []
    worst = int(np.argmax(regret))
    return [
        Regret(
            model=model,
            cases=len(regret),
            mean=float(np.mean(regret)),
            worst=regret[worst],
            worst_at=baseline[worst],
            always_64=float(np.mean(always)) if always else float("nan"),
        )
    ]


@dataclass(frozen=True, slots=True)
class _Asked:
    """A latency model that remembers what it was asked, and takes no time."""

    gpu: Gpu
    operators: list[Operator] = field(default_factory=list)
    name: str = "asked"

    def time(self, operator: Operator) -> OperatorTime:
        self.operators.append(operator)
        nothing = np.zeros(np.broadcast_shapes(*(np.shape(size) for size in operator.sizes.values())))
        return OperatorTime(
            time_us=nothing,
            low_us=nothing,
            high_us=nothing,
            bound=np.full(nothing.shape, Bound.MEMORY, dtype=np.int8),
            source=np.full(nothing.shape, Source.MEASURED, dtype=np.int8),
        )


def step_operators(
    model: Model, gpu: Gpu, cells: Iterable[tuple[int, int, int]], seq_len: int
) -> list[Gemm | Elementwise | Attention]:
    """Each operator of the steps once, sizes whole numbers. cells: (batch, candidates, depth of the tree).

    The mask is left out: it is no operator of an engine, and passes of any width tell its time.
    """
    asked = _Asked(gpu)
    for batch, candidates, depth in cells:
        decoder_step(model, asked, batch, seq_len, candidates, depth)
    distinct: dict[tuple[object, ...], Gemm | Elementwise | Attention] = {}
    for operator in asked.operators:
        if operator.name == MASK or not isinstance(operator, Gemm | Elementwise | Attention):
            continue  # the decoder has no other kinds
        whole = operator.with_columns(**{name: int(size) for name, size in operator.sizes.items()})
        if whole.kind != "gemm":  # a place in a model is no name of a row
            whole = dataclasses.replace(whole, name=whole.kind)
        distinct.setdefault((*whole.key, *whole.axes), whole)
    return list(distinct.values())
