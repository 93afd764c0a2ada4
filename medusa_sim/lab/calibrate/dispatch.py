"""Fits dispatch and combination of tokens (`latency.dispatch`) to measured rows of one GPU and backend.

Whether a copy goes to each rank or to each expert is tried, the rest found by least squares. Held-out errors
leave out whole groups of the ranks and the width of a token, or of tokens where there is one group.
"""

from __future__ import annotations

from functools import partial

from msgspec.structs import replace

from medusa_sim.arrays import as_float
from medusa_sim.gpus.fitted_links import DispatchKernel
from medusa_sim.gpus.gpu import Gpu
from medusa_sim.lab.calibrate.driver import UNFITTED, Budget, FitDriver
from medusa_sim.lab.calibrate.rows import Rows, require_rows
from medusa_sim.lab.calibrate.starts import Bounds
from medusa_sim.latency.dispatch import dispatch_time
from medusa_sim.operators.dispatch import ONE_NODE, Dispatch

_BOUNDS = Bounds.of("dispatch")
_FAR_BOUNDS = Bounds.of("far_dispatch")
_BUDGET = Budget(fit_rows=1500, evaluations=60, band_rows=10)

_Driver = FitDriver[Dispatch, DispatchKernel]


def fit_dispatch(rows: Rows[Dispatch], gpu: Gpu, *, source: str) -> DispatchKernel:
    """Kernel parameters of measured rows, with `fit` filled in.

    Deterministic, seconds. Raises DataError for fewer than 20 rows.
    """
    require_rows(rows, source)
    driver: _Driver = FitDriver(gpu, dispatch_time, _BUDGET)
    started = [_refit(_start(rows.kernel, per_expert=each), rows, driver) for each in (False, True)]
    return driver.with_fit(driver.best(started, rows), rows, partial(_refit, driver=driver), source=source)


def _start(name: str, *, per_expert: bool) -> DispatchKernel:
    return DispatchKernel(**_BOUNDS.starts, per_expert=per_expert, fit=UNFITTED, name=name)


def _refit(kernel: DispatchKernel, rows: Rows[Dispatch], driver: _Driver) -> DispatchKernel:
    """Ranks of one node first, then what several nodes add to it."""
    is_far = as_float(rows.operator.nodes) > ONE_NODE
    if is_far.all() or not is_far.any():
        return _least_squares(kernel, rows, driver, _BOUNDS)
    kernel = _least_squares(kernel, rows.where(~is_far), driver, _BOUNDS)
    started = {name: getattr(kernel, name) or start for name, start in _FAR_BOUNDS.starts.items()}
    return _least_squares(replace(kernel, **started), rows.where(is_far), driver, _FAR_BOUNDS)


def _least_squares(
    kernel: DispatchKernel, rows: Rows[Dispatch], driver: _Driver, bounds: Bounds
) -> DispatchKernel:
    """Least squares on log time over the parameters that the rows can tell apart."""
    part = rows.thin(_BUDGET.fit_rows, "tokens", "sms", "hidden")
    limits = dict(bounds.limits)
    for size, name in (("ranks", "rank_us"), ("hidden", "width_us"), ("topk", "spread_us")):
        if name in limits and part.labels(size).max() == 0:
            del limits[name]
            kernel = replace(kernel, **{name: 0.0})
    return driver.least_squares(kernel, limits, part)
