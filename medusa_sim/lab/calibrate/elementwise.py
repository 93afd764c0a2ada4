"""Fits elementwise kernels (`latency.elementwise`) to measured rows of one GPU and library.

Held-out errors leave out whole row widths n, or blocks of m where there is one width.
"""

from __future__ import annotations

import numpy as np

from medusa_sim.arrays import IntArray
from medusa_sim.gpus.gpu import Gpu
from medusa_sim.gpus.kernels import ElementwiseKernel
from medusa_sim.lab.calibrate.driver import UNFITTED, Budget, FitDriver, warm
from medusa_sim.lab.calibrate.rows import Rows, require_rows
from medusa_sim.lab.calibrate.starts import Bounds
from medusa_sim.latency.elementwise import elementwise_time
from medusa_sim.operators.elementwise import Elementwise

_BOUNDS = Bounds.of("elementwise")
_ROWS_PER_SM = (1, 2, 4, 8, 16)
"""Tried in turn."""
_SERIAL_ROWS = 16
"""PyTorch gathers up to 16 indices with one block that loops over them (indexSelectSmallIndex)."""
_BLOCKS = 16
"""Of m, held out together where rows have one width."""
_BUDGET = Budget(search_rows=400, fit_rows=2000, evaluations=40, band_rows=20)


def fit_elementwise(rows: Rows[Elementwise], gpu: Gpu, *, source: str) -> ElementwiseKernel:
    """Kernel parameters of measured rows, with `fit` filled in.

    Deterministic, a few seconds for 5000 rows. Raises DataError for fewer than 20 rows.
    """
    require_rows(rows, source)
    driver: FitDriver[Elementwise, ElementwiseKernel] = FitDriver(gpu, warm(elementwise_time), _BUDGET)

    def refit(kernel: ElementwiseKernel, part: Rows[Elementwise]) -> ElementwiseKernel:
        limits = dict(_BOUNDS.limits)
        if not kernel.serial_rows:
            del limits["serial_row_us"]
        return driver.least_squares(kernel, limits, part.thin(_BUDGET.fit_rows, "m", "n"))

    subset = rows.thin(_BUDGET.search_rows, "m", "n")
    candidates = [refit(_start(rows.operator, rows_per_sm), subset) for rows_per_sm in _ROWS_PER_SM]
    kernel = refit(driver.best(candidates, subset), rows)
    return driver.with_fit(kernel, rows, refit, source=source, groups=_groups(rows))


def _groups(rows: Rows[Elementwise]) -> IntArray:
    """What is held out together: a label per n, or per sixteenth of the range of m where n is one."""
    widths = rows.labels("n")
    if widths.max() > 0:
        return widths
    rank = np.argsort(np.argsort(np.asarray(rows.operator.m), kind="stable"), kind="stable")
    return (rank * _BLOCKS // len(rank)).astype(np.int64)


def _start(operator: Elementwise, rows_per_sm: int) -> ElementwiseKernel:
    serial_rows = _SERIAL_ROWS if operator.kind == "embedding" else 0
    return ElementwiseKernel(**_BOUNDS.starts, rows_per_sm=rows_per_sm, serial_rows=serial_rows, fit=UNFITTED)
