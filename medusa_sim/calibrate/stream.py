"""Fits kernels and modules of `medusa_sim.latency.stream` to measured rows of one GPU and kernel.

Every class of bytes, FLOPs and steps that the rows tell apart gets a coefficient, by least squares. Held-out
errors leave out whole groups: numbers of heads, or of tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from medusa_sim.arrays import FloatArray
from medusa_sim.calibrate.fit import (
    UNFITTED,
    Bounds,
    Rows,
    least_log_errors,
    require_rows,
    soft_cost,
    with_fit,
)
from medusa_sim.latency.stream import joined_us, parts_us, stream_time, terms_of
from medusa_sim.operators.stream import Stream
from medusa_sim.specs.gpu import Gpu
from medusa_sim.specs.stream_kernel import StreamKernel

_OWN: Bounds = {
    "ramp_us": (4.0, 0.1, 3000.0),
    "norm": (2.0, 1.0, 20.0),
    "l2_ratio": (3.0, 1.0, 12.0),
    "l2_fill": (0.8, 0.1, 4.0),
    "l2_sharpness": (4.0, 1.0, 20.0),
}
_LOAD = (1.2, 1e-3, 100.0)
_WORK = (3.0, 1e-2, 3000.0)
_STEP = (0.1, 1e-6, 5000.0)
_STARTS = (1.0, 0.03)
"""Where coefficients of work and steps begin, in units of the starts above; the better fit is kept."""
_FIT_ROWS = 250
_BAND_ROWS = 20
_FOLDS = 4
_EVALUATIONS = 30


def fit_stream(rows: Rows[Stream], gpu: Gpu, *, source: str, name: str = "") -> StreamKernel:
    """Kernel parameters of measured rows, with `fit` filled in.

    name: of the kernel in its library. Deterministic, seconds. Raises DataError for fewer than 20 rows.
    """
    require_rows(rows, source)
    kernel = fitted_stream(rows, gpu, name=name)
    return with_fit(
        kernel,
        rows,
        lambda each, part: stream_time(gpu, each, part.operator, cold=False).time_us,
        lambda part: fitted_stream(part, gpu, name=name, start=kernel),
        source=source,
        folds=_FOLDS,
        least_rows=_BAND_ROWS,
    )


def fitted_stream(
    rows: Rows[Any], gpu: Gpu, *, name: str = "", start: StreamKernel | None = None
) -> StreamKernel:
    """Kernel parameters of rows, whose `fit` is left empty. start: where to begin, instead of the search."""
    part = rows.thin(_FIT_ROWS, *rows.operator.COLUMNS[::-1])
    terms, log_time = terms_of(gpu, part.operator), np.log(part.time_us)
    classes = [
        (table, each, bounds)
        for table, bounds in (("loads", _LOAD), ("work", _WORK), ("steps", _STEP))
        for each, values in getattr(terms, table).items()
        if np.any(values > 0.0)
    ]
    bounds = [*_OWN.values(), *(bounds for _, _, bounds in classes)]

    def kernel(values: Sequence[float]) -> StreamKernel:
        tables: dict[str, dict[str, float]] = {"loads": {}, "work": {}, "steps": {}}
        for (table, each, _), value in zip(classes, values[len(_OWN) :], strict=True):
            tables[table][each] = value
        own = dict(zip(_OWN, values, strict=False))
        return StreamKernel(**own, **tables, fit=UNFITTED, name=name)  # type: ignore[arg-type]

    def log_errors(values: Sequence[float]) -> FloatArray:
        made = kernel(values)
        return np.log(joined_us(made, parts_us(made, terms, cold=False))) - log_time

    limits = [(low, high) for _, low, high in bounds]
    found = []
    for begin in [_values(start, classes)] if start else [_begin(part, bounds, scale) for scale in _STARTS]:
        values = least_log_errors(begin, limits, log_errors, max_nfev=_EVALUATIONS)
        found.append((soft_cost(log_errors(values)), values))
    return kernel(min(found, key=lambda each: each[0])[1])


def _begin(rows: Rows[Any], bounds: Sequence[tuple[float, float, float]], scale: float) -> list[float]:
    """Where a search begins: with work and steps, or with little of them and a ramp as long as the rows."""
    first = bounds[0][0] if scale == 1.0 else 0.8 * float(np.min(rows.time_us))
    rest = [each[0] * (1.0 if each is _LOAD else scale) for each in bounds[len(_OWN) :]]
    return [first, *(each[0] for each in bounds[1 : len(_OWN)]), *rest]


def _values(kernel: StreamKernel, classes: Sequence[tuple[str, str, object]]) -> list[float]:
    """The parameters of a kernel; of a class that it does not know next to nothing."""
    own = [getattr(kernel, name) for name in _OWN]
    return [*own, *(getattr(kernel, table).get(each, _STEP[1]) for table, each, _ in classes)]
