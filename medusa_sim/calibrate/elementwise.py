"""Fits the elementwise model of `medusa_sim.latency.elementwise` to measured rows of one GPU and library.

The objective is the sum of smoothed absolute log errors (soft l1). Held-out errors come from refits in
which whole row widths n are left out, or blocks of m where there is one width.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from medusa_sim.arrays import FloatArray, IntArray
from medusa_sim.calibrate.residuals import residual_bands
from medusa_sim.errors import DataError
from medusa_sim.latency.elementwise import elementwise_time
from medusa_sim.operators.operator import Elementwise
from medusa_sim.specs.gpu import Gpu
from medusa_sim.specs.kernels import ElementwiseKernel, Fit, Residual

RANGES_OF_M: tuple[int, ...] = (16, 64, 256, 1024, 4096, 65536)
"""Upper ends of the ranges of m for which residual bands are kept."""

_START: dict[str, tuple[float, float, float]] = {
    "ramp_us": (2.0, 0.1, 40.0),
    "row_ratio": (1.0, 0.02, 50.0),
    "sharing": (0.3, 0.01, 1.0),
    "bandwidth_fraction": (0.8, 0.05, 1.0),
    "l2_ratio": (2.0, 1.0, 12.0),
    "l2_fill": (0.8, 0.2, 3.0),
    "l2_sharpness": (6.0, 1.0, 30.0),
}
"""Start, lowest and highest value of each parameter that least squares finds."""

_ROWS_PER_SM = (1, 2, 4, 8, 16)
_SERIAL_ROWS = 16
"""PyTorch gathers up to 16 indices with one block that loops over them (indexSelectSmallIndex)."""
_SCALE = 0.1
_FOLDS = 5
_LEAST_ROWS = 20
_BAND_ROWS = 20
_SEARCH_ROWS = 400
_FIT_ROWS = 2000


@dataclass(frozen=True, slots=True)
class ElementwiseRows:
    """Measured rows of one kind: m and n of one length, and their times in us."""

    operator: Elementwise
    time_us: FloatArray

    @property
    def group(self) -> IntArray:
        """What is held out together: a label per n, or per sixteenth of the range of m where n is one."""
        n = np.unique(np.asarray(self.operator.n), return_inverse=True)[1].reshape(-1)
        if n.max() > 0:
            return n.astype(np.int64)
        rank = np.argsort(np.argsort(np.asarray(self.operator.m), kind="stable"), kind="stable")
        return (rank * 16 // len(rank)).astype(np.int64)

    def where(self, keep: npt.NDArray[np.bool_] | npt.NDArray[np.int64]) -> ElementwiseRows:
        """The rows for which `keep` is true (or whose numbers it holds)."""
        op = self.operator
        kept = dataclasses.replace(op, m=np.asarray(op.m)[keep], n=np.asarray(op.n)[keep])
        return ElementwiseRows(operator=kept, time_us=self.time_us[keep])


def fit_elementwise(
    operator: Elementwise, time_us: FloatArray, gpu: Gpu, *, source: str
) -> ElementwiseKernel:
    """Kernel parameters of measured rows (`operator` holds one (m, n) a row), with `fit` filled in.

    Deterministic, a few seconds for 5000 rows. Raises DataError for fewer than 20 rows.
    """
    if len(time_us) < _LEAST_ROWS:
        raise DataError(
            f"{source}: {len(time_us)} rows of {operator.kind}; a fit needs {_LEAST_ROWS} or more"
        )
    rows = ElementwiseRows(operator=operator, time_us=np.asarray(time_us, dtype=np.float64))
    kernel = _refined(_searched(rows, gpu), rows, gpu)
    labels = rows.group
    folds = min(_FOLDS, int(labels.max()) + 1)
    predicted = np.empty_like(rows.time_us)
    for fold in range(folds):
        held = labels % folds == fold
        predicted[held] = _time_us(_refined(kernel, rows.where(~held), gpu), rows.where(held), gpu)
    fit = Fit(
        source=source,
        rows=len(rows.time_us),
        fit_error=_error(_time_us(kernel, rows, gpu), rows),
        heldout_error=_error(predicted, rows),
        residuals=residual_bands(
            rows.time_us,
            predicted,
            np.asarray(rows.operator.m, dtype=np.float64),
            RANGES_OF_M,
            least_rows=_BAND_ROWS,
        ),
    )
    return msgspec.structs.replace(kernel, fit=fit)


def _searched(rows: ElementwiseRows, gpu: Gpu) -> ElementwiseKernel:
    """The best number of rows on an SM, least squares inside, on an even subset of the rows."""
    subset = _thinned(rows, _SEARCH_ROWS)
    start = {name: value for name, (value, _, _) in _START.items()}
    band = (Residual(size_max=float(RANGES_OF_M[-1]), low=1.0, high=1.0),)
    empty = Fit(source="being fitted", rows=0, fit_error=0.0, heldout_error=0.0, residuals=band)
    serial = _SERIAL_ROWS if rows.operator.kind == "embedding" else 0
    candidates = [
        _refined(
            ElementwiseKernel(
                **start, rows_per_sm=rows_per_sm, serial_rows=serial, serial_row_us=0.5, fit=empty
            ),
            subset,
            gpu,
        )
        for rows_per_sm in _ROWS_PER_SM
    ]
    return min(candidates, key=lambda kernel: _cost(kernel, subset, gpu))


def _refined(kernel: ElementwiseKernel, rows: ElementwiseRows, gpu: Gpu) -> ElementwiseKernel:
    """Least squares on log time, and the serial rows' slope where the kind has them."""
    from scipy.optimize import least_squares

    rows = _thinned(rows, _FIT_ROWS)
    names = list(_START) + (["serial_row_us"] if kernel.serial_rows else [])
    ranges = _START | {"serial_row_us": (0.5, 1e-3, 20.0)}
    lowest = np.log([ranges[name][1] for name in names])
    highest = np.log([ranges[name][2] for name in names])
    log_time = np.log(rows.time_us)

    def replaced(values: FloatArray) -> ElementwiseKernel:
        return msgspec.structs.replace(kernel, **dict(zip(names, np.exp(values).tolist(), strict=True)))

    def residual(values: FloatArray) -> FloatArray:
        errors: FloatArray = np.log(_time_us(replaced(values), rows, gpu)) - log_time
        return errors

    start = np.log([getattr(kernel, name) for name in names])
    found = least_squares(
        residual,
        np.clip(start, lowest + 1e-6, highest - 1e-6),
        bounds=(lowest, highest),
        loss="soft_l1",
        f_scale=_SCALE,
        max_nfev=40,
    )
    return replaced(found.x)


def _time_us(kernel: ElementwiseKernel, rows: ElementwiseRows, gpu: Gpu) -> FloatArray:
    return elementwise_time(gpu, kernel, rows.operator, cold=False).time_us


def _error(predicted_us: FloatArray, rows: ElementwiseRows) -> float:
    return float(np.mean(np.abs(predicted_us / rows.time_us - 1.0)))


def _cost(kernel: ElementwiseKernel, rows: ElementwiseRows, gpu: Gpu) -> float:
    log_error = np.log(_time_us(kernel, rows, gpu) / rows.time_us)
    return float(np.sum(np.sqrt(1.0 + (log_error / _SCALE) ** 2) - 1.0))


def _thinned(rows: ElementwiseRows, count: int) -> ElementwiseRows:
    """At most `count` rows, drawn evenly over the shapes ordered by n and m."""
    order = np.lexsort((np.asarray(rows.operator.m), np.asarray(rows.operator.n)))
    step = max(1.0, len(order) / count)
    return rows.where(order[np.arange(0.0, len(order), step).astype(np.int64)])
