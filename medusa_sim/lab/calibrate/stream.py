"""Fits what `medusa_sim.latency.stream` times to measured rows of one GPU.

Every class of bytes, FLOPs and steps that the rows tell apart gets a coefficient, by least squares. Held-out
errors leave out whole groups: numbers of heads, or of tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from medusa_sim.arrays import FloatArray, as_float
from medusa_sim.gpus.gpu import Gpu
from medusa_sim.gpus.kernels import StreamKernel
from medusa_sim.lab.calibrate.driver import UNFITTED, Budget, FitDriver, warm
from medusa_sim.lab.calibrate.rows import Rows, require_rows
from medusa_sim.lab.calibrate.search import least_log_errors, soft_cost
from medusa_sim.lab.calibrate.starts import Triples, starts
from medusa_sim.latency.stream import Terms, joined_us, parts_us, stream_time, terms_of
from medusa_sim.operators.operator import CONTEXT
from medusa_sim.operators.recurrent import CONVOLUTION, Recurrent
from medusa_sim.operators.stream import Stream


class _Start(NamedTuple):
    """Where a search begins."""

    scale: float
    """Coefficients of work and steps, in units of the starts of their limits."""
    ramp: float
    """In units of the shortest row, as `host` is; 0: as `starts.toml` has it."""
    host: float
    norm: float
    l2_fill: float


_STARTS = (
    _Start(1.0, 0.0, 0.0, 2.0, 0.8),
    _Start(0.03, 0.8, 0.0, 2.0, 0.8),
    _Start(1.0, 0.1, 0.95, 1.1, 0.8),
    _Start(0.1, 0.1, 0.95, 1.1, 0.8),
    _Start(0.1, 0.3, 0.0, 1.5, 0.15),
)
"""The best fit is kept."""
_Limit = tuple[float, float, float]
"""Start, lowest and highest value."""
_OWN = starts("bounds", Triples)["stream"]
"""Of the kernel's own parameters; below of a coefficient of bytes, of FLOPs and of steps."""
_LOAD: _Limit = (1.2, 1e-3, 100.0)
_WORK: _Limit = (3.0, 1e-2, 3000.0)
_STEP: _Limit = (0.1, 1e-6, 5000.0)
_HIDDEN: _Limit = (0.2, 1e-3, 0.4)
"""Of bytes and FLOPs of a prompt's convolution where memory is faster than multiprocessors ask, no matter
whose, so that another GPU with as many has it as long."""
_USUAL = {"norm": 1.2, "l2_ratio": 8.0, "l2_fill": 0.5, "l2_sharpness": 12.0, "loads": 1.5, "work": 1.8}
"""What rows of many kernels agree on: one that they cannot tell stays near it, if every kernel has it."""
_HOLD = 0.3
"""Logarithms of rows' errors, together, that one of a parameter's has to be worth."""
_NORM = list(_OWN).index("norm")
_NEAR_SUM = 1.1
"""A search that begins with such a norm, near a sum, stays near one, as eager rows ask for, else it may get
lost."""
_HIDDEN_COST = 2.5
"""Times the objective up to which `_HIDDEN` is believed: kernels that move other bytes fit far worse."""
_OTHER_COST = 0.8
"""Times the objective from which on `Stream.ALTERNATIVE` classes are believed."""
_ASKED_BYTES_PER_S = 20e9
"""Bytes a second that one multiprocessor asks for: 17 to 19 GB/s on Hopper and Blackwell."""
_GRAPH_TOKENS = (256, 512)
"""Where an engine's graphs may end."""
_BUDGET = Budget(fit_rows=600, evaluations=100, band_rows=20, folds=5)
UNSEEN = {"dsa": 1.5, "hca": 1.25}
"""By kind (others 1), over the number of groups held out: how much wider bands are for one that no fit saw.

Source: `python benchmarks/kernels.py left-out mixers`, for 75 to 85 % of the rows of each operator.
"""


