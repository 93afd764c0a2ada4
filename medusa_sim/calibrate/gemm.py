"""Fits the GEMM kernel model of `medusa_sim.latency.gemm` to measured rows of one GPU and library.

Held-out errors leave out whole weight shapes (n, k).

A fit begins with the tiles that a library has. Libraries differ in how a tile is found. cuBLAS and its
relatives choose by a heuristic of their own, so every common tile is offered and the fit learns what is
taken. The fp8 `fp8_scaled_mm` kernels of SGLang fix the tile by the shape; their ranges are read off its
public source (sgl-kernel, csrc/gemm/fp8_gemm_kernel.cu, Apache-2.0) for Ada. On Hopper the steps of the
measured rows at m = 64, 128 and multiples of 256 say 64 x 64 tiles, then 64 x 128 and 128 x 128 in clusters
of two along m. DeepGEMM (MIT, `get_best_config`) counts waves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from math import gcd
from typing import Any

import msgspec
import numpy as np

from medusa_sim.arrays import BoolArray, FloatArray, as_float
from medusa_sim.calibrate.fit import SCALE, UNFITTED, Limits, Rows, refined, soft_cost, with_fit
from medusa_sim.errors import DataError
from medusa_sim.latency.gemm import gemm_candidates_us, gemm_choice, gemm_chosen_us, gemm_time
from medusa_sim.operators.operator import Gemm
from medusa_sim.specs.gpu import Gpu
from medusa_sim.specs.kernels import GemmKernel, GemmTile
from medusa_sim.units import US_PER_S

_COMMON_TILES = tuple(
    GemmTile(m=m, n=n) for m in (16, 32, 64, 128, 256) for n in (64, 128, 256) if (m, n) != (256, 256)
)
_HOPPER_FP8_TILES = (
    GemmTile(m=64, n=64, m_max=64),
    GemmTile(m=64, n=128, cluster=2, loads_padding=True, m_min=65, m_max=128),
    GemmTile(m=128, n=128, cluster=2, loads_padding=True, m_min=129),
)
_ADA_FP8_TILES = (
    GemmTile(m=16, n=64, m_max=16, n_max=8192),
    GemmTile(m=32, n=64, m_max=16, n_min=8193, n_max=16384),
    GemmTile(m=16, n=64, m_max=64, n_min=16385),
    GemmTile(m=32, n=64, m_min=17, m_max=64, n_max=16384),
    GemmTile(m=64, n=64, m_min=65, m_max=128, n_max=16384),
    GemmTile(m=32, n=64, m_min=65, m_max=128, n_min=16385),
    GemmTile(m=128, n=64, m_min=129, m_max=256, n_max=8192),
    GemmTile(m=64, n=128, m_min=129, m_max=256, n_min=8193, n_max=16384),
    GemmTile(m=128, n=64, m_min=129, m_max=256, n_min=16385),
    GemmTile(m=128, n=128, m_min=257),
)


def gemm_start(kernel_set: str, form: str, gpu: Gpu) -> GemmKernel:
    """Tiles, splits and starting values for `fit_gemm` (its `fit` is empty).

    kernel_set: `torch`, `sglang`, `trtllm` or `paper`. form: numeric format. What is known of a library's
    kernels on an architecture (`_KNOWN`); everything else gets the common tiles.
    """
    of_torch: dict[str, Any] = {"l2_ratio": 2.5, "drain_k": 100.0} if kernel_set == "torch" else {}
    known = _KNOWN.get((kernel_set, form, gpu.architecture), of_torch)
    common: dict[str, Any] = {
        "ramp_us": 3.0,
        "bandwidth_fraction": 0.85,
        "peak_fraction": 0.85,
        "load_ratio": 5.0,
        "tile_k": 150.0,
        "memory_norm": 4.0,
        "step_norm": 5.0,
        "split_us": 2.0,
        "splits": (1, 2, 3, 4, 6, 8),
        "tiles": _COMMON_TILES,
        "wave_rounding": 0.6,
        "contention": 0.2,
        "throttle": 0.3,
        "throttle_us": 1000.0,
        "fit": UNFITTED,
    }
    return GemmKernel(**{**common, **known})


def _tiles(heights: tuple[int, ...], widths: tuple[int, ...]) -> tuple[GemmTile, ...]:
    return tuple(GemmTile(m=m, n=n) for m in heights for n in widths)


def _deep_gemm_tiles() -> tuple[GemmTile, ...]:
    """What DeepGEMM offers on Hopper: 64 rows alone up to 64 tokens, and widths in steps of 16."""
    return tuple(
        GemmTile(m=m, n=n, m_min=1 if m == 64 else 65, pace_alone=_ALONE.get((m, n), 1.0))
        for m in (64, 128, 256)
        for n in range(16, 257, 16)
        if (n <= 128 or gcd(n, 128) == n - 128) and (m <= 128 or n <= 128)
    )


_ALONE = {(128, 192): 3.0, (128, 256): 3.0, (256, 96): 3.0}
"""Read off the measured rows: two to four times as long where 97 to 132 such tiles are the whole launch."""
_WHOLE: dict[str, Any] = {"splits": (1,), "split_us": 0.0}
"""Kernels that never split k."""
_QUANTISES: dict[str, Any] = {**_WHOLE, "quantise_ratio": 0.6}
"""And whose rows hold the pass that quantises the activations."""
_BLACKWELL: dict[str, Any] = {**_QUANTISES, "tiles": _tiles((128, 256), (64, 128, 256)), "drain_k": 100.0}
"""Tensor Cores of Blackwell take 128 rows at least, however few are there."""

_WEIGHT_ONLY: dict[str, Any] = {
    **_WHOLE,
    "tiles": _tiles((16, 32, 64, 128), (64, 128, 256)),
    "load_ratio": 2.4,
    "drain_k": 100.0,
    "unpack_rows": 20.0,
}
"""Kernels that unpack weights in registers, on the tiles of Ampere's instructions."""

