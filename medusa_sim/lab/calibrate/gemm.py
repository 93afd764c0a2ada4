"""Fits the GEMM kernel model of `medusa_sim.latency.gemm` to measured rows of one GPU and library.

Held-out errors leave out whole weight shapes (n, k).

A fit begins with the tiles that a library has (`starts.toml`). Libraries differ in how a tile is found: by a
heuristic of their own, fixed by the shape, or by counting waves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import partial
from itertools import product
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from medusa_sim.arrays import BoolArray, FloatArray, as_float
from medusa_sim.errors import DataError
from medusa_sim.gpus.gpu import Gpu
from medusa_sim.gpus.kernels import GemmKernel, GemmTile
from medusa_sim.lab.calibrate.driver import UNFITTED, Budget, FitDriver, warm
from medusa_sim.lab.calibrate.rows import Rows
from medusa_sim.lab.calibrate.search import least_squares, soft_cost, soft_costs
from medusa_sim.lab.calibrate.starts import Bounds, starts
from medusa_sim.latency.gemm import gemm_candidates_us, gemm_choice, gemm_chosen_us, gemm_time
from medusa_sim.operators.gemm import Gemm
from medusa_sim.units import US_PER_S

_BOUNDS = Bounds.of("gemm")
_LIMITS = _BOUNDS.limits
_BUDGET = Budget(evaluations=25)
_Driver = FitDriver[Gemm, GemmKernel]
_ROUNDS = 3
"""Turns of least squares and of the library's choices; a refit has one."""
_FACTORS = (0.7, 0.8, 0.9, 0.95, 1.05, 1.1, 1.25, 1.4)
"""On a tile's selection penalty, tried in each turn."""
_PACE_FACTORS = (*_FACTORS, 2.0)
"""The same on its paces."""
_STEP = 1e-3
"""In the logarithm of a parameter: the difference that stands for a slope."""
_WORTH_IT = 1e-4
"""Share by which a selection penalty must lower the objective to be kept: a tie leaves the tile as it is."""
_PACES = ("pace", "pace_alone", "pace_half")
"""Of a tile (`GemmTile`)."""
_HOT_RATIO = 3.0
"""Where the ratio of weights in L2 begins, of rows that show some."""
_ROUNDING, _MODEL_ERROR = 0.15, 0.03
"""Of a time in whole microseconds, us; of the law, a share. A row weighs by what both leave it."""
_Pieces = list[dict[str, Any]]
"""Tiles, every pair where m and n are lists."""


