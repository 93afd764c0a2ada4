"""Fits the GEMM kernel model of `medusa_sim.latency.gemm` to measured rows of one GPU and library.

The objective is the sum of smoothed absolute log errors (soft l1), so that outliers of the library's choice
do not pull the physics. Held-out errors come from refits in which whole weight shapes (n, k) are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from medusa_sim.arrays import FloatArray, IntArray
from medusa_sim.calibrate.gemm_start import gemm_start
from medusa_sim.calibrate.residuals import residual_bands
from medusa_sim.errors import DataError
from medusa_sim.latency.gemm import gemm_candidates_us, gemm_choice, gemm_chosen_us, gemm_time
from medusa_sim.operators.operator import Gemm
from medusa_sim.specs.gpu import Gpu
from medusa_sim.specs.kernels import Fit, GemmKernel
from medusa_sim.units import US_PER_S

RANGES_OF_M: tuple[int, ...] = (16, 64, 128, 256, 512, 1024, 4096)
"""Upper ends of the ranges of m for which residual bands are kept."""

_BOUNDS: dict[str, tuple[float, float]] = {
    "ramp_us": (0.02, 100.0),
    "bandwidth_fraction": (0.3, 1.0),
    "peak_fraction": (0.2, 1.0),
    "load_ratio": (0.3, 60.0),
    "l2_ratio": (0.5, 20.0),
    "tile_k": (1.0, 2000.0),
    "drain_k": (1.0, 4000.0),
    "memory_norm": (1.0, 20.0),
    "step_norm": (1.0, 20.0),
    "split_us": (0.05, 20.0),
    "wave_rounding": (0.01, 1.0),
    "contention": (0.01, 0.95),
    "throttle": (0.001, 3.0),
    "throttle_us": (10.0, 20_000.0),
    "quantise_ratio": (0.05, 5.0),
    "padding_ratio": (0.05, 20.0),
    "resident_share": (0.1, 3.0),
    "hot_ratio": (0.5, 5.0),
}
"""What is fitted, and how far: a parameter that starts at 0 is off and stays off."""
_SCALE = 0.1
_STEP = 1e-3
_EVALUATIONS = 25
_FACTORS = (0.7, 0.8, 0.9, 0.95, 1.05, 1.1, 1.25, 1.4)
_WORTH_IT = 1e-4
"""Share by which a reluctance must lower the objective to be kept: a tie leaves the tile as it is."""
_HOT_RATIO = 3.0
_FOLDS = 5
_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class GemmRows:
    """Measured rows: one entry per distinct (m, n, k), the median of its repeats."""

    m: FloatArray
    n: FloatArray
    k: FloatArray
    time_us: FloatArray
    dtype: str

    @property
    def shape(self) -> IntArray:
        """A label per (n, k), counted from 0."""
        _, labels = np.unique(np.stack([self.n, self.k]), axis=1, return_inverse=True)
        return labels.reshape(-1)

    def where(self, keep: npt.NDArray[np.bool_]) -> GemmRows:
        """The rows for which `keep` is true."""
        return GemmRows(
            m=self.m[keep], n=self.n[keep], k=self.k[keep], time_us=self.time_us[keep], dtype=self.dtype
        )


def gemm_rows(
    m: Sequence[float] | FloatArray,
    n: Sequence[float] | FloatArray,
    k: Sequence[float] | FloatArray,
    time_us: Sequence[float] | FloatArray,
    dtype: str,
) -> GemmRows:
    """Rows with repeats of one (m, n, k) merged into their median. Raises DataError for an empty table."""
    if len(time_us) == 0:
        raise DataError(f"no {dtype} GEMM rows to fit; pass rows with m, n, k and time_us")
    sizes = np.stack([np.asarray(size, dtype=np.float64) for size in (m, n, k)])
    distinct, label = np.unique(sizes, axis=1, return_inverse=True)
    label = label.reshape(-1)
    order = np.argsort(label, kind="stable")
    groups = np.split(np.asarray(time_us, dtype=np.float64)[order], np.cumsum(np.bincount(label))[:-1])
    medians = np.asarray([np.median(group) for group in groups])
    return GemmRows(m=distinct[0], n=distinct[1], k=distinct[2], time_us=medians, dtype=dtype)


def fit_gemm(rows: GemmRows, gpu: Gpu, *, source: str, start: GemmKernel | None = None) -> GemmKernel:
    """Kernel parameters of `rows`, with `fit` filled in.

    start: tiles, splits and the values to begin with (`calibrate.gemm_start`; the common ones if None).
    Deterministic; a minute or two for 10,000 rows. Raises DataError where there are fewer than two
    weight shapes, which cannot separate a ramp from a bandwidth or be held out.
    """
    labels = rows.shape
    if labels.max() < 1:
        raise DataError(f"{source}: one weight shape (n, k) only; a GEMM fit needs two or more")
    chosen = rows.where(_thinned(rows))
    begin = _with_hot_weights(start or gemm_start("torch", rows.dtype, gpu), rows, gpu)
    kernel = _refined(begin, chosen, gpu, rounds=_ROUNDS)
    predicted = np.empty_like(rows.time_us)
    for fold in range(min(_FOLDS, int(labels.max()) + 1)):
        held = labels % _FOLDS == fold
        part = _refined(kernel, rows.where(~held & _thinned(rows)), gpu, rounds=1)
        predicted[held] = _time_us(part, rows.where(held), gpu)
    fit = Fit(
        source=source,
        rows=len(rows.m),
        fit_error=_error(_time_us(kernel, rows, gpu), rows),
        heldout_error=_error(predicted, rows),
        residuals=residual_bands(rows.time_us, predicted, rows.m, RANGES_OF_M),
    )
    return msgspec.structs.replace(kernel, fit=fit)


def _thinned(rows: GemmRows) -> npt.NDArray[np.bool_]:
    """Rows of m <= 512 in steps of 8 and one past; above, every 64th and a few just past a tile.

    Large m are measured more densely than they matter.
    """
    small = (rows.m <= 16) | ((rows.m <= 512) & (rows.m % 8 <= 1))
    keep: npt.NDArray[np.bool_] = small | (rows.m % 64 == 0) | (rows.m % 512 == 1)
    return keep


def _resolution_us(rows: GemmRows) -> float:
    """1 where times are whole microseconds (medians of two may be halves), 0 where they are finer."""
    return 1.0 if np.mean(rows.time_us * 2.0 % 1.0 == 0.0) > 0.5 else 0.0


def _with_hot_weights(kernel: GemmKernel, rows: GemmRows, gpu: Gpu) -> GemmKernel:
    """The kernel with hot_share set to the largest weights that were read faster than memory allows.

    Rows that beat the datasheet's bandwidth can only have had their weights in L2.
    """
    operator = _operator(rows)
    is_hot = rows.time_us < operator.bytes / gpu.bandwidth_bytes_per_s * US_PER_S
    if not is_hot.any():
        return kernel
    share = float(np.max(operator.weight_bytes[is_hot])) / gpu.l2_bytes
    return msgspec.structs.replace(kernel, hot_share=share, hot_ratio=_HOT_RATIO)


def _operator(rows: GemmRows) -> Gemm:
    return Gemm(name="rows", m=rows.m, n=rows.n, k=rows.k, dtype=rows.dtype)


def _time_us(kernel: GemmKernel, rows: GemmRows, gpu: Gpu) -> FloatArray:
    return gemm_time(gpu, kernel, _operator(rows), cold=False).time_us


def _error(predicted_us: FloatArray, rows: GemmRows) -> float:
    return float(np.mean(np.abs(predicted_us / rows.time_us - 1.0)))


def _refined(kernel: GemmKernel, rows: GemmRows, gpu: Gpu, *, rounds: int) -> GemmKernel:
    """Alternates the physical parameters (least squares) and the library's reluctances (line search)."""
    weight = 1.0 / np.hypot(1.0, 0.15 * _resolution_us(rows) / rows.time_us / 0.03)
    for _ in range(rounds):
        kernel = _with_physics(kernel, rows, gpu, weight)
        kernel = _with_reluctances(kernel, rows, gpu, weight)
    return kernel


