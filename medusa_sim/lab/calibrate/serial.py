"""Fits the kernels of a CPU (`medusa_sim.latency.serial`) to measured rows.

Where a library changes its kernel with m is found by search over the measured m; the rest by least squares.
Held-out errors leave out whole weight shapes (n, k), or groups of attention shapes.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
from msgspec.structs import replace

from medusa_sim.arrays import as_float
from medusa_sim.errors import DataError
from medusa_sim.gpus.gpu import Gpu
from medusa_sim.gpus.kernels import SerialAttention, SerialGemm, SerialLine
from medusa_sim.lab.calibrate.fit import UNFITTED, Budget, FitDriver, KernelT
from medusa_sim.lab.calibrate.gemm import merged_repeats
from medusa_sim.lab.calibrate.kind_rows import OperatorT, Rows, require_rows
from medusa_sim.lab.calibrate.search import least_log_errors
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


def fit_serial_gemm(rows: Rows[Gemm], gpu: Gpu, *, source: str, **_: object) -> SerialGemm:
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
        return _least_squares(kernel, _GEMM, kernel.ranges, lambda lines: {"ranges": lines}, part, driver)

    few = [int(m) for m in np.unique(as_float(rows.operator.m)) if m < _FEW_ROWS]
    edges = [pair for count in range(_MOST_EDGES + 1) for pair in combinations(few, count)]
    kernel = driver.best([refit(_gemm_start(ends), rows) for ends in edges], rows)
    return driver.with_fit(kernel, rows, refit, source=source)


def _gemm_start(ends: tuple[int, ...]) -> SerialGemm:
    ranges = tuple(_line(_RATES, end) for end in (*ends, 0))
    return SerialGemm(**_GEMM.starts, ranges=ranges, fit=UNFITTED)


def fit_serial_attention(rows: Rows[Attention], gpu: Gpu, *, source: str, **_: object) -> SerialAttention:
    """A CPU's fused attention of one kind, with `fit` filled in.

    Deterministic, some seconds. Raises DataError for fewer than 20 rows.
    """
    require_rows(rows, source)

    driver = FitDriver(gpu, serial_attention_time, _ATTENTION_BUDGET)

    def refit(kernel: SerialAttention, part: Rows[Attention]) -> SerialAttention:
        lines = (kernel.few, kernel.many)
        return _least_squares(
            kernel, _ATTENTION, lines, lambda fitted: {"few": fitted[0], "many": fitted[1]}, part, driver
        )

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
    kernel: KernelT,
    bounds: Bounds,
    lines: tuple[SerialLine, ...],
    placed: Callable[[tuple[SerialLine, ...]], dict[str, Any]],
    rows: Rows[OperatorT],
    driver: FitDriver[OperatorT, KernelT],
) -> KernelT:
    """A kernel and its lines at the least objective; placed: fields that hold the lines."""
    own, rates = bounds.limits, _RATES.limits

    def made(values: list[float]) -> KernelT:
        pairs = np.reshape(values[len(own) :], (-1, len(rates))).tolist()
        fitted = (
            replace(line, **dict(zip(rates, pair, strict=True)))
            for line, pair in zip(lines, pairs, strict=True)
        )
        return replace(kernel, **dict(zip(own, values, strict=False)), **placed(tuple(fitted)))

    start = [getattr(kernel, name) for name in own]
    start += [getattr(line, name) for line in lines for name in rates]
    solution = least_log_errors(
        start,
        [*own.values(), *(limit for _ in lines for limit in rates.values())],
        lambda values: np.log(driver.time_us(made(values), rows) / rows.time_us),
        margin=_MARGIN,
        slack=_SLACK,
        max_nfev=driver.budget.evaluations,
    )
    return made(solution)
