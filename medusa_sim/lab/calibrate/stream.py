"""Fits what `medusa_sim.latency.stream` times to measured rows of one GPU.

Every class of bytes, FLOPs and steps that the rows tell apart gets a coefficient, by least squares. Held-out
errors leave out whole groups: numbers of heads, or of tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from medusa_sim.arrays import FloatArray, as_float
from medusa_sim.lab.calibrate.fit import UNFITTED, Law, warm
from medusa_sim.lab.calibrate.kind_rows import Rows, require_rows
from medusa_sim.lab.calibrate.search import least_log_errors, soft_cost
from medusa_sim.lab.calibrate.starts import Triples, starts
from medusa_sim.latency.stream import joined_us, parts_us, stream_time, terms_of
from medusa_sim.operators.operator import CONTEXT
from medusa_sim.operators.recurrent import CONVOLUTION, Recurrent
from medusa_sim.operators.stream import Stream
from medusa_sim.specs.gpu import Gpu
from medusa_sim.specs.kernels import StreamKernel

_OWN = starts("bounds", Triples)["stream"]
_LOAD = (1.2, 1e-3, 100.0)
_WORK = (3.0, 1e-2, 3000.0)
_STEP = (0.1, 1e-6, 5000.0)
_STARTS = (
    (1.0, 0.0, 0.0, 2.0, 0.8),
    (0.03, 0.8, 0.0, 2.0, 0.8),
    (1.0, 0.1, 0.95, 1.1, 0.8),
    (0.1, 0.1, 0.95, 1.1, 0.8),
    (0.1, 0.3, 0.0, 1.5, 0.15),
)
"""Where a search begins: coefficients of work and steps in units of the starts above; ramp and host in units
of the shortest row (0: as above); norm; l2_fill. The best fit is kept.
"""
_USUAL = {"norm": 1.2, "l2_ratio": 8.0, "l2_fill": 0.5, "l2_sharpness": 12.0, "loads": 1.5, "work": 1.8}
"""What rows of many kernels agree on: one that they cannot tell stays near it, if every kernel has it."""
_HOLD = 0.3
"""Logarithms of rows' errors, together, that one of a parameter's has to be worth."""
_NORM, _NEAR_SUM = 3, 1.1
"""Place of the norm; what begins near a sum stays near one, as eager rows ask for, else it may get lost."""
_HIDDEN = (0.2, 1e-3, 0.4)
"""Coefficients of bytes and FLOPs of a prompt's convolution where memory is faster than multiprocessors ask,
no matter whose, so that another GPU with as many has it as long."""
_HIDDEN_COST = 2.5
"""Times the objective up to which that is believed: kernels that move other bytes fit far worse."""
_OTHER_COST = 0.8
"""Times the objective from which on `Stream.ALTERNATIVE` classes are believed."""
_ASKED_BYTES_PER_S = 20e9
"""Bytes a second that one multiprocessor asks for: 17 to 19 GB/s on Hopper and Blackwell."""
_GRAPH_TOKENS = (256, 512)
"""Where an engine's graphs may end."""
_FIT_ROWS = 600
_BAND_ROWS = 20
UNSEEN = {"dsa": 1.5, "hca": 1.25}
"""By kind (others 1), over the number of groups held out: how much wider bands are for one that no fit saw.

Source: `python benchmarks/kernels.py left-out mixers`, for 75 to 85 % of the rows of each operator.
"""
_FOLDS = 5
_EVALUATIONS = 100


def fit_stream(rows: Rows[Stream], gpu: Gpu, *, source: str, name: str = "") -> StreamKernel:
    """Kernel parameters of measured rows, with `fit` filled in.

    name: of the kernel in its library. Deterministic, seconds. Raises DataError for fewer than 20 rows.
    """
    require_rows(rows, source)
    kernel = fitted_stream(rows, gpu, name=name)
    law: Law[Stream, StreamKernel] = Law(gpu, warm(stream_time))
    return law.with_fit(
        kernel,
        rows,
        lambda each, part: fitted_stream(part, gpu, name=name, start=each),
        source=source,
        folds=_FOLDS,
        least_rows=_BAND_ROWS,
        unseen=UNSEEN.get(rows.operator.kind, 1.0),
    )


def fitted_stream(
    rows: Rows[Any], gpu: Gpu, *, name: str = "", start: StreamKernel | None = None
) -> StreamKernel:
    """Kernel parameters of rows, whose `fit` is left empty. start: where to begin, instead of the search."""
    may_hide = _may_hide(rows.operator, gpu)
    others = rows.operator.ALTERNATIVE & {*rows.operator.work, *rows.operator.steps(gpu.sms)}
    if start:
        hidden = may_hide and max(start.loads.values()) <= _HIDDEN[2]
        kept = not others.isdisjoint({*start.work, *start.steps})
        return _searched(rows, gpu, name, start, hidden=hidden, others=kept)[1]
    plain = _searched(rows, gpu, name, None)
    if not (may_hide or others):
        return plain[1]
    other = _searched(rows, gpu, name, None, hidden=may_hide, others=bool(others))
    return other[1] if other[0] < (_HIDDEN_COST if may_hide else _OTHER_COST) * plain[0] else plain[1]