def _with_physics(kernel: GemmKernel, rows: GemmRows, gpu: Gpu, weight: FloatArray) -> GemmKernel:
    """The kernel with least-squares physical parameters, at the library's reluctances.

    The derivative holds the choice of tile fixed: it changes at points only, and one choice costs as much
    as all derivatives together.
    """
    from scipy.optimize import least_squares

    operator = _operator(rows)
    log_time = np.log(rows.time_us)
    names = tuple(name for name in _BOUNDS if getattr(kernel, name) > 0.0)
    lower, upper = np.log([_BOUNDS[name] for name in names]).T

    def error(values: FloatArray) -> FloatArray:
        errors: FloatArray = weight * (
            np.log(_time_us(_replaced(kernel, names, values), rows, gpu)) - log_time
        )
        return errors

    def slopes(values: FloatArray) -> FloatArray:
        here = _replaced(kernel, names, values)
        chosen = gemm_choice(gpu, here, operator)
        base = np.log(gemm_chosen_us(gpu, here, operator, chosen, cold=False))
        columns = []
        for index in range(len(names)):
            moved = values.copy()
            moved[index] += _STEP
            there = _replaced(kernel, names, moved)
            shifted = np.log(gemm_chosen_us(gpu, there, operator, chosen, cold=False))
            columns.append(weight * (shifted - base) / _STEP)
        return np.stack(columns, axis=1)

    begin = np.clip(np.log([getattr(kernel, name) for name in names]), lower + 1e-6, upper - 1e-6)
    found = least_squares(
        error, begin, slopes, bounds=(lower, upper), loss="soft_l1", f_scale=_SCALE, max_nfev=_EVALUATIONS
    )
    return _replaced(kernel, names, found.x)