class _Known(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is known of a library's kernels in some formats on an architecture."""

    kernel_set: str
    forms: tuple[str, ...]
    architecture: str
    start: dict[str, Any]
    tiles: _Pieces


class _Libraries(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    tiles: _Pieces
    known: tuple[_Known, ...]


def gemm_start(kernel_set: str, form: str, gpu: Gpu) -> GemmKernel:
    """Tiles, splits and starting values for `fit_gemm` (its `fit` is empty).

    kernel_set: `torch`, `sglang`, `trtllm` or `paper`. form: numeric format. What is known of a library's
    kernels on an architecture stands in `starts.toml`; everything else gets the common tiles.
    """
    libraries = starts("gemm", _Libraries)
    start: dict[str, Any] = {"l2_ratio": 2.5, "drain_k": 100.0} if kernel_set == "torch" else {}
    tiles, place = libraries.tiles, (kernel_set, gpu.architecture)
    for known in libraries.known:
        if (known.kernel_set, known.architecture) == place and form in known.forms:
            start, tiles = known.start, known.tiles
    pairs = (
        {**piece, "m": m, "n": n}
        for piece in tiles
        for m, n in product(*(np.atleast_1d(piece[side]).tolist() for side in "mn"))
    )
    begin = {**_BOUNDS.starts, "splits": [1, 2, 3, 4, 6, 8], "tiles": list(pairs), **start}
    return msgspec.convert({**begin, "fit": UNFITTED}, GemmKernel)


def merged_repeats(rows: Rows[Gemm]) -> Rows[Gemm]:
    """One row for each (m, n, k), the median of its repeats, in ascending order."""
    label = rows.labels("m", "n", "k")
    order = np.argsort(label, kind="stable")
    first = np.unique(label, return_index=True)[1]
    groups = np.split(rows.time_us[order], np.cumsum(np.bincount(label))[:-1])
    medians = np.asarray([np.median(group) for group in groups])
    return Rows(rows.where(first).operator, medians)


def fit_gemm(
    rows: Rows[Gemm], gpu: Gpu, *, source: str, start: GemmKernel | None = None, pinned: Collection[str] = ()
) -> GemmKernel:
    """Kernel parameters of `rows` (one for each shape, `merged_repeats`), with `fit` filled in.

    start: tiles, splits and the values to begin with (`gemm_start`; the common ones if None).
    pinned: parameters that stay as `start` has them, such as a ramp that only this benchmark has.
    Deterministic; a minute or two for 10,000 rows. Raises DataError where there are fewer than two
    weight shapes, which cannot separate a ramp from a bandwidth or be held out.
    """
    shapes = rows.labels("n", "k")
    if shapes.max() < 1:
        raise DataError(f"{source}: one weight shape (n, k) only; a GEMM fit needs two or more")
    begin = start or gemm_start("torch", rows.operator.form, gpu)
    kernel, driver = unscored_gemm(rows, gpu, begin, pinned=pinned), _driver(gpu)
    refit = partial(_refit, driver=driver, rounds=1, pinned=pinned)
    return driver.with_fit(kernel, rows, refit, source=source)


def unscored_gemm(
    rows: Rows[Gemm], gpu: Gpu, start: GemmKernel, *, pinned: Collection[str] = ()
) -> GemmKernel:
    """Kernel parameters of `rows` from `start`, whose `fit` is left as it is."""
    begin = _with_hot_weights(start, rows, gpu)
    return _refit(begin, rows, _driver(gpu), rounds=_ROUNDS, pinned=pinned)


def _driver(gpu: Gpu) -> _Driver:
    return FitDriver(gpu, warm(gemm_time), _BUDGET)


def _thin(rows: Rows[Gemm]) -> BoolArray:
    """Rows of m <= 512 in steps of 8 and one past; above, every 64th and a few just past a tile.

    Large m are measured more densely than they matter.
    """
    m = as_float(rows.operator.m)
    small = (m <= 16) | ((m <= 512) & (m % 8 <= 1))
    keep: BoolArray = small | (m % 64 == 0) | (m % 512 == 1)
    return keep


def _resolution_us(rows: Rows[Gemm]) -> float:
    """1 where times are whole microseconds (medians of two may be halves), 0 where they are finer."""
    return 1.0 if np.mean(rows.time_us * 2.0 % 1.0 == 0.0) > 0.5 else 0.0


def _with_hot_weights(kernel: GemmKernel, rows: Rows[Gemm], gpu: Gpu) -> GemmKernel:
    """The kernel with hot_share set to the largest weights that were read faster than memory allows.

    Rows that beat the datasheet's bandwidth can only have had their weights in L2.
    """
    operator = rows.operator
    if kernel.hot_copies:
        return replace(kernel, hot_share=1.0, hot_ratio=_HOT_RATIO)
    is_hot = rows.time_us < operator.bytes / gpu.bandwidth_bytes_per_s * US_PER_S
    if not is_hot.any():
        return kernel
    share = float(np.max(operator.weight_bytes[is_hot])) / gpu.l2_bytes
    return replace(kernel, hot_share=share, hot_ratio=_HOT_RATIO)


def _refit(
    kernel: GemmKernel, rows: Rows[Gemm], driver: _Driver, *, rounds: int, pinned: Collection[str] = ()
) -> GemmKernel:
    """Physical parameters by least squares and the library's choices by line search, in turn."""
    part = rows.where(_thin(rows))
    weight = 1.0 / np.hypot(1.0, _ROUNDING * _resolution_us(part) / part.time_us / _MODEL_ERROR)
    for _ in range(rounds):
        kernel = _least_squares(kernel, part, driver, weight, pinned)
        refine = _with_paces if kernel.fewest_waves else _with_penalties
        kernel = refine(kernel, part, driver, weight)
    return kernel


def _least_squares(
    kernel: GemmKernel, rows: Rows[Gemm], driver: _Driver, weight: FloatArray, pinned: Collection[str]
) -> GemmKernel:
    """The kernel with its physical parameters fitted, at the library's selection penalties.

    The derivative holds the choice of tile fixed: it changes at points only, and one choice costs as much
    as all derivatives together.
    """
    operator, gpu = rows.operator, driver.gpu
    limits = {
        name: limit for name, limit in _LIMITS.items() if getattr(kernel, name) > 0.0 and name not in pinned
    }

    def slopes(logarithms: FloatArray) -> FloatArray:
        here = _replaced(kernel, limits, logarithms)
        chosen = gemm_choice(gpu, here, operator)
        base = np.log(gemm_chosen_us(gpu, here, operator, chosen, cold=False))
        columns = []
        for index in range(len(limits)):
            moved = logarithms.copy()
            moved[index] += _STEP
            there = _replaced(kernel, limits, moved)
            shifted = np.log(gemm_chosen_us(gpu, there, operator, chosen, cold=False))
            columns.append(weight * (shifted - base) / _STEP)
        return np.stack(columns, axis=1)

    return least_squares(
        kernel, limits, partial(_errors, rows=rows, driver=driver, weight=weight), jac=slopes,
        max_nfev=_BUDGET.evaluations,
    )  # fmt: skip


def _errors(kernel: GemmKernel, rows: Rows[Gemm], driver: _Driver, weight: FloatArray) -> FloatArray:
    """Log errors of the rows, each times its weight."""
    return as_float(weight * (np.log(driver.time_us(kernel, rows)) - np.log(rows.time_us)))


def _replaced(kernel: GemmKernel, names: Iterable[str], log_values: FloatArray) -> GemmKernel:
    """The kernel with the named parameters at exp(log_values)."""
    return replace(kernel, **dict(zip(names, np.exp(log_values).tolist(), strict=True)))


def _with_paces(kernel: GemmKernel, rows: Rows[Gemm], driver: _Driver, weight: FloatArray) -> GemmKernel:
    """The paces of each tile that bring its own rows nearest; who counts waves never looks at them."""
    tile_of_row = gemm_choice(driver.gpu, kernel, rows.operator) // len(kernel.splits)

    def costs(tiles: tuple[GemmTile, ...]) -> FloatArray:
        errors = _errors(replace(kernel, tiles=tiles), rows, driver, weight)
        return as_float(np.bincount(tile_of_row, weights=soft_costs(errors), minlength=len(tiles)))

    tiles = kernel.tiles
    best = costs(tiles)
    for name in _PACES:
        begin = tiles
        for factor in _PACE_FACTORS:
            trial = tuple(_scaled(tile, name, factor) for tile in begin)
            costs_now = costs(trial)
            is_better = costs_now < best * (1.0 - _WORTH_IT)
            tiles = tuple(
                new if better else old for new, old, better in zip(trial, tiles, is_better, strict=True)
            )
            best = np.minimum(best, costs_now)
    return replace(kernel, tiles=tiles)


def _scaled(tile: GemmTile, name: str, factor: float) -> GemmTile:
    return replace(tile, **{name: factor * getattr(tile, name)})


def _with_penalties(kernel: GemmKernel, rows: Rows[Gemm], driver: _Driver, weight: FloatArray) -> GemmKernel:
    """One pass over the tiles: the selection penalty of each that lowers the objective most.

    The times do not depend on it, so each trial is one argmin over the candidates' times.
    """
    log_times = np.log(gemm_candidates_us(driver.gpu, kernel, rows.operator, cold=False))
    log_measured = np.log(rows.time_us)
    penalties = np.asarray([tile.selection_penalty for tile in kernel.tiles])
    every_row = np.arange(len(log_measured))

    def cost(trial: FloatArray) -> float:
        chosen = np.argmin(log_times + np.repeat(np.log(trial), len(kernel.splits))[:, None], axis=0)
        return soft_cost(weight * (log_times[chosen, every_row] - log_measured))

    best = cost(penalties) * (1.0 - _WORTH_IT)
    for index in range(len(penalties)):
        start = penalties[index]
        for factor in _FACTORS:
            trial = penalties.copy()
            trial[index] = start * factor
            cost_now = cost(trial)
            if cost_now < best:
                best, penalties = cost_now * (1.0 - _WORTH_IT), trial
    tiles = tuple(
        replace(tile, selection_penalty=float(penalty))
        for tile, penalty in zip(kernel.tiles, penalties, strict=True)
    )
    return replace(kernel, tiles=tiles)
