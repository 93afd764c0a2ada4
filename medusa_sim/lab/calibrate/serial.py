"""Fits the kernels of a CPU (`medusa_sim.latency.serial`) to measured rows.

Where a library changes its kernel with m is found by search over the measured m; the rest by least squares.
Held-out errors leave out whole weight shapes (n, k), or groups of attention shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from medusa_sim.arrays import FloatArray, as_float
from medusa_sim.errors import DataError
from medusa_sim.gpus.gpu import Gpu
from medusa_sim.gpus.kernels import SerialAttention, SerialGemm, SerialLine
from medusa_sim.lab.calibrate.driver import UNFITTED, Budget, FitDriver, KernelT
from medusa_sim.lab.calibrate.gemm import merged_repeats
from medusa_sim.lab.calibrate.rows import OperatorT, Rows, require_rows
from medusa_sim.lab.calibrate.search import Limits, least_squares
from medusa_sim.lab.calibrate.starts import Bounds
from medusa_sim.lab.measure.shapes import LEAST_ROWS
from medusa_sim.latency.serial import serial_attention_time, serial_gemm_time
from medusa_sim.operators.attention import Attention
from medusa_sim.operators.gemm import Gemm
from medusa_sim.units import MIB

_RATES = Bounds.of("serial_rates")
_GEMM = Bounds.of("serial_gemm")
_ATTENTION = Bounds.of("serial_attention")
_FEW_ROWS = 32
"""Kernels for few rows end below this."""
_CACHED_BYTES = (1.0 * MIB, 2.0 * MIB, 4.0 * MIB, 8.0 * MIB, 16.0 * MIB, 32.0 * MIB)
"""Sizes of the cache that are tried."""
_CACHE_GAIN = 0.95
"""What a cache must bring to be kept: a twentieth of the objective."""
_MOST_EDGES = 2
"""Numbers of rows at which a library changes its kernel."""
_BUDGET = Budget(evaluations=200)
_ATTENTION_BUDGET = Budget(evaluations=200, band_rows=LEAST_ROWS)
_MARGIN, _SLACK = 1e-9, 1e-6
"""A ratio of the cache that begins at its lowest value, 1, stays there where no row tells it."""


def fit_serial_gemm(rows: Rows[Gemm], gpu: Gpu, *, source: str) -> SerialGemm:
    """Linear layers of a CPU, with `fit` filled in. Deterministic, some seconds.

    Raises DataError for fewer than two weight shapes or 20 rows.
    """
    rows = merged_repeats(rows)
    shapes = rows.labels("n", "k")
    if shapes.max() < 1 or len(rows.time_us) < LEAST_ROWS:
        raise DataError(
            f"{source}: {len(rows.time_us)} rows of {shapes.max() + 1} weight shapes (n, k); "
            f"a GEMM fit needs {LEAST_ROWS} rows and two shapes"
        )

    driver = FitDriver(gpu, serial_gemm_time, _BUDGET)

    def refit(kernel: SerialGemm, part: Rows[Gemm]) -> SerialGemm:
        lines = [_RATES.at(f"ranges.{place}") for place in range(len(kernel.ranges))]
        return _least_squares(kernel, [_GEMM.limits, *lines], part, driver)

    few = [int(m) for m in np.unique(as_float(rows.operator.m)) if m < _FEW_ROWS]
    edges = [pair for count in range(_MOST_EDGES + 1) for pair in combinations(few, count)]
    kernel = driver.best([refit(_gemm_start(ends), rows) for ends in edges], rows)
    return driver.with_fit(kernel, rows, refit, source=source)


def _gemm_start(ends: tuple[int, ...]) -> SerialGemm:
    ranges = tuple(_line(_RATES, end) for end in (*ends, 0))
    return SerialGemm(**_GEMM.starts, ranges=ranges, fit=UNFITTED)


def fit_serial_attention(rows: Rows[Attention], gpu: Gpu, *, source: str) -> SerialAttention:
    """A CPU's fused attention of one kind, with `fit` filled in.

    Deterministic, some seconds. Raises DataError for fewer than 20 rows.
    """
    require_rows(rows, source)

    driver = FitDriver(gpu, serial_attention_time, _ATTENTION_BUDGET)

    def refit(kernel: SerialAttention, part: Rows[Attention]) -> SerialAttention:
        return _least_squares(kernel, [_ATTENTION.limits, _RATES.at("few"), _RATES.at("many")], part, driver)

    kernel = refit(_attention_start(0.0), rows)
    cached = driver.best([refit(_attention_start(size), rows) for size in _CACHED_BYTES], rows)
    if driver.cost(cached, rows) < _CACHE_GAIN * driver.cost(kernel, rows):
        kernel = cached
    return driver.with_fit(kernel, rows, refit, source=source)


def _attention_start(cached_bytes: float) -> SerialAttention:
    few, many = (_line(Bounds.of(f"serial_{kind}")) for kind in ("few", "many"))
    return SerialAttention(**_ATTENTION.starts, few=few, many=many, cached_bytes=cached_bytes, fit=UNFITTED)


def _line(bounds: Bounds, m_max: int = 0) -> SerialLine:
    return SerialLine(**bounds.starts, m_max=m_max)


def _least_squares(
    kernel: KernelT, limits: Sequence[Limits], rows: Rows[OperatorT], driver: FitDriver[OperatorT, KernelT]
) -> KernelT:
    """The kernel and its lines at the least objective."""
    every = {place: limit for each in limits for place, limit in each.items()}

    def errors(trial: KernelT) -> FloatArray:
        return as_float(np.log(driver.time_us(trial, rows) / rows.time_us))

    return least_squares(
        kernel, every, errors, margin=_MARGIN, slack=_SLACK, max_nfev=driver.budget.evaluations
    )
