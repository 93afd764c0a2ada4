"""Fits the elementwise model of `medusa_sim.latency.stream` to measured rows of one GPU and library.

Held-out errors leave out whole row widths n, or blocks of m where there is one width.
"""

from __future__ import annotations

import numpy as np

from medusa_sim.arrays import FloatArray, IntArray
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
from medusa_sim.latency.stream import elementwise_time
from medusa_sim.operators.operator import Elementwise
from medusa_sim.specs.gpu import Gpu
from medusa_sim.specs.kernels import ElementwiseKernel

_BOUNDS: Bounds = {
    "ramp_us": (2.0, 0.1, 40.0),
    "row_ratio": (1.0, 0.02, 50.0),
    "sharing": (0.3, 0.01, 1.0),
    "bandwidth_fraction": (0.8, 0.05, 1.0),
    "l2_ratio": (2.0, 1.0, 12.0),
    "l2_fill": (0.8, 0.2, 3.0),
    "l2_sharpness": (6.0, 1.0, 30.0),
    "serial_row_us": (0.5, 1e-3, 20.0),
}
_ROWS_PER_SM = (1, 2, 4, 8, 16)
_SERIAL_ROWS = 16
"""PyTorch gathers up to 16 indices with one block that loops over them (indexSelectSmallIndex)."""
_BLOCKS = 16
_BAND_ROWS = 20
_SEARCH_ROWS = 400
_FIT_ROWS = 2000
_EVALUATIONS = 40


def fit_elementwise(rows: Rows[Elementwise], gpu: Gpu, *, source: str, **_: object) -> ElementwiseKernel:
    """Kernel parameters of measured rows, with `fit` filled in.

    Deterministic, a few seconds for 5000 rows. Raises DataError for fewer than 20 rows.
    """
    require_rows(rows, source)

    def time_us(kernel: ElementwiseKernel, part: Rows[Elementwise]) -> FloatArray:
        return elementwise_time(gpu, kernel, part.operator, cold=False).time_us

    def refit(kernel: ElementwiseKernel, part: Rows[Elementwise]) -> ElementwiseKernel:
        part = part.thin(_FIT_ROWS, "m", "n")
        log_time = np.log(part.time_us)
        limits = dict(limits_of(_BOUNDS))
        if not kernel.serial_rows:
            del limits["serial_row_us"]
        return refined(
            kernel, limits, lambda trial: np.log(time_us(trial, part)) - log_time, max_nfev=_EVALUATIONS
        )

    subset = rows.thin(_SEARCH_ROWS, "m", "n")
    candidates = [refit(_start(rows.operator, rows_per_sm), subset) for rows_per_sm in _ROWS_PER_SM]
    best = min(candidates, key=lambda each: soft_cost(np.log(time_us(each, subset) / subset.time_us)))
    kernel = refit(best, rows)
    return with_fit(
        kernel,
        rows,
        time_us,
        lambda part: refit(kernel, part),
        source=source,
        groups=_groups(rows),
        least_rows=_BAND_ROWS,
    )


def _groups(rows: Rows[Elementwise]) -> IntArray:
    """What is held out together: a label per n, or per sixteenth of the range of m where n is one."""
    widths = rows.labels("n")
    if widths.max() > 0:
        return widths
    rank = np.argsort(np.argsort(np.asarray(rows.operator.m), kind="stable"), kind="stable")
    return (rank * _BLOCKS // len(rank)).astype(np.int64)


def _start(operator: Elementwise, rows_per_sm: int) -> ElementwiseKernel:
    serial_rows = _SERIAL_ROWS if operator.kind == "embedding" else 0
    return ElementwiseKernel(
        **starts_of(_BOUNDS), rows_per_sm=rows_per_sm, serial_rows=serial_rows, fit=UNFITTED
    )
