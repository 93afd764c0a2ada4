"""Fits the model of layers of experts of `medusa_sim.latency.moe` to measured rows of one GPU and kernel.

The library's rule for tiles and whether it computes gates that are not there are tried, the rest is found by
least squares. Held-out errors leave out whole models: layers of one width, number of experts and top-k.
"""

from __future__ import annotations

from itertools import product

import msgspec
import numpy as np

from medusa_sim.arrays import FloatArray, as_float
from medusa_sim.calibrate.fit import (
    UNFITTED,
    Bounds,
    Limits,
    Rows,
    limits_of,
    refined,
    require_rows,
    soft_cost,
    starts_of,
    with_fit,
)
from medusa_sim.calibrate.moe_start import TILES, Choices, rules_of
from medusa_sim.latency.moe import experts_time
from medusa_sim.operators.experts import ALIGNED, Experts
from medusa_sim.specs.fitted import ExpertKernel
from medusa_sim.specs.gpu import Gpu

_BOUNDS: Bounds = {
    "ramp_us": (15.0, 0.5, 300.0),
    "expert_us": (0.005, 1e-5, 1.0),
    "token_us": (0.01, 1e-5, 1.0),
    "pair_us": (0.001, 1e-6, 0.1),
    "bandwidth_fraction": (0.85, 0.05, 1.0),
    "peak_fraction": (0.6, 0.02, 1.0),
    "activation_ratio": (1.0, 0.02, 20.0),
    "load_ratio": (3.0, 0.05, 60.0),
    "tile_k": (200.0, 1.0, 8000.0),
    "memory_norm": (3.0, 1.0, 20.0),
    "step_norm": (3.0, 1.0, 20.0),
    "wave_rounding": (0.5, 0.01, 1.0),
    "contention": (0.3, 0.01, 0.99),
    "throttle": (0.2, 0.001, 3.0),
    "throttle_us": (1000.0, 10.0, 20_000.0),
    "l2_ratio": (2.0, 0.5, 6.0),
    "l2_fill": (0.9, 0.3, 2.5),
    "l2_sharpness": (6.0, 1.0, 30.0),
    "unaligned_ratio": (1.5, 1.0, 8.0),
}
_L2 = ("l2_ratio", "l2_fill", "l2_sharpness")
_FIT_ROWS = 800
_BAND_ROWS = 20
_EVALUATIONS, _REFIT_EVALUATIONS = 40, 15
_FOLDS = 16
_FACTORS = (0.7, 0.8, 0.9, 0.95, 1.05, 1.1, 1.2, 1.35)
_ORDER = ("tokens", "hit", "inter", "experts", "hidden")


def fit_experts(rows: Rows[Experts], gpu: Gpu, *, source: str, name: str = "") -> ExpertKernel:
    """Kernel parameters of measured rows, with `fit` filled in.

    name: of the kernel in its library. Deterministic, some seconds for 5000 rows. Raises DataError for fewer
    than 20 rows.
    """
    require_rows(rows, source)
    gates = (False, True) if bool(np.any(as_float(rows.operator.gated) == 0.0)) else (False,)
    candidates = [
        _fitted(_start(name, rule, gates_all=gates_all), rows, gpu, _EVALUATIONS, rounds=2)
        for rule, gates_all in product(rules_of(rows.operator.form, gpu), gates)
    ]
    kernel = min(candidates, key=lambda each: _cost(each, rows, gpu))
    return with_fit(
        kernel,
        rows,
        lambda each, part: _time_us(each, part, gpu),
        lambda part: refitted_experts(kernel, part, gpu),
        source=source,
        folds=_FOLDS,
        least_rows=_BAND_ROWS,
    )


def refitted_experts(kernel: ExpertKernel, rows: Rows[Experts], gpu: Gpu) -> ExpertKernel:
    """The kernel with its parameters fitted to other rows, from where they are; its choices stay."""
    return _fitted(kernel, rows, gpu, _REFIT_EVALUATIONS, rounds=1)


def _start(name: str, rule: Choices, *, gates_all: bool) -> ExpertKernel:
    return ExpertKernel(
        **starts_of(_BOUNDS),
        name=name,
        gates_all=gates_all,
        tiles=TILES,
        default_tiles=rule.default_tiles,
        tuned=rule.tuned,
        fit=UNFITTED,
    )


def _fitted(
    kernel: ExpertKernel, rows: Rows[Experts], gpu: Gpu, evaluations: int, *, rounds: int
) -> ExpertKernel:
    """Least squares; where a rule fixes the tile, in turn with how slow each tile is beside the first."""
    kernel = _refined(kernel, rows, gpu, evaluations)
    for _ in range(rounds if len(kernel.default_tiles) > 1 else 0):
        kernel = _refined(_with_slower_tiles(kernel, _thin(rows), gpu), rows, gpu, _REFIT_EVALUATIONS)
    return kernel


def _with_slower_tiles(kernel: ExpertKernel, rows: Rows[Experts], gpu: Gpu) -> ExpertKernel:
    """One pass over the tiles of the rule: the factor of each that lowers the objective most."""
    best = _cost(kernel, rows, gpu)
    for place in range(1, len(kernel.default_tiles)):
        start = kernel.default_tiles[place]
        for factor in _FACTORS:
            tiles = list(kernel.default_tiles)
            tiles[place] = msgspec.structs.replace(start, slower=start.slower * factor)
            trial = msgspec.structs.replace(kernel, default_tiles=tuple(tiles))
            cost = _cost(trial, rows, gpu)
            if cost < best:
                best, kernel = cost, trial
    return kernel


def _refined(kernel: ExpertKernel, rows: Rows[Experts], gpu: Gpu, evaluations: int) -> ExpertKernel:
    """Least squares on log time over the parameters that the rows can tell apart."""
    part = _thin(rows)
    log_time = np.log(part.time_us)
    return refined(
        kernel,
        _seen(part, gpu),
        lambda trial: np.log(_time_us(trial, part, gpu)) - log_time,
        max_nfev=evaluations,
    )


def _thin(rows: Rows[Experts]) -> Rows[Experts]:
    return rows.thin(_FIT_ROWS, *_ORDER)


def _seen(rows: Rows[Experts], gpu: Gpu) -> Limits:
    """Limits of the parameters that the rows can tell; the others keep their start.

    Weights that never fit in L2 say nothing of it, nor do aligned widths of unaligned ones.
    """
    limits = dict(limits_of(_BOUNDS))
    if not np.any(rows.operator.weight_bytes < gpu.l2_bytes):
        limits = {name: limit for name, limit in limits.items() if name not in _L2}
    if not np.any(as_float(rows.operator.inter) % ALIGNED):
        del limits["unaligned_ratio"]
    return limits


def _time_us(kernel: ExpertKernel, rows: Rows[Experts], gpu: Gpu) -> FloatArray:
    return experts_time(gpu, kernel, rows.operator, cold=False).time_us


def _cost(kernel: ExpertKernel, rows: Rows[Experts], gpu: Gpu) -> float:
    return soft_cost(np.log(_time_us(kernel, rows, gpu) / rows.time_us))
