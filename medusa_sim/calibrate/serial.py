"""Fits the kernels of a CPU (`medusa_sim.latency.serial`) to measured rows.

The objective is the sum of smoothed absolute log errors (soft l1). Where a library changes its kernel with m
is found by search over the measured m; the rest by least squares. Held-out errors come from refits in which
whole weight shapes (n, k), or groups of attention shapes, are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations
from typing import TypeVar

import msgspec
import numpy as np

from medusa_sim.arrays import FloatArray
from medusa_sim.calibrate.attention import RANGES_OF_SIZE, AttentionRows
from medusa_sim.calibrate.gemm import RANGES_OF_M, GemmRows
from medusa_sim.calibrate.residuals import residual_bands
from medusa_sim.errors import DataError
from medusa_sim.latency.serial import serial_attention_time, serial_gemm_time
from medusa_sim.operators.operator import Attention, Gemm
from medusa_sim.specs.gpu import Gpu
from medusa_sim.specs.kernels import Fit, Residual, SerialAttention, SerialGemm, SerialLine
from medusa_sim.units import MIB

KernelT = TypeVar("KernelT", SerialGemm, SerialAttention)
Bounds = Mapping[str, tuple[float, float, float]]
"""Start, lowest and highest value by name."""

_RATES: Bounds = {"bandwidth_fraction": (0.7, 0.05, 4.0), "peak_fraction": (0.4, 0.02, 4.0)}
_GEMM: Bounds = {"ramp_us": (3.0, 0.02, 100.0), "activation_ratio": (2.0, 0.1, 100.0)}
_ATTENTION: Bounds = {
    "ramp_us": (10.0, 0.02, 500.0),
    "head_us": (0.5, 1e-3, 20.0),
    "query_us": (0.05, 1e-4, 2.0),
    "cached_ratio": (1.0, 1.0, 5.0),
}
_FEW: Bounds = {"bandwidth_fraction": (0.8, 0.05, 4.0), "peak_fraction": (0.25, 0.02, 4.0)}
_MANY: Bounds = {"bandwidth_fraction": (0.5, 0.02, 4.0), "peak_fraction": (0.6, 0.02, 4.0)}
_FEW_ROWS = 32
"""Kernels for few rows end below this."""
_CACHED_BYTES = (0.0, 1.0 * MIB, 2.0 * MIB, 4.0 * MIB, 8.0 * MIB, 16.0 * MIB, 32.0 * MIB)
_CACHE_GAIN = 0.95
"""What a cache must bring to be kept: a twentieth of the objective."""
_SCALE = 0.1
_FOLDS = 5
_LEAST_ROWS = 20
_LEAST_EDGES = 2
_EMPTY = Fit(
    source="",
    rows=0,
    fit_error=0.0,
    heldout_error=0.0,
    residuals=(Residual(size_max=1.0, low=1.0, high=1.0),),
)


def fit_serial_gemm(rows: GemmRows, gpu: Gpu, *, source: str) -> SerialGemm:
    """Linear layers of a CPU, with `fit` filled in. Deterministic, some seconds.

    Raises DataError for fewer than two weight shapes or 20 rows.
    """
    labels = rows.shape
    if labels.max() < 1 or len(rows.m) < _LEAST_ROWS:
        raise DataError(
            f"{source}: {len(rows.m)} rows of {labels.max() + 1} weight shapes (n, k); "
            f"a GEMM fit needs {_LEAST_ROWS} rows and two shapes"
        )

    def time_us(kernel: SerialGemm, part: GemmRows) -> FloatArray:
        operator = Gemm(name="rows", m=part.m, n=part.n, k=part.k, dtype=part.dtype)
        return serial_gemm_time(gpu, kernel, operator).time_us

    def refined(kernel: SerialGemm, part: GemmRows) -> SerialGemm:
        return _refined(kernel, _GEMM, lambda trial: np.log(time_us(trial, part) / part.time_us))

    few = [int(m) for m in np.unique(rows.m) if m < _FEW_ROWS]
    edges = [pair for count in range(_LEAST_EDGES + 1) for pair in combinations(few, count)]
    found = [refined(_gemm_start(ends), rows) for ends in edges]
    kernel = min(found, key=lambda each: _cost(np.log(time_us(each, rows) / rows.time_us)))
    predicted = np.empty_like(rows.time_us)
    for fold in range(min(_FOLDS, int(labels.max()) + 1)):
        held = labels % _FOLDS == fold
        predicted[held] = time_us(refined(kernel, rows.where(~held)), rows.where(held))
    fit = Fit(
        source=source,
        rows=len(rows.m),
        fit_error=_error(time_us(kernel, rows), rows.time_us),
        heldout_error=_error(predicted, rows.time_us),
        residuals=residual_bands(rows.time_us, predicted, rows.m, RANGES_OF_M),
    )
    return msgspec.structs.replace(kernel, fit=fit)


def _gemm_start(ends: tuple[int, ...]) -> SerialGemm:
    ranges = tuple(_line(_RATES, end) for end in (*ends, 0))
    return SerialGemm(**_starts(_GEMM), ranges=ranges, fit=_EMPTY)


def _line(start: Bounds, m_max: int = 0) -> SerialLine:
    return SerialLine(
        bandwidth_fraction=start["bandwidth_fraction"][0],
        peak_fraction=start["peak_fraction"][0],
        m_max=m_max,
    )


def fit_serial_attention(
    operator: Attention, time_us: FloatArray, gpu: Gpu, *, source: str
) -> SerialAttention:
    """A CPU's fused attention of one kind (`operator` holds one shape a row), with `fit` filled in.

    Deterministic, some seconds. Raises DataError for fewer than 20 rows.
    """
    if len(time_us) < _LEAST_ROWS:
        raise DataError(
            f"{source}: {len(time_us)} rows of {operator.kind}; a fit needs {_LEAST_ROWS} or more"
        )
    rows = AttentionRows(operator=operator, time_us=np.asarray(time_us, dtype=np.float64))

    def predicted_us(kernel: SerialAttention, part: AttentionRows) -> FloatArray:
        return serial_attention_time(gpu, kernel, part.operator).time_us

    def refined(kernel: SerialAttention, part: AttentionRows) -> SerialAttention:
        return _refined(kernel, _ATTENTION, lambda trial: np.log(predicted_us(trial, part) / part.time_us))

    def cost(kernel: SerialAttention) -> float:
        return _cost(np.log(predicted_us(kernel, rows) / rows.time_us))

    kernel = refined(_attention_start(0.0), rows)
    cached = min((refined(_attention_start(size), rows) for size in _CACHED_BYTES[1:]), key=cost)
    if cost(cached) < _CACHE_GAIN * cost(kernel):
        kernel = cached
    labels = rows.group
    folds = min(_FOLDS, int(labels.max()) + 1)
    heldout_us = np.empty_like(rows.time_us)
    for fold in range(folds):
        held = labels % folds == fold
        heldout_us[held] = predicted_us(refined(kernel, rows.where(~held)), rows.where(held))
    size = np.asarray(operator.q_len, dtype=np.float64) * operator.batch
    fit = Fit(
        source=source,
        rows=len(rows.time_us),
        fit_error=_error(predicted_us(kernel, rows), rows.time_us),
        heldout_error=_error(heldout_us, rows.time_us),
        residuals=residual_bands(rows.time_us, heldout_us, size, RANGES_OF_SIZE, least_rows=_LEAST_ROWS),
    )
    return msgspec.structs.replace(kernel, fit=fit)


def _attention_start(cached_bytes: float) -> SerialAttention:
    return SerialAttention(
        **_starts(_ATTENTION),
        few=_line(_FEW),
        many=_line(_MANY),
        cached_bytes=cached_bytes,
        fit=_EMPTY,
    )


def _refined(kernel: KernelT, own: Bounds, errors: Callable[[KernelT], FloatArray]) -> KernelT:
    """Least squares on log time over the kernel's own parameters and those of its lines."""
    from scipy.optimize import least_squares

    lines: tuple[SerialLine, ...] = _lines(kernel)
    bounds = [*own.values(), *(limit for _ in lines for limit in _RATES.values())]
    lowest, highest = (np.log([limit[side] for limit in bounds]) for side in (1, 2))
    begin = [getattr(kernel, name) for name in own]
    begin += [getattr(line, name) for line in lines for name in _RATES]

    def residual(values: FloatArray) -> FloatArray:
        return errors(_with_values(kernel, own, np.exp(values).tolist()))

    found = least_squares(
        residual,
        np.clip(np.log(begin), lowest + 1e-9, highest - 1e-9),
        bounds=(lowest, highest + 1e-6),
        loss="soft_l1",
        f_scale=_SCALE,
        max_nfev=200,
    )
    return _with_values(kernel, own, np.exp(found.x).tolist())


def _lines(kernel: SerialGemm | SerialAttention) -> tuple[SerialLine, ...]:
    return kernel.ranges if isinstance(kernel, SerialGemm) else (kernel.few, kernel.many)


def _with_values(kernel: KernelT, own: Bounds, values: list[float]) -> KernelT:
    given = dict(zip(own, values, strict=False))
    rates = values[len(own) :]
    lines = tuple(
        msgspec.structs.replace(line, **dict(zip(_RATES, rates[2 * i : 2 * i + 2], strict=True)))
        for i, line in enumerate(_lines(kernel))
    )
    if isinstance(kernel, SerialGemm):
        return msgspec.structs.replace(kernel, **given, ranges=lines)
    return msgspec.structs.replace(kernel, **given, few=lines[0], many=lines[1])


def _starts(bounds: Bounds) -> dict[str, float]:
    return {name: start for name, (start, _, _) in bounds.items()}


def _cost(log_error: FloatArray) -> float:
    return float(np.sum(np.sqrt(1.0 + (log_error / _SCALE) ** 2) - 1.0))


def _error(predicted_us: FloatArray, measured_us: FloatArray) -> float:
    return float(np.mean(np.abs(predicted_us / measured_us - 1.0)))