def _searched(
    rows: Rows[Any],
    gpu: Gpu,
    name: str,
    start: StreamKernel | None,
    *,
    hidden: bool = False,
    others: bool = False,
) -> tuple[float, StreamKernel]:
    """The objective and the kernel.

    hidden: bytes and FLOPs as far as multiprocessors leave them. others: with `Stream.ALTERNATIVE` classes.
    """
    part = rows.thin(_FIT_ROWS, *rows.operator.COLUMNS[::-1])
    terms, log_time = terms_of(gpu, part.operator), np.log(part.time_us)
    classes = [
        (table, each, _HIDDEN if hidden and table != "steps" else bounds)
        for table, bounds in (("loads", _LOAD), ("work", _WORK), ("steps", _STEP))
        for each, values in getattr(terms, table).items()
        if np.any(values > 0.0) and (others or each not in part.operator.ALTERNATIVE)
    ]
    bounds = [*_OWN.values(), *(bounds for _, _, bounds in classes)]
    needed = (not hidden and each not in part.operator.NEEDLESS for _, each, _ in classes)
    names = [*_OWN, *(table if own else "" for (table, _, _), own in zip(classes, needed, strict=True))]
    held = [place for place, each in enumerate(names) if each in _USUAL]
    usual = np.array([_USUAL[names[place]] for place in held])

    def kernel(values: Sequence[float], graph_tokens: int) -> StreamKernel:
        tables: dict[str, dict[str, float]] = {"loads": {}, "work": {}, "steps": {}}
        for (table, each, _), value in zip(classes, values[len(_OWN) :], strict=True):
            tables[table][each] = value
        own = dict(zip(_OWN, values, strict=False))
        return StreamKernel(**own, **tables, graph_tokens=graph_tokens, fit=UNFITTED, name=name)  # type: ignore[arg-type]

    def log_errors(values: Sequence[float], graph_tokens: int) -> FloatArray:
        made = kernel(values, graph_tokens)
        return np.log(joined_us(made, parts_us(made, terms, cold=False), terms.tokens)) - log_time

    def pulled(values: Sequence[float], graph_tokens: int) -> FloatArray:
        pull = _HOLD * np.log(np.asarray(values)[held] / usual)
        return np.concatenate([log_errors(values, graph_tokens), pull])

    limits = [(low, high) for _, low, high in bounds]
    if start:
        begins = [(_values(start, classes), start.graph_tokens)]
    else:
        graphs = [0, *(each for each in _GRAPH_TOKENS if _is_stepped(part, each))]
        begins = [(_begin(part, bounds, *each), graph) for each in _STARTS for graph in graphs]
    candidates = []
    for begin, graph in begins:
        highest = limits[_NORM][1] if start or begin[_NORM] > _NEAR_SUM else _NEAR_SUM + 1.0
        within = [*limits[:_NORM], (1.0, highest), *limits[_NORM + 1 :]]
        values = begin
        if not start:
            least = partial(log_errors, graph_tokens=graph)
            values = least_log_errors(begin, within, least, max_nfev=_EVALUATIONS)
        candidates.append((soft_cost(log_errors(values, graph)), values, graph, within))
    _, begin, graph, within = min(candidates, key=lambda each: each[0])
    values = least_log_errors(begin, within, partial(pulled, graph_tokens=graph), max_nfev=_EVALUATIONS)
    return soft_cost(log_errors(values, graph)), kernel(values, graph)


def _may_hide(operator: Stream, gpu: Gpu) -> bool:
    """Whether multiprocessors and not memory may bound it: a prompt's convolution beside fast memory."""
    is_prompt = isinstance(operator, Recurrent) and (operator.part, operator.phase) == (CONVOLUTION, CONTEXT)
    return is_prompt and gpu.bandwidth_bytes_per_s > _ASKED_BYTES_PER_S * gpu.sms


def _is_stepped(rows: Rows[Any], tokens: int) -> bool:
    """Whether the longest row of up to so many tokens is shorter than all that have more."""
    size = as_float(rows.operator.size)
    few = size <= tokens
    return bool(few.any() and not few.all() and rows.time_us[few].max() < rows.time_us[~few].min())


def _begin(
    rows: Rows[Any],
    bounds: Sequence[tuple[float, float, float]],
    scale: float,
    ramp: float,
    host: float,
    norm: float,
    l2_fill: float,
) -> list[float]:
    """Where a search begins (`_STARTS`)."""
    shortest = float(np.min(rows.time_us))
    first = [share * shortest or each[0] for share, each in zip((ramp, host), bounds, strict=False)]
    first.append(bounds[len(first)][0])
    rest = [each[0] * (1.0 if each is _LOAD else scale) for each in bounds[len(_OWN) :]]
    l2_ratio, _, l2_sharpness = (each[0] for each in bounds[_NORM + 1 : len(_OWN)])
    return [*first, norm, l2_ratio, l2_fill, l2_sharpness, *rest]


def _values(kernel: StreamKernel, classes: Sequence[tuple[str, str, object]]) -> list[float]:
    """The parameters of a kernel; of a class that it does not know next to nothing."""
    own = [getattr(kernel, name) for name in _OWN]
    return [*own, *(getattr(kernel, table).get(each, _STEP[1]) for table, each, _ in classes)]
