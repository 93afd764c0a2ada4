"""Fits the kernels of a CPU (`medusa_sim.latency.serial`) to measured rows.

Where a library changes its kernel with m is found by search over the measured m; the rest by least squares.
Held-out errors leave out whole weight shapes (n, k), or groups of attention shapes.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import msgspec
import numpy as np

from medusa_sim.arrays import FloatArray, as_float
from medusa_sim.calibrate.fit import (
    LEAST_ROWS,
    UNFITTED,
    Bounds,
    Law,
    Rows,
    bounds_of,
    least_log_errors,
    limits_of,
    require_rows,
    starts_of,
)
from medusa_sim.calibrate.gemm import merged_repeats
from medusa_sim.errors import DataError
from medusa_sim.latency.serial import serial_attention_time, serial_gemm_time
from medusa_sim.operators.operator import Attention, Gemm
from medusa_sim.specs.gpu import Gpu
from medusa_sim.specs.kernels import SerialAttention, SerialGemm, SerialLine
from medusa_sim.units import MIB

_RATES = bounds_of("serial_rates")
_GEMM = bounds_of("serial_gemm")
_ATTENTION = bounds_of("serial_attention")
_FEW = bounds_of("serial_few")
_MANY = bounds_of("serial_many")
_FEW_ROWS = 32
"""Kernels for few rows end below this."""
_CACHED_BYTES = (0.0, 1.0 * MIB, 2.0 * MIB, 4.0 * MIB, 8.0 * MIB, 16.0 * MIB, 32.0 * MIB)
_CACHE_GAIN = 0.95
"""What a cache must bring to be kept: a twentieth of the objective."""
_LEAST_EDGES = 2
_EVALUATIONS = 200
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

    law = Law(gpu, serial_gemm_time)

    def refit(kernel: SerialGemm, part: Rows[Gemm]) -> SerialGemm:
        def replaced(own: dict[str, float], lines: tuple[SerialLine, ...]) -> SerialGemm:
            return msgspec.structs.replace(kernel, **own, ranges=lines)

        return replaced(
            *_refined(
                {name: getattr(kernel, name) for name in _GEMM},
                _GEMM,
                kernel.ranges,
                lambda own, lines: np.log(law.time_us(replaced(own, lines), part) / part.time_us),
            )
        )

    few = [int(m) for m in np.unique(as_float(rows.operator.m)) if m < _FEW_ROWS]
    edges = [pair for count in range(_LEAST_EDGES + 1) for pair in combinations(few, count)]
    kernel = law.best([refit(_gemm_start(ends), rows) for ends in edges], rows)
    return law.with_fit(kernel, rows, refit, source=source)


def _gemm_start(ends: tuple[int, ...]) -> SerialGemm:
    ranges = tuple(_line(_RATES, end) for end in (*ends, 0))
    return SerialGemm(**starts_of(_GEMM), ranges=ranges, fit=UNFITTED)


def fit_serial_attention(rows: Rows[Attention], gpu: Gpu, *, source: str, **_: object) -> SerialAttention:
    """A CPU's fused attention of one kind, with `fit` filled in.

    Deterministic, some seconds. Raises DataError for fewer than 20 rows.
    """
    require_rows(rows, source)

    law = Law(gpu, serial_attention_time)

    def refit(kernel: SerialAttention, part: Rows[Attention]) -> SerialAttention:
        def replaced(own: dict[str, float], lines: tuple[SerialLine, ...]) -> SerialAttention:
            return msgspec.structs.replace(kernel, **own, few=lines[0], many=lines[1])

        return replaced(
            *_refined(
                {name: getattr(kernel, name) for name in _ATTENTION},
                _ATTENTION,
                (kernel.few, kernel.many),
                lambda own, lines: np.log(law.time_us(replaced(own, lines), part) / part.time_us),
            )
        )

    kernel = refit(_attention_start(0.0), rows)
    cached = law.best([refit(_attention_start(size), rows) for size in _CACHED_BYTES[1:]], rows)
    if law.cost(cached, rows) < _CACHE_GAIN * law.cost(kernel, rows):
        kernel = cached
    return law.with_fit(kernel, rows, refit, source=source, least_rows=LEAST_ROWS)


def _attention_start(cached_bytes: float) -> SerialAttention:
    return SerialAttention(
        **starts_of(_ATTENTION),
        few=_line(_FEW),
        many=_line(_MANY),
        cached_bytes=cached_bytes,
        fit=UNFITTED,
    )


def _line(bounds: Bounds, m_max: int = 0) -> SerialLine:
    start = starts_of(bounds)
    return SerialLine(
        bandwidth_fraction=start["bandwidth_fraction"], peak_fraction=start["peak_fraction"], m_max=m_max
    )


def _refined(
    own: dict[str, float],
    bounds: Bounds,
    lines: tuple[SerialLine, ...],
    log_errors: Callable[[dict[str, float], tuple[SerialLine, ...]], FloatArray],
) -> tuple[dict[str, float], tuple[SerialLine, ...]]:
    """A kernel's own parameters and those of its lines at the least objective."""
    size = len(_RATES)

    def parts(values: list[float]) -> tuple[dict[str, float], tuple[SerialLine, ...]]:
        rates = values[len(own) :]
        fitted = (
            msgspec.structs.replace(line, **dict(zip(_RATES, rates[size * i : size * (i + 1)], strict=True)))
            for i, line in enumerate(lines)
        )
        return dict(zip(own, values, strict=False)), tuple(fitted)

    limits = [*limits_of(bounds).values(), *(limit for _ in lines for limit in limits_of(_RATES).values())]
    start = [*own.values(), *(getattr(line, name) for line in lines for name in _RATES)]

    def errors(values: list[float]) -> FloatArray:
        return log_errors(*parts(values))

    return parts(least_log_errors(start, limits, errors, margin=_MARGIN, slack=_SLACK, max_nfev=_EVALUATIONS))