_KNOWN: dict[tuple[str, str, str], dict[str, Any]] = {
    ("sglang", "fp8", "hopper"): {**_QUANTISES, "tiles": _HOPPER_FP8_TILES, "padding_ratio": 1.5},
    ("sglang", "fp8", "ada"): {**_QUANTISES, "tiles": _ADA_FP8_TILES, "resident_share": 0.9},
    ("sglang", "fp8_block", "hopper"): {
        **_QUANTISES,
        "tiles": _deep_gemm_tiles(),
        "drain_k": 100.0,
        "fewest_waves": True,
    },
    ("sglang", "bf16", "blackwell"): {
        "tiles": tuple(tile for tile in _COMMON_TILES if tile.m >= 64),
        "drain_k": 100.0,
    },
    **{("sglang", form, "blackwell"): _BLACKWELL for form in ("fp8", "fp8_block", "nvfp4")},
    ("sglang", "nvfp4", "rtxblackwell"): {
        **_QUANTISES,
        "tiles": _tiles((128, 256), (128,)),
        "drain_k": 100.0,
    },
    ("trtllm", "fp8_block", "ada"): {
        **_QUANTISES,
        "tiles": _tiles((32, 64, 128), (64, 128)),
        "drain_k": 100.0,
        "hot_copies": 5,
    },
    ("sglang", "int4", "ampere"): _WEIGHT_ONLY,
    ("trtllm", "int4", "ampere"): {**_WEIGHT_ONLY, "vector_rows": 4, "vector_ramp_us": 8.0},
}
"""What is known of (library, format, architecture), beside the common start.

TensorRT-LLM's weight-only layers take a kernel of vector products up to 4 tokens (its plugin's small-m fast
path). Rows of its fp8_block layers on the L40S took turns with copies of the weights, five at most: those
whose copies fit the 96 MB of L2 were read from there.
"""


_LIMITS: Limits = {
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
    "hot_ratio": (0.5, 8.0),
    "vector_ramp_us": (0.02, 100.0),
    "unpack_rows": (0.5, 200.0),
}
"""What is fitted, and how far: a parameter that starts at 0 is off and stays off."""
_STEP = 1e-3
_EVALUATIONS = 25
_FACTORS = (0.7, 0.8, 0.9, 0.95, 1.05, 1.1, 1.25, 1.4)
_WORTH_IT = 1e-4
"""Share by which a selection penalty must lower the objective to be kept: a tie leaves the tile as it is."""
_PACES = ("pace", "pace_alone", "pace_half")
_HOT_RATIO = 3.0
_ROUNDS = 3


def merged_repeats(rows: Rows[Gemm]) -> Rows[Gemm]:
    """One row for each (m, n, k), the median of its repeats, in ascending order."""
    label = rows.labels("m", "n", "k")
    order = np.argsort(label, kind="stable")
    first = np.unique(label, return_index=True)[1]
    groups = np.split(rows.time_us[order], np.cumsum(np.bincount(label))[:-1])
    medians = np.asarray([np.median(group) for group in groups])
    return Rows(rows.where(first).operator, medians)


def fit_gemm(
    rows: Rows[Gemm],
    gpu: Gpu,
    *,
    source: str,
    start: GemmKernel | None = None,
    pinned: Collection[str] = (),
) -> GemmKernel:
    """Kernel parameters of `rows` (one for each shape, `merged_repeats`), with `fit` filled in.

    start: tiles, splits and the values to begin with (`calibrate.gemm_start`; the common ones if None).
    pinned: parameters that stay as `start` has them, such as a ramp that only this benchmark has.
    Deterministic; a minute or two for 10,000 rows. Raises DataError where there are fewer than two
    weight shapes, which cannot separate a ramp from a bandwidth or be held out.
    """
    shapes = rows.labels("n", "k")
    if shapes.max() < 1:
        raise DataError(f"{source}: one weight shape (n, k) only; a GEMM fit needs two or more")
    begin = start or gemm_start("torch", rows.operator.form, gpu)
    kernel = unscored_gemm(rows, gpu, begin, pinned=pinned)
    return with_fit(
        kernel,
        rows,
        lambda each, part: _time_us(each, part, gpu),
        lambda part: _refined(kernel, part.where(_thin(part)), gpu, rounds=1, pinned=pinned),
        source=source,
    )


