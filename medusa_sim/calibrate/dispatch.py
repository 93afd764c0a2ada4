"""Fits dispatch and combination of tokens (`medusa_sim.latency.collective`) to measured rows of one GPU and
backend.

Whether a copy goes to each rank or to each expert is tried, the rest found by least squares. Held-out errors
leave out whole groups of the ranks and the width of a token, or of tokens where there is one group.
"""

from __future__ import annotations

import msgspec
import numpy as np

from medusa_sim.arrays import FloatArray, as_float
from medusa_sim.calibrate.fit import (
    UNFITTED,
    Bounds,
    Rows,
    limits_of,
    refined,
    require_rows,
    soft_cost,
    starts_of,
    with_fit,
)
from medusa_sim.latency.collective import dispatch_time
from medusa_sim.operators.collective import ONE_NODE, Dispatch
from medusa_sim.specs.fitted import DispatchKernel
from medusa_sim.specs.gpu import Gpu

_BOUNDS: Bounds = {
    "start_us": (15.0, 0.1, 600.0),
    "width_us": (1.0, 1e-3, 60.0),
    "spread_us": (0.5, 1e-3, 10.0),
    "rank_us": (1.0, 1e-3, 60.0),
    "fill_us": (1.0, 1e-3, 60.0),
    "fill_tokens": (100.0, 1.0, 1000.0),
    "token_us": (0.1, 1e-4, 20.0),
    "own_us": (0.1, 1e-4, 20.0),
    "copy_us": (0.1, 1e-4, 20.0),
    "link_fraction": (0.5, 0.02, 1000.0),
    "norm": (3.0, 1.0, 20.0),
}
_FAR: Bounds = {
    "far_us": (10.0, 0.1, 200.0),
    "far_fraction": (0.1, 0.005, 1.0),
    "far_growth": (1.0, 0.05, 4.0),
}
_BAND_ROWS = 10
_FIT_ROWS = 1500
_EVALUATIONS = 60


def fit_dispatch(rows: Rows[Dispatch], gpu: Gpu, *, source: str, name: str = "") -> DispatchKernel:
    """Kernel parameters of measured rows, with `fit` filled in.

    name: of the library's backend. Deterministic, seconds. Raises DataError for fewer than 20 rows.
    """
    require_rows(rows, source)
    started = [_refined(_start(name, per_expert=each), rows, gpu) for each in (False, True)]
    kernel = min(started, key=lambda each: soft_cost(np.log(_time_us(each, rows, gpu) / rows.time_us)))
    return with_fit(
        kernel,
        rows,
        lambda each, part: _time_us(each, part, gpu),
        lambda part: _refined(kernel, part, gpu),
        source=source,
        least_rows=_BAND_ROWS,
    )


def _start(name: str, *, per_expert: bool) -> DispatchKernel:
    return DispatchKernel(**starts_of(_BOUNDS), per_expert=per_expert, fit=UNFITTED, name=name)


def _refined(kernel: DispatchKernel, rows: Rows[Dispatch], gpu: Gpu) -> DispatchKernel:
    """Ranks of one node first, then what several nodes add to it."""
    is_far = as_float(rows.operator.nodes) > ONE_NODE
    if is_far.all() or not is_far.any():
        return _fitted(kernel, rows, gpu, _BOUNDS)
    kernel = _fitted(kernel, rows.where(~is_far), gpu, _BOUNDS)
    started = {name: getattr(kernel, name) or start for name, start in starts_of(_FAR).items()}
    return _fitted(msgspec.structs.replace(kernel, **started), rows.where(is_far), gpu, _FAR)


def _fitted(kernel: DispatchKernel, rows: Rows[Dispatch], gpu: Gpu, bounds: Bounds) -> DispatchKernel:
    """Least squares on log time over the parameters that the rows can tell apart."""
    part = rows.thin(_FIT_ROWS, "tokens", "sms", "hidden")
    log_time = np.log(part.time_us)
    limits = dict(limits_of(bounds))
    for size, name in (("ranks", "rank_us"), ("hidden", "width_us"), ("topk", "spread_us")):
        if name in limits and part.labels(size).max() == 0:
            del limits[name]
            kernel = msgspec.structs.replace(kernel, **{name: 0.0})
    return refined(
        kernel,
        limits,
        lambda trial: np.log(_time_us(trial, part, gpu)) - log_time,
        max_nfev=_EVALUATIONS,
    )


def _time_us(kernel: DispatchKernel, rows: Rows[Dispatch], gpu: Gpu) -> FloatArray:
    return dispatch_time(gpu, kernel, rows.operator).time_us