def fit_stream(rows: Rows[Stream], gpu: Gpu, *, source: str) -> StreamKernel:
    """Kernel parameters of measured rows, with `fit` filled in.

    Deterministic, seconds. Raises DataError for fewer than 20 rows.
    """
    require_rows(rows, source)
    driver: FitDriver[Stream, StreamKernel] = FitDriver(gpu, warm(stream_time), _BUDGET)
    return driver.with_fit(
        _search(rows, gpu),
        rows,
        partial(refitted_stream, gpu=gpu),
        source=source,
        unseen=UNSEEN.get(rows.operator.kind, 1.0),
    )


def refitted_stream(kernel: StreamKernel, rows: Rows[Any], gpu: Gpu) -> StreamKernel:
    """The kernel with its parameters fitted to other rows, from where they are; its `fit` is left empty."""
    hidden = _may_hide(rows.operator, gpu) and max(kernel.loads.values()) <= _HIDDEN[2]
    others = not _alternatives(rows.operator, gpu).isdisjoint({*kernel.work, *kernel.steps})
    problem = _Problem.of(rows, gpu, hidden=hidden, others=others)
    values = problem.least(problem.values_of(kernel), kernel.graph_tokens, problem.limits(), held=True)
    return problem.kernel(values, kernel.graph_tokens)


def _search(rows: Rows[Any], gpu: Gpu) -> StreamKernel:
    """The better kernel with and without what may hide and what classes stand for others."""
    may_hide, others = _may_hide(rows.operator, gpu), _alternatives(rows.operator, gpu)
    cost, plain = _best_start(_Problem.of(rows, gpu))
    if not (may_hide or others):
        return plain
    other_cost, other = _best_start(_Problem.of(rows, gpu, hidden=may_hide, others=bool(others)))
    return other if other_cost < (_HIDDEN_COST if may_hide else _OTHER_COST) * cost else plain


def _best_start(problem: _Problem) -> tuple[float, StreamKernel]:
    """The least objective of the searches from all starts, and its kernel."""
    graphs = [0, *(each for each in _GRAPH_TOKENS if _is_stepped(problem.rows, each))]
    candidates = []
    for start in _STARTS:
        for graph in graphs:
            limits = problem.limits(near_sum=start.norm <= _NEAR_SUM)
            values = problem.least(problem.begin(start), graph, limits)
            candidates.append((soft_cost(problem.log_errors(values, graph)), values, graph, limits))
    _, values, graph, limits = min(candidates, key=lambda each: each[0])
    values = problem.least(values, graph, limits, held=True)
    return soft_cost(problem.log_errors(values, graph)), problem.kernel(values, graph)