def _replaced(kernel: GemmKernel, names: tuple[str, ...], log_values: FloatArray) -> GemmKernel:
    """The kernel with the named parameters at exp(log_values)."""
    return msgspec.structs.replace(kernel, **dict(zip(names, np.exp(log_values).tolist(), strict=True)))


def _with_reluctances(kernel: GemmKernel, rows: GemmRows, gpu: Gpu, weight: FloatArray) -> GemmKernel:
    """One pass over the tiles: the reluctance of each that lowers the objective most.

    The times do not depend on it, so each trial is one argmin over the candidates' times.
    """
    log_times = np.log(gemm_candidates_us(gpu, kernel, _operator(rows), cold=False))
    log_measured = np.log(rows.time_us)
    reluctances = np.asarray([tile.reluctance for tile in kernel.tiles])
    every_row = np.arange(len(log_measured))

    def cost(trial: FloatArray) -> float:
        chosen = np.argmin(log_times + np.repeat(np.log(trial), len(kernel.splits))[:, None], axis=0)
        errors = weight * (log_times[chosen, every_row] - log_measured)
        return float(np.sum(2.0 * (np.sqrt(1.0 + (errors / _SCALE) ** 2) - 1.0)))

    best = cost(reluctances) * (1.0 - _WORTH_IT)
    for index in range(len(reluctances)):
        start = reluctances[index]
        for factor in _FACTORS:
            trial = reluctances.copy()
            trial[index] = start * factor
            found = cost(trial)
            if found < best:
                best, reluctances = found * (1.0 - _WORTH_IT), trial
    tiles = tuple(
        msgspec.structs.replace(tile, reluctance=float(reluctance))
        for tile, reluctance in zip(kernel.tiles, reluctances, strict=True)
    )
    return msgspec.structs.replace(kernel, tiles=tiles)
