"""Linear layers measured at one weight shape only: another kernel set of the same GPU supplies the rest.

Rows of one (n, k), such as the Medusa paper's Table 8, cannot tell a ramp from a bandwidth and say nothing
about other shapes. The GPU's own measured set (`torch`) knows both: tiles, splits of k, loads, the cost of
a split. Of that kernel only what one shape can tell is fitted again: bandwidth and peak fraction, how sharply
memory and tiles overlap, how waves round. A ridge keeps each near its start. Where the library prefers its
largest tile for wide outputs beyond some m, one more entry in the list of tiles says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import msgspec
import numpy as np

from medusa_sim.calibrate.gemm import RANGES_OF_M, GemmRows
from medusa_sim.calibrate.residuals import residual_bands
from medusa_sim.errors import DataError
from medusa_sim.latency.gemm import gemm_time
from medusa_sim.operators import FloatArray, Gemm
from medusa_sim.specs.gpu import Gpu
from medusa_sim.specs.kernels import Fit, GemmKernel, GemmTile

SPREAD: dict[str, float] = {
    "bandwidth_fraction": 0.2,
    "peak_fraction": 0.2,
    "memory_norm": 0.2,
    "wave_rounding": 1.0,
}
"""Parameters fitted again, and how far (in the logarithm) each may go from its start for one row's worth."""

RANGES: dict[str, tuple[float, float]] = {
    "bandwidth_fraction": (0.3, 1.0),
    "peak_fraction": (0.3, 1.0),
    "memory_norm": (1.0, 30.0),
    "wave_rounding": (0.02, 1.0),
}

WIDE_SHARE = 0.5
"""The preference for the largest tile holds for outputs from this share of the measured width."""

_PREFERENCES = (0.8, 0.67)
_SPLIT_RELUCTANCES = (1.0, 1.2, 1.5)
_LARGE = 128
_WORTH = 0.9
"""The entry is kept where it lowers the objective to this share; weaker preferences win ties."""
_SCALE = 0.02
_FOLDS = 5


def fit_transferred_gemm(
    rows: GemmRows, gpu: Gpu, *, start: GemmKernel, ramp_us: float, source: str
) -> GemmKernel:
    """The kernel `start` of the same GPU, brought to rows of one weight shape, with `fit` filled in.

    ramp_us: the cost of a launch as the rows were timed; one shape cannot tell it from a bandwidth, so it
    comes from elsewhere (for the paper's tables: the vector products of Table 6). Held-out errors leave
    out every fifth m. Deterministic; some seconds. Raises DataError for more than one weight shape.
    """
    shapes = len(np.unique(rows.shape))
    if shapes > 1:
        raise DataError(f"{source}: {shapes} weight shapes (n, k); fit them without a start kernel")
    begun = msgspec.structs.replace(start, ramp_us=ramp_us)
    kernel = _fitted(begun, rows, gpu)
    kernel = _with_preference(kernel, begun, rows, gpu)
    fold = np.argsort(np.argsort(rows.m)) % _FOLDS
    heldout_us = np.empty_like(rows.time_us)
    for number in range(_FOLDS):
        held = fold == number
        part = _fitted(_with_choice_of(kernel, begun), rows.where(~held), gpu)
        heldout_us[held] = _time_us(part, rows.where(held), gpu)
    fit = Fit(
        source=source,
        rows=len(rows.m),
        fit_error=_error(_time_us(kernel, rows, gpu), rows),
        heldout_error=_error(heldout_us, rows),
        residuals=residual_bands(rows.time_us, heldout_us, rows.m, RANGES_OF_M),
    )
    return msgspec.structs.replace(kernel, fit=fit)


