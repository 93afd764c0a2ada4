"""Fits dispatch and combination of tokens (`latency.dispatch`) to measured rows of one GPU and backend.

Whether a copy goes to each rank or to each expert is tried, the rest found by least squares. Held-out errors
leave out whole groups of the ranks and the width of a token, or of tokens where there is one group.
"""

from __future__ import annotations

import msgspec

from medusa_sim.arrays import as_float
from medusa_sim.lab.calibrate.fit import UNFITTED, Law
from medusa_sim.lab.calibrate.kind_rows import Rows, require_rows
from medusa_sim.lab.calibrate.starts import Bounds
from medusa_sim.latency.dispatch import dispatch_time
from medusa_sim.operators.dispatch import ONE_NODE, Dispatch
from medusa_sim.specs.fitted_links import DispatchKernel
from medusa_sim.specs.gpu import Gpu

_BOUNDS = Bounds.of("dispatch")
_FAR_BOUNDS = Bounds.of("far_dispatch")
_BAND_ROWS = 10
_FIT_ROWS = 1500
_EVALUATIONS = 60

_Law = Law[Dispatch, DispatchKernel]


def fit_dispatch(rows: Rows[Dispatch], gpu: Gpu, *, source: str, name: str = "") -> DispatchKernel:
    """Kernel parameters of measured rows, with `fit` filled in.

    name: of the library's backend. Deterministic, seconds. Raises DataError for fewer than 20 rows.
    """
    require_rows(rows, source)
    law: _Law = Law(gpu, dispatch_time)
    started = [_refined(_start(name, per_expert=each), rows, law) for each in (False, True)]
    return law.with_fit(
        law.best(started, rows),
        rows,
        lambda kernel, part: _refined(kernel, part, law),
        source=source,
        least_rows=_BAND_ROWS,
    )


def _start(name: str, *, per_expert: bool) -> DispatchKernel:
    return DispatchKernel(**_BOUNDS.starts, per_expert=per_expert, fit=UNFITTED, name=name)


def _refined(kernel: DispatchKernel, rows: Rows[Dispatch], law: _Law) -> DispatchKernel:
    """Ranks of one node first, then what several nodes add to it."""
    is_far = as_float(rows.operator.nodes) > ONE_NODE
    if is_far.all() or not is_far.any():
        return _fitted(kernel, rows, law, _BOUNDS)
    kernel = _fitted(kernel, rows.where(~is_far), law, _BOUNDS)
    started = {name: getattr(kernel, name) or start for name, start in _FAR_BOUNDS.starts.items()}
    return _fitted(msgspec.structs.replace(kernel, **started), rows.where(is_far), law, _FAR_BOUNDS)


def _fitted(kernel: DispatchKernel, rows: Rows[Dispatch], law: _Law, bounds: Bounds) -> DispatchKernel:
    """Least squares on log time over the parameters that the rows can tell apart."""
    part = rows.thin(_FIT_ROWS, "tokens", "sms", "hidden")
    limits = dict(bounds.limits)
    for size, name in (("ranks", "rank_us"), ("hidden", "width_us"), ("topk", "spread_us")):
        if name in limits and part.labels(size).max() == 0:
            del limits[name]
            kernel = msgspec.structs.replace(kernel, **{name: 0.0})
    return law.refined(kernel, limits, part, max_nfev=_EVALUATIONS)