def unscored_gemm(
    rows: Rows[Gemm], gpu: Gpu, start: GemmKernel, *, pinned: Collection[str] = ()
) -> GemmKernel:
    """Kernel parameters of `rows` from `start`, whose `fit` is left as it is."""
    begin = _with_hot_weights(start, rows, gpu)
    return _refined(begin, rows.where(_thin(rows)), gpu, rounds=_ROUNDS, pinned=pinned)


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
        return msgspec.structs.replace(kernel, hot_share=1.0, hot_ratio=_HOT_RATIO)
    is_hot = rows.time_us < operator.bytes / gpu.bandwidth_bytes_per_s * US_PER_S
    if not is_hot.any():
        return kernel
    share = float(np.max(operator.weight_bytes[is_hot])) / gpu.l2_bytes
    return msgspec.structs.replace(kernel, hot_share=share, hot_ratio=_HOT_RATIO)


def _time_us(kernel: GemmKernel, rows: Rows[Gemm], gpu: Gpu) -> FloatArray:
    return gemm_time(gpu, kernel, rows.operator, cold=False).time_us


def _refined(
    kernel: GemmKernel, rows: Rows[Gemm], gpu: Gpu, *, rounds: int, pinned: Collection[str] = ()
) -> GemmKernel:
    """Physical parameters by least squares and selection penalties by line search, in turn."""
    weight = 1.0 / np.hypot(1.0, 0.15 * _resolution_us(rows) / rows.time_us / 0.03)
    for _ in range(rounds):
        kernel = _with_physics(kernel, rows, gpu, weight, pinned)
        refine = _with_paces if kernel.fewest_waves else _with_penalties
        kernel = refine(kernel, rows, gpu, weight)
    return kernel


def _with_physics(
    kernel: GemmKernel, rows: Rows[Gemm], gpu: Gpu, weight: FloatArray, pinned: Collection[str]
) -> GemmKernel:
    """The kernel with least-squares physical parameters, at the library's selection penalties.

    The derivative holds the choice of tile fixed: it changes at points only, and one choice costs as much
    as all derivatives together.
    """
    operator = rows.operator
    log_time = np.log(rows.time_us)
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

    return refined(
        kernel,
        limits,
        lambda trial: weight * (np.log(_time_us(trial, rows, gpu)) - log_time),
        jac=slopes,
        max_nfev=_EVALUATIONS,
    )


def _replaced(kernel: GemmKernel, names: Iterable[str], log_values: FloatArray) -> GemmKernel:
    """The kernel with the named parameters at exp(log_values)."""
    return msgspec.structs.replace(kernel, **dict(zip(names, np.exp(log_values).tolist(), strict=True)))


def _with_paces(kernel: GemmKernel, rows: Rows[Gemm], gpu: Gpu, weight: FloatArray) -> GemmKernel:
    """The paces of each tile that bring its own rows nearest; who counts waves never looks at them."""
    log_measured = np.log(rows.time_us)
    tile_of_row = gemm_choice(gpu, kernel, rows.operator) // len(kernel.splits)

    def costs(tiles: tuple[GemmTile, ...]) -> FloatArray:
        trial = msgspec.structs.replace(kernel, tiles=tiles)
        errors = weight * (np.log(_time_us(trial, rows, gpu)) - log_measured)
        each = np.sqrt(1.0 + (errors / SCALE) ** 2) - 1.0
        return as_float(np.bincount(tile_of_row, weights=each, minlength=len(tiles)))

    tiles = kernel.tiles
    best = costs(tiles)
    for name in _PACES:
        begin = tiles
        for factor in (*_FACTORS, 2.0):
            trial = tuple(_scaled(tile, name, factor) for tile in begin)
            costs_now = costs(trial)
            is_better = costs_now < best * (1.0 - _WORTH_IT)
            tiles = tuple(
                new if better else old for new, old, better in zip(trial, tiles, is_better, strict=True)
            )
            best = np.minimum(best, costs_now)
    return msgspec.structs.replace(kernel, tiles=tiles)


def _scaled(tile: GemmTile, name: str, factor: float) -> GemmTile:
    return msgspec.structs.replace(tile, **{name: factor * getattr(tile, name)})


def _with_penalties(kernel: GemmKernel, rows: Rows[Gemm], gpu: Gpu, weight: FloatArray) -> GemmKernel:
    """One pass over the tiles: the selection penalty of each that lowers the objective most.

    The times do not depend on it, so each trial is one argmin over the candidates' times.
    """
    log_times = np.log(gemm_candidates_us(gpu, kernel, rows.operator, cold=False))
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
        msgspec.structs.replace(tile, selection_penalty=float(penalty))
        for tile, penalty in zip(kernel.tiles, penalties, strict=True)
    )
    return msgspec.structs.replace(kernel, tiles=tiles)
