"""Fits the GEMM kernel model of `medusa_sim.latency.gemm` to measured rows of one GPU and library.

The objective is the sum of smoothed absolute log errors (soft l1), so that outliers of the library's choice
do not pull the physics. Held-out errors come from refits in which whole weight shapes (n, k) are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from medusa_sim.errors import DataError
from medusa_sim.latency.gemm import gemm_time
from medusa_sim.operators import FloatArray, Gemm
from medusa_sim.specs.gpu import Gpu
from medusa_sim.specs.kernels import Fit, GemmKernel, GemmTile, Residual

IntArray = npt.NDArray[np.int64]

RANGES_OF_M: tuple[int, ...] = (16, 64, 128, 256, 512, 1024, 4096)
"""Upper ends of the ranges of m for which residual bands are kept."""

_TILES: tuple[tuple[int, int], ...] = (
    (16, 64), (32, 64), (64, 64), (64, 128), (64, 256),
    (128, 64), (128, 128), (128, 256), (256, 64), (256, 128),
)  # fmt: skip
_SPLITS = (1, 2, 3, 4, 6, 8)
_BOUNDED = {"bandwidth_fraction", "peak_fraction"}
_START = {
    "ramp_us": 4.0,
    "bandwidth_fraction": 0.85,
    "peak_fraction": 0.9,
    "load_ratio": 5.0,
    "tile_k": 30.0,
    "memory_norm": 3.0,
    "step_norm": 1.3,
    "split_us": 2.0,
}
_RESOLUTION_US = 1.0
_SCALE = 0.1
_FOLDS = 5


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


def fit_gemm(rows: GemmRows, gpu: Gpu, *, source: str) -> GemmKernel:
    """Kernel parameters of `rows`, with `fit` filled in.

    Deterministic; a minute or two for 10,000 rows. Raises DataError where there are fewer than two
    weight shapes, which cannot separate a ramp from a bandwidth or be held out.
    """
    labels = rows.shape
    if labels.max() < 1:
        raise DataError(f"{source}: one weight shape (n, k) only; a GEMM fit needs two or more")
    chosen = rows.where(_thinned(rows))
    kernel = _refined(_start_kernel(source, len(rows.m)), chosen, gpu, rounds=3)
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
        residuals=_residuals(rows, predicted),
    )
    return msgspec.structs.replace(kernel, fit=fit)


def _start_kernel(source: str, count: int) -> GemmKernel:
    everywhere = (Residual(size_max=float(RANGES_OF_M[-1]), low=1.0, high=1.0),)
    fit = Fit(source=source, rows=count, fit_error=0.0, heldout_error=0.0, residuals=everywhere)
    tiles = tuple(GemmTile(m=m, n=n) for m, n in _TILES)
    return GemmKernel(**_START, splits=_SPLITS, tiles=tiles, fit=fit)


def _thinned(rows: GemmRows) -> npt.NDArray[np.bool_]:
    """All m <= 512 in steps of 8 and every 64th above: large m are measured more densely than they matter."""
    small = (rows.m <= 16) | ((rows.m <= 512) & (rows.m % 8 <= 1))
    keep: npt.NDArray[np.bool_] = small | (rows.m % 64 == 0)
    return keep


def _time_us(kernel: GemmKernel, rows: GemmRows, gpu: Gpu) -> FloatArray:
    operator = Gemm(name="rows", m=rows.m, n=rows.n, k=rows.k, dtype=rows.dtype)
    return gemm_time(gpu, kernel, operator, cold=False).time_us


def _error(predicted_us: FloatArray, rows: GemmRows) -> float:
    return float(np.mean(np.abs(predicted_us / rows.time_us - 1.0)))


def _residuals(rows: GemmRows, predicted_us: FloatArray) -> tuple[Residual, ...]:
    """10 % and 90 % quantiles of measured / predicted in each range of m that has rows."""
    ratio = rows.time_us / predicted_us
    bands = []
    lower = 0
    for upper in RANGES_OF_M:
        inside = ratio[(rows.m > lower) & (rows.m <= upper)]
        if inside.size:
            low, high = np.quantile(inside, (0.1, 0.9))
            bands.append(Residual(size_max=float(upper), low=float(low), high=float(high)))
        lower = upper
    return tuple(bands)


def _refined(kernel: GemmKernel, rows: GemmRows, gpu: Gpu, *, rounds: int) -> GemmKernel:
    """Alternates the physical parameters (least squares) and the library's reluctances (line search)."""
    from scipy.optimize import least_squares

    weight = 1.0 / np.hypot(1.0, 0.3 * _RESOLUTION_US / rows.time_us / 0.03)
    log_time = np.log(rows.time_us)

    def error(candidate: GemmKernel) -> FloatArray:
        errors: FloatArray = weight * (np.log(_time_us(candidate, rows, gpu)) - log_time)
        return errors

    for _ in range(rounds):
        names = tuple(_START)
        start = np.log([getattr(kernel, name) for name in names])
        upper = [0.0 if name in _BOUNDED else 6.0 for name in names]
        base = kernel

        def residual(values: FloatArray, base: GemmKernel = base) -> FloatArray:
            return error(_replaced(base, values))

        bounds = ([-6.0 if name != "step_norm" else 0.0 for name in names], upper)
        found = least_squares(
            residual,
            np.clip(start, np.asarray(bounds[0]) + 1e-6, np.asarray(bounds[1]) - 1e-6),
            bounds=bounds,
            loss="soft_l1",
            f_scale=_SCALE,
            diff_step=np.full(len(names), 3e-3),
            max_nfev=15,
        )
        kernel = _replaced(kernel, found.x)
        kernel = _with_reluctances(kernel, error)
    return kernel


def _replaced(kernel: GemmKernel, log_values: FloatArray) -> GemmKernel:
    """The kernel with the physical parameters exp(log_values), in the order of `_START`."""
    return msgspec.structs.replace(kernel, **dict(zip(_START, np.exp(log_values).tolist(), strict=True)))


def _with_reluctances(kernel: GemmKernel, error: Callable[[GemmKernel], FloatArray]) -> GemmKernel:
    """One pass over the tiles: the reluctance of each that lowers the objective most."""

    def cost(candidate: GemmKernel) -> float:
        return float(np.sum(2.0 * (np.sqrt(1.0 + (error(candidate) / _SCALE) ** 2) - 1.0)))

    best = cost(kernel)
    for index in range(len(kernel.tiles)):
        for factor in (0.8, 0.9, 0.95, 1.05, 1.1, 1.25):
            tiles = list(kernel.tiles)
            tile = tiles[index]
            tiles[index] = GemmTile(m=tile.m, n=tile.n, reluctance=tile.reluctance * factor)
            candidate = msgspec.structs.replace(kernel, tiles=tuple(tiles))
            found = cost(candidate)
            if found < best:
                best, kernel = found, candidate
    return kernel
