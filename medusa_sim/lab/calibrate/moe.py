"""Fits the model of layers of experts of `medusa_sim.latency.moe` to measured rows of one GPU and kernel.

The library's rule for tiles and whether it computes gates that are not there are tried, the rest is found by
least squares. Held-out errors leave out whole models: layers of one width, number of experts and top-k.

A fit begins with the library's tiles, its rules for them and the shapes that it tuned (`starts.toml`). Most
libraries choose among tiles by what was timed: the fit begins with the common ones and finds out.
"""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from medusa_sim.arrays import as_float
from medusa_sim.gpus.fitted_experts import ExpertKernel, ExpertTile, TunedShape
from medusa_sim.gpus.gpu import Gpu
from medusa_sim.lab.calibrate.driver import UNFITTED, Budget, FitDriver, warm
from medusa_sim.lab.calibrate.rows import Rows, require_rows
from medusa_sim.lab.calibrate.search import Limits
from medusa_sim.lab.calibrate.starts import Bounds, starts
from medusa_sim.latency.moe import experts_time
from medusa_sim.operators.experts import ALIGNED, Experts

_Driver = FitDriver[Experts, ExpertKernel]
TILES = tuple(ExpertTile(rows=rows, columns=128) for rows in (16, 32, 64, 128))
"""What a library chooses from by time."""
_BOUNDS = Bounds.of("moe")
_L2 = ("l2_ratio", "l2_fill", "l2_sharpness")
"""What rows tell whose weights may lie in L2 alone."""
_BUDGET = Budget(fit_rows=800, evaluations=40, band_rows=20, folds=16)
_REFIT_EVALUATIONS = 15
"""Of a least squares that begins at a fit."""
_ROUNDS = 2
"""Turns of least squares and of the tiles' times, where a rule fixes the tile; a refit has one."""
_FACTORS = (0.7, 0.8, 0.9, 0.95, 1.05, 1.1, 1.2, 1.35)
"""On the time of a tile, tried in each turn."""
_COUNTING_HELD = ("moe_torch_flow_cutlass",)
"""Kernels whose time grows with the experts that a GPU holds: rows of expert parallelism, which no fit sees,
err by 4 % where those of all experts make it 37 (blocks of fp8 on an H100, up to 16 tokens)."""
_WALKING_ALL = ("triton", "marlin")
"""In the names of kernels that sort and pass over the pairs of other GPUs' experts, too: rows of expert
parallelism of Marlin's mxfp4 on an H100 err by 14 % where those of a GPU's own pairs make it 22."""
_DROPPING = ("vllm_fp8moe_triton_tritonexperts",)
"""Kernels among them whose rows say that they do not: 9 % in blocks of fp8 on an H100, 19 with all pairs."""
_ORDER = ("tokens", "hit", "inter", "experts", "hidden")
"""Columns over which rows are drawn evenly, the last first."""


class _Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A library's rule for tiles in some formats, and by GPU the shapes (experts, width) that it tuned."""

    forms: tuple[str, ...]
    tiles: tuple[ExpertTile, ...]
    tuned: dict[str, tuple[tuple[int, int], ...]] = {}


class Choices(NamedTuple):
    """How a kernel may choose: tiles by rule (none: by time), and shapes that choose by time all the same."""

    default_tiles: tuple[ExpertTile, ...] = ()
    tuned: tuple[TunedShape, ...] = ()


def rules_of(form: str, gpu: Gpu) -> list[Choices]:
    """How kernels of that format choose their tiles, without a rule first."""
    rules = [Choices()]
    for rule in starts("moe", dict[str, tuple[_Rule, ...]])["rules"]:
        if form in rule.forms:
            shapes = rule.tuned.get(gpu.name, ())
            tuned = tuple(TunedShape(experts=experts, inter=inter) for experts, inter in shapes)
            rules.append(Choices(rule.tiles, tuned))
    return rules


def fit_experts(rows: Rows[Experts], gpu: Gpu, *, source: str) -> ExpertKernel:
    """Kernel parameters of measured rows, with `fit` filled in.

    Deterministic, some seconds for 5000 rows. Raises DataError for fewer
    than 20 rows.
    """
    require_rows(rows, source)
    driver: _Driver = FitDriver(gpu, warm(experts_time), _BUDGET)
    gates = (False, True) if bool(np.any(as_float(rows.operator.gated) == 0.0)) else (False,)
    candidates = [
        _refit(
            _start(rows.kernel, rule, gates_all=gates_all), rows, driver, _BUDGET.evaluations, rounds=_ROUNDS
        )
        for rule, gates_all in product(rules_of(rows.operator.form, gpu), gates)
    ]
    kernel = driver.best(candidates, rows)
    return driver.with_fit(kernel, rows, partial(refitted_experts, gpu=gpu), source=source)


def refitted_experts(kernel: ExpertKernel, rows: Rows[Experts], gpu: Gpu) -> ExpertKernel:
    """The kernel with its parameters fitted to other rows, from where they are; its choices stay."""
    return _refit(kernel, rows, FitDriver(gpu, warm(experts_time), _BUDGET), _REFIT_EVALUATIONS, rounds=1)


def _start(name: str, rule: Choices, *, gates_all: bool) -> ExpertKernel:
    return ExpertKernel(
        **_BOUNDS.starts,
        name=name,
        gates_all=gates_all,
        counts_held=name in _COUNTING_HELD,
        walks_all=name not in _DROPPING and any(library in name for library in _WALKING_ALL),
        tiles=TILES,
        default_tiles=rule.default_tiles,
        tuned=rule.tuned,
        fit=UNFITTED,
    )


def _refit(
    kernel: ExpertKernel, rows: Rows[Experts], driver: _Driver, evaluations: int | None, *, rounds: int
) -> ExpertKernel:
    """Least squares; where a rule fixes the tile, in turn with each tile's time over the first's."""
    part = rows.thin(_BUDGET.fit_rows, *_ORDER)
    limits = _seen(part, driver.gpu)
    kernel = driver.least_squares(kernel, limits, part, max_nfev=evaluations)
    for _ in range(rounds if len(kernel.default_tiles) > 1 else 0):
        kernel = _with_slower_tiles(kernel, part, driver)
        kernel = driver.least_squares(kernel, limits, part, max_nfev=_REFIT_EVALUATIONS)
    return kernel


def _with_slower_tiles(kernel: ExpertKernel, rows: Rows[Experts], driver: _Driver) -> ExpertKernel:
    """One pass over the tiles of the rule: the factor of each that lowers the objective most."""
    best = driver.cost(kernel, rows)
    for place in range(1, len(kernel.default_tiles)):
        start = kernel.default_tiles[place]
        for factor in _FACTORS:
            tiles = list(kernel.default_tiles)
            tiles[place] = replace(start, slower=start.slower * factor)
            trial = replace(kernel, default_tiles=tuple(tiles))
            cost = driver.cost(trial, rows)
            if cost < best:
                best, kernel = cost, trial
    return kernel


def _seen(rows: Rows[Experts], gpu: Gpu) -> Limits:
    """Limits of the parameters that the rows can tell; the others keep their start.

    Weights that never fit in L2 say nothing of it, nor do aligned widths of unaligned ones.
    """
    limits = dict(_BOUNDS.limits)
    if not np.any(rows.operator.weight_bytes < gpu.l2_bytes):
        limits = {name: limit for name, limit in limits.items() if name not in _L2}
    if not np.any(as_float(rows.operator.inter) % ALIGNED):
        del limits["unaligned_ratio"]
    return limits