@dataclass(frozen=True, slots=True)
class _Problem:
    """Some rows and the parameters that they tell, as a list of values: the kernel's own (`_OWN`), then a
    coefficient for each class of bytes, FLOPs and steps.
    """

    rows: Rows[Any]
    terms: Terms
    classes: tuple[tuple[str, str, _Limit], ...]
    """Table of the kernel, class in it, limits."""
    usual: dict[int, float]
    """By place: the values that `held` ones stay near."""

    @classmethod
    def of(cls, rows: Rows[Any], gpu: Gpu, *, hidden: bool = False, others: bool = False) -> _Problem:
        """hidden: bytes and FLOPs as far as multiprocessors leave them. others: with `Stream.ALTERNATIVE`."""
        part = rows.thin(_BUDGET.fit_rows, *rows.operator.COLUMNS[::-1])
        terms = terms_of(gpu, part.operator)
        classes = tuple(
            (table, each, _HIDDEN if hidden and table != "steps" else limit)
            for table, limit in (("loads", _LOAD), ("work", _WORK), ("steps", _STEP))
            for each, values in getattr(terms, table).items()
            if np.any(values > 0.0) and (others or each not in part.operator.ALTERNATIVE)
        )
        needed = (not hidden and each not in part.operator.NEEDLESS for _, each, _ in classes)
        told = [*_OWN, *(table if own else "" for (table, _, _), own in zip(classes, needed, strict=True))]
        usual = {place: _USUAL[each] for place, each in enumerate(told) if each in _USUAL}
        return cls(part, terms, classes, usual)

    def kernel(self, values: Sequence[float], graph_tokens: int) -> StreamKernel:
        """The kernel that the values are of, its fit still empty."""
        tables: dict[str, dict[str, float]] = {"loads": {}, "work": {}, "steps": {}}
        for (table, each, _), value in zip(self.classes, values[len(_OWN) :], strict=True):
            tables[table][each] = value
        own = dict(zip(_OWN, values, strict=False))
        return StreamKernel(**own, **tables, graph_tokens=graph_tokens, fit=UNFITTED, name=self.rows.kernel)  # type: ignore[arg-type]

    def values_of(self, kernel: StreamKernel) -> list[float]:
        """The values of a kernel; of a class that it does not know next to nothing."""
        own = [getattr(kernel, name) for name in _OWN]
        return [*own, *(getattr(kernel, table).get(each, _STEP[1]) for table, each, _ in self.classes)]

    def begin(self, start: _Start) -> list[float]:
        """The values of a start."""
        shortest = float(np.min(self.rows.time_us))
        own = {name: limit[0] for name, limit in _OWN.items()}
        own |= {"norm": start.norm, "l2_fill": start.l2_fill}
        own |= {
            name: share * shortest
            for name, share in (("ramp_us", start.ramp), ("host_us", start.host))
            if share * shortest
        }
        rest = [limit[0] * (1.0 if limit is _LOAD else start.scale) for _, _, limit in self.classes]
        return [*own.values(), *rest]

    def limits(self, *, near_sum: bool = False) -> list[tuple[float, float]]:
        """Lowest and highest of each value; near_sum: with a norm that stays near 1."""
        every = (*_OWN.values(), *(limit for _, _, limit in self.classes))
        limits = [(lowest, highest) for _, lowest, highest in every]
        if near_sum:
            limits[_NORM] = (limits[_NORM][0], _NEAR_SUM + 1.0)
        return limits

    def log_errors(self, values: Sequence[float], graph_tokens: int) -> FloatArray:
        """Of the rows, those of kernels that are as they were left in the cache."""
        made = self.kernel(values, graph_tokens)
        time_us = joined_us(made, parts_us(made, self.terms, cold=False), self.terms.tokens)
        return np.log(time_us) - np.log(self.rows.time_us)

    def least(
        self, begin: list[float], graph_tokens: int, limits: list[tuple[float, float]], *, held: bool = False
    ) -> list[float]:
        """The values of the least objective. held: near `_USUAL` where the rows cannot tell."""
        places, usual = list(self.usual), np.array(list(self.usual.values()))

        def errors(values: Sequence[float]) -> FloatArray:
            told = self.log_errors(values, graph_tokens)
            if not held:
                return told
            return np.concatenate([told, _HOLD * np.log(np.asarray(values)[places] / usual)])

        return least_log_errors(begin, limits, errors, max_nfev=_BUDGET.evaluations)


def _alternatives(operator: Stream, gpu: Gpu) -> frozenset[str]:
    """Its classes that may stand for others."""
    return operator.ALTERNATIVE & {*operator.work, *operator.steps(gpu.sms)}


def _may_hide(operator: Stream, gpu: Gpu) -> bool:
    """Whether multiprocessors and not memory may bound it: a prompt's convolution beside fast memory."""
    is_prompt = isinstance(operator, Recurrent) and (operator.part, operator.phase) == (CONVOLUTION, CONTEXT)
    return is_prompt and gpu.bandwidth_bytes_per_s > _ASKED_BYTES_PER_S * gpu.sms


def _is_stepped(rows: Rows[Any], tokens: int) -> bool:
    """Whether the longest row of up to so many tokens is shorter than all that have more."""
    size = as_float(rows.operator.size)
    few = size <= tokens
    return bool(few.any() and not few.all() and rows.time_us[few].max() < rows.time_us[~few].min())
