"""Fits the model of latent attention (`medusa_sim.latency.latent`) to measured rows of one GPU and kernel.

Tile sizes and other whole numbers are found by coordinate search, the rest by least squares. Held-out errors
leave out whole numbers of heads, or batches where there is one (of each path where a kernel has two).
"""

from __future__ import annotations

from functools import partial

import msgspec
import numpy as np
from msgspec.structs import replace

from medusa_sim.arrays import BoolArray, IntArray, as_float
from medusa_sim.gpus.fitted_attention import AttentionPath, LatentKernel, Projections
from medusa_sim.gpus.gpu import Gpu
from medusa_sim.lab.calibrate.attention import BY_TOKEN
from medusa_sim.lab.calibrate.driver import UNFITTED, Budget, FitDriver, warm
from medusa_sim.lab.calibrate.rows import Rows, heldout_groups, require_rows
from medusa_sim.lab.calibrate.search import coordinate_search, value_at
from medusa_sim.lab.calibrate.starts import Bounds
from medusa_sim.latency.attention import NEVER, shared_rows
from medusa_sim.latency.latent import latent_time
from medusa_sim.operators.latent import LatentAttention

_PATH = Bounds.of("latent")
_PROJECTIONS = Bounds.of("projections")
_CHOICES: dict[str, tuple[object, ...]] = {
    "wide.tile_rows": (16, 32, 64, 128),
    "wide.split_above": (64, 128, 256, NEVER),
    "wide.ctas_per_sm": (1, 2),
    "wide.tile_keys": (32, 64, 128),
}
"""What coordinate search tries, in this order."""
_START: dict[str, object] = {
    "tile_rows": 64,
    "tile_keys": 64,
    "split_above": 128,
    "ctas_per_sm": 1,
    "packs_gqa": True,
    "store_passes": 0.0,
    "append_ratio": 0.0,
}
"""Where that search starts."""
_FEW_HEADS, _TILE_OF_MANY = 32, 64
"""Heads up to which trtllm-gen has the tiles of `BY_TOKEN`, and rows of its tiles beyond (FlashInfer,
include/flashinfer/trtllm/fmha/fmhaKernels.cuh, selectMlaGenerationKernel)."""
_BUDGET = Budget(search_rows=300, fit_rows=700, evaluations=16, band_rows=20)
_Driver = FitDriver[LatentAttention, LatentKernel]
_ORDER = ("batch", "q_len", "kv_len", "heads")
"""Columns over which rows are drawn evenly, the last first."""


def fit_latent(rows: Rows[LatentAttention], gpu: Gpu, *, source: str) -> LatentKernel:
    """Kernel parameters of measured rows, with `fit` filled in; with projections where they are of a module.

    Deterministic, some seconds for 1000 rows. Raises DataError for fewer than 20 rows.
    """
    require_rows(rows, source)
    driver: _Driver = FitDriver(gpu, warm(latent_time), _BUDGET)
    found = _search(rows, driver)
    refit = partial(_refit, driver=driver)
    return driver.with_fit(found, rows, refit, source=source, groups=_held_together(found, rows))


def _search(rows: Rows[LatentAttention], driver: _Driver) -> LatentKernel:
    """One pass over the whole numbers, keeping what lowers the objective; none where they are known."""
    subset = rows.thin(_BUDGET.search_rows, *_ORDER)
    projections = Projections(**_PROJECTIONS.starts) if rows.operator.projections else None
    path = msgspec.convert(_PATH.starts | _START, AttentionPath)
    start = LatentKernel(wide=path, projections=projections, fit=UNFITTED, name=rows.kernel)
    if rows.operator.is_absorbed and projections is None and driver.gpu.architecture == "blackwell":
        few = replace(path, **BY_TOKEN)
        path = replace(few, tile_rows=_TILE_OF_MANY)
        return _refit(replace(start, wide=path, narrow=few, narrow_rows=_FEW_HEADS), rows, driver)
    refit = partial(_refit, rows=subset, driver=driver)
    best, _ = coordinate_search(refit(start), _CHOICES, refit, lambda kernel: driver.cost(kernel, subset))
    return _refit(best, rows, driver)


def _held_together(kernel: LatentKernel, rows: Rows[LatentAttention]) -> IntArray:
    """Heads of each path, batches of one whose rows have one number of heads."""
    if kernel.narrow is None:
        return heldout_groups(rows)
    groups, narrow = np.zeros(len(rows.time_us), dtype=np.int64), _is_narrow(kernel, rows)
    for own in (narrow, ~narrow):
        groups[own] = heldout_groups(rows.where(own))
    return groups


def _refit(kernel: LatentKernel, rows: Rows[LatentAttention], driver: _Driver) -> LatentKernel:
    """Every path fitted to the rows that it serves, with the projections of a module."""
    if kernel.narrow is None:
        return _least_squares(kernel, "wide", rows, driver)
    narrow = _is_narrow(kernel, rows)
    kernel = _least_squares(kernel, "wide", rows.where(~narrow), driver) if (~narrow).any() else kernel
    return _least_squares(kernel, "narrow", rows.where(narrow), driver) if narrow.any() else kernel


def _is_narrow(kernel: LatentKernel, rows: Rows[LatentAttention]) -> BoolArray:
    """Rows that the narrow path serves."""
    return shared_rows(kernel.wide, rows.operator) <= kernel.narrow_rows


def _least_squares(
    kernel: LatentKernel, place: str, rows: Rows[LatentAttention], driver: _Driver
) -> LatentKernel:
    """Least squares over the parameters of a path that the rows can tell apart, and the projections'."""
    part = rows.thin(_BUDGET.fit_rows, *_ORDER)
    path: AttentionPath = value_at(kernel, place)
    seen = {
        parameter: limit
        for parameter, limit in _PATH.at(place).items()
        if _is_seen(parameter.split(".")[1], kernel, path, part, driver.gpu)
    }
    around = {} if kernel.projections is None else _PROJECTIONS.at("projections")
    return driver.least_squares(kernel, {**seen, **around}, part)


def _is_seen(
    name: str, kernel: LatentKernel, path: AttentionPath, rows: Rows[LatentAttention], gpu: Gpu
) -> bool:
    """Whether the rows can tell a parameter; if not, it keeps its start.

    One CTA on an SM shares with none; launches of a module hide the ramp of its kernel; keys that are never
    split have no splits; rows that all fit in L2 never show HBM.
    """
    operator = rows.operator.kernel_alone
    if name == "ramp_us":
        return kernel.projections is None
    if name == "sharing":
        return path.ctas_per_sm > 1
    if name in ("split_us", "split_step_us", "split_fraction"):
        return bool(np.max(as_float(operator.kv_len)) > path.split_above)
    if name == "whole_fraction":
        return bool(np.min(as_float(operator.kv_len)) <= path.split_above)
    if name in ("bandwidth_fraction", "l2_fill", "l2_sharpness"):
        return bool(np.max(operator.bytes) > gpu.l2_bytes)
    return True