def _with_preference(kernel: GemmKernel, begun: GemmKernel, rows: GemmRows, gpu: Gpu) -> GemmKernel:
    """The kernel with one more tile entry, where the library's preference for its largest tile shows."""
    without = _cost(kernel, begun, rows, gpu)
    found = [
        (_cost(candidate, begun, rows, gpu), candidate)
        for candidate in (_fitted(option, rows, gpu) for option in _preferring(begun, rows))
    ]
    if not found or min(cost for cost, _ in found) > _WORTH * without:
        return kernel
    best = min(cost for cost, _ in found)
    return next(candidate for cost, candidate in found if cost <= 1.01 * best)


def _preferring(begun: GemmKernel, rows: GemmRows) -> Iterator[GemmKernel]:
    """Kernels that prefer one of the large tiles beyond a measured m, weakest preference first."""
    width = float(rows.n[0])
    edges = np.unique(rows.m)
    large = [tile for tile in begun.tiles if min(tile.m, tile.n) >= _LARGE]
    for preference, split, tile in product(_PREFERENCES, _SPLIT_RELUCTANCES, large):
        for m in edges[(edges >= tile.m) & (edges < 4 * tile.m)]:
            entry = GemmTile(
                m=tile.m,
                n=tile.n,
                reluctance=preference * tile.reluctance,
                m_min=int(m) + 1,
                n_min=int(np.ceil(WIDE_SHARE * width)),
            )
            yield msgspec.structs.replace(
                begun,
                tiles=(*begun.tiles, entry),
                split_reluctance=split * begun.split_reluctance,
            )


def _with_choice_of(kernel: GemmKernel, begun: GemmKernel) -> GemmKernel:
    return msgspec.structs.replace(begun, tiles=kernel.tiles, split_reluctance=kernel.split_reluctance)


def _fitted(begun: GemmKernel, rows: GemmRows, gpu: Gpu) -> GemmKernel:
    from scipy.optimize import least_squares

    lowest, highest = (np.log(ends) for ends in zip(*(RANGES[name] for name in SPREAD), strict=True))
    start = np.clip(np.log(_free(begun)), lowest + 1e-6, highest - 1e-6)

    def residual(values: FloatArray) -> FloatArray:
        return _errors(_replaced(begun, values), begun, rows, gpu)

    found = least_squares(
        residual,
        start,
        bounds=(lowest, highest),
        loss="soft_l1",
        f_scale=_SCALE,
        diff_step=np.full(len(start), 1e-3),
    )
    return _replaced(begun, found.x)


def _free(kernel: GemmKernel) -> FloatArray:
    """The parameters of SPREAD, within their ranges (a start of 0 has no logarithm)."""
    return np.asarray([np.clip(getattr(kernel, name), *RANGES[name]) for name in SPREAD])


def _replaced(kernel: GemmKernel, log_values: FloatArray) -> GemmKernel:
    return msgspec.structs.replace(kernel, **dict(zip(SPREAD, np.exp(log_values).tolist(), strict=True)))


def _errors(kernel: GemmKernel, begun: GemmKernel, rows: GemmRows, gpu: Gpu) -> FloatArray:
    """Log errors of time, then the ridge."""
    moved = np.log(_free(kernel) / _free(begun)) / np.asarray(list(SPREAD.values()))
    return np.concatenate([np.log(_time_us(kernel, rows, gpu) / rows.time_us), _SCALE * moved])


def _cost(kernel: GemmKernel, begun: GemmKernel, rows: GemmRows, gpu: Gpu) -> float:
    scaled = _errors(kernel, begun, rows, gpu) / _SCALE
    return float(np.sum(2.0 * (np.sqrt(1.0 + scaled**2) - 1.0)))


def _time_us(kernel: GemmKernel, rows: GemmRows, gpu: Gpu) -> FloatArray:
    operator = Gemm(name="rows", m=rows.m, n=rows.n, k=rows.k, dtype=rows.dtype)
    return gemm_time(gpu, kernel, operator).time_us


def _error(predicted_us: FloatArray, rows: GemmRows) -> float:
    return float(np.mean(np.abs(predicted_us / rows.time_us - 1.0)))
