"""Equal blocks of work on the SMs of a GPU, in waves, beside the memory traffic they share.

`Candidates` is what a GEMM library can choose from: its tiles, each with every split of the k loop.

Calibrated time of norms, rope, activation, residual add and embedding: kernels that only move bytes.

One block works through one row of n elements. With b the bytes read and written (`ElementwiseKernel` has
the other names), and fair = bandwidth / sms the share of the bandwidth of one SM:

    load    = m / sms                                                      rows of one SM
    row(a)  = b / m / (row_ratio fair) (1 + sharing (a - 1))               a rows at once on an SM      (E1)
    memory  = b / (bandwidth_fraction bandwidth)                                                        (E2)
    time    = ramp_us + floor(load / c) |row(c), memory c / load| + |row(a), memory a' / load|          (E3)
              c = rows_per_sm; a' = load mod c, a = ceil(a') rows in the last wave

with |a, b| = sqrt(a^2 + b^2), a smooth maximum. Up to `serial_rows` rows an embedding look-up gathers one row
after another: time = ramp_us + serial_row_us m (E4); the time falls where the library leaves that kernel.

Left in L2 (`cold=False`) bytes cost (1 - hit + hit / l2_ratio) as much, hit = 1 / (1 + (b / (l2_fill
L2))^l2_sharpness). Most public rows are whole microseconds, so a time of 1 or 2 us is known to a half only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from medusa_sim.arrays import FloatArray, IntArray, as_float, in_quadrature, root
from medusa_sim.latency.base import Bound, OperatorTime, calibrated_time, memory_time_us
from medusa_sim.operators.operator import Elementwise
from medusa_sim.specs.fitted import AttentionPath, ExpertKernel
from medusa_sim.specs.gpu import Gpu
from medusa_sim.specs.kernels import ElementwiseKernel, GemmKernel
from medusa_sim.units import US_PER_S


@dataclass(frozen=True, slots=True)
class Candidates:
    """Everything the library can choose: tiles, each with every split. Arrays that broadcast, without
    an axis where all are alike.
    """

    tile_m: FloatArray
    tile_n: FloatArray
    split: FloatArray
    selection_penalty: FloatArray
    cluster: FloatArray
    loads_padding: FloatArray
    pace: FloatArray
    pace_alone: FloatArray
    pace_half: FloatArray
    m_min: FloatArray
    m_max: FloatArray
    n_min: FloatArray
    n_max: FloatArray

    def taken(self, index: IntArray) -> Candidates:
        """The candidates at `index`, in its shape where they differ."""
        return Candidates(*(taken(column, index) for column in self.columns()))

    def allowed(self, m: FloatArray, n: FloatArray) -> npt.NDArray[np.bool_]:
        """Whether the library uses the candidate at all for these m and n."""
        inside: npt.NDArray[np.bool_] = (
            (m >= self.m_min) & (m <= self.m_max) & (n >= self.n_min) & (n <= self.n_max)
        )
        return inside

    @property
    def has_paces(self) -> bool:
        """Whether any has a factor of its own."""
        return any((pace != 1.0).any() for pace in (self.pace, self.pace_alone, self.pace_half))

    def columns(self) -> tuple[FloatArray, ...]:
        """In the order of the fields."""
        return tuple(getattr(self, name) for name in self.__slots__)


def taken(values: FloatArray, index: IntArray) -> FloatArray:
    """Those of candidates at `index`; one that all share stays as it is."""
    return values.take(index) if values.size > 1 else values


@lru_cache(maxsize=256)
def candidates_of(kernel: GemmKernel) -> Candidates:
    """Tiles in the order of `kernel.tiles`, each with every split: arrays of one axis."""
    rows = [
        (
            *(tile.m, tile.n, split),
            tile.selection_penalty * (kernel.split_penalty if split > 1 else 1.0),
            *(tile.cluster, tile.loads_padding, tile.pace, tile.pace_alone, tile.pace_half),
            *(tile.m_min, tile.m_max or np.inf, tile.n_min, tile.n_max or np.inf),
        )
        for tile in kernel.tiles
        for split in kernel.splits
    ]
    columns = np.asarray(rows, dtype=np.float64).T
    return Candidates(
        *(np.asarray(column[0]) if (column == column[0]).all() else column for column in columns)
    )


@lru_cache(maxsize=256)
def candidates_before(kernel: GemmKernel, dimensions: int = 1, kind: type = np.float64) -> Candidates:
    """Tiles by splits, with `dimensions` axes of length 1 behind: what is the same of all splits once."""
    tiles, splits = len(kernel.tiles), len(kernel.splits)
    columns = candidates_of(kernel).columns()
    cubes = [_alike(np.broadcast_to(column, tiles * splits).reshape(tiles, splits)) for column in columns]
    return Candidates(*(cube.reshape(*cube.shape, *(1,) * dimensions).astype(kind) for cube in cubes))


def _alike(cube: FloatArray) -> FloatArray:
    """Once along the axes along which it is the same."""
    for first in (cube[:, :1], cube[:1]):
        cube = cube[: len(first), : first.shape[1]] if (cube == first).all() else cube
    return cube


_STEPS_KEPT = 1 << 15
"""64 kB of choices."""


class Choices:
    """The candidate that a library takes at each whole step of m. find: of some of the steps, in one row."""

    def __init__(self, find: Callable[[FloatArray], IntArray]) -> None:
        self._find = find
        self._known: npt.NDArray[np.int16] = np.empty(0, np.int16)

    def at(self, steps: FloatArray) -> IntArray:
        """At whole steps, each found once; beyond _STEPS_KEPT none is remembered."""
        if np.max(steps, initial=0.0) > _STEPS_KEPT:
            new, index = np.unique(steps, return_inverse=True)
            return self._find(new)[index].reshape(steps.shape)
        place, known = steps.astype(np.int64), self._known
        if (more := np.max(place, initial=0) + 1 - known.size) > 0:
            known = np.concatenate([known, np.full(more, -1, np.int16)])
        if (unknown := place[known.take(place) < 0]).size:
            asked = np.flatnonzero(np.bincount(unknown))
            known[asked] = self._find(asked.astype(np.float64))
        self._known = known  # at last: other threads ask too
        return known.take(place).astype(np.int64)


def wave_cost(gpu: Gpu, candidate: Candidates, m: FloatArray, n: FloatArray) -> FloatArray:
    """What a library that counts waves makes least: waves, idle SMs in the last, padding, then 1 / tile_n.

    Each in units that the next cannot reach. Source: DeepGEMM (MIT), `get_best_config` of its heuristics.
    """
    columns = np.ceil(n / candidate.tile_n)
    blocks = np.ceil(m / candidate.tile_m) * columns
    waves = np.ceil(blocks / gpu.sms)
    padding = (columns * candidate.tile_n - n) / candidate.tile_n
    return 4.0 * gpu.sms * waves - 2.0 * (blocks - (waves - 1.0) * gpu.sms) + padding + 1.0 / candidate.tile_n


_TINY = 1e-9
_LOST = 1e-18
"""Beside 1.0; smaller powers would end in numbers that are slow to compute with."""
_FAR_BEYOND = 1e3
"""A footprint so far beyond L2 that none of it is left there; keeps the power finite."""


def norm_max(first: FloatArray, second: FloatArray, norm: float) -> FloatArray:
    """(a^p + b^p)^(1/p), never below max(a, b); written on the ratio so that large values do not overflow."""
    larger, smaller = np.maximum(first, second), np.minimum(first, second)
    share = np.maximum(smaller / larger, _LOST ** (1.0 / norm))
    smooth: FloatArray = larger * (1.0 + share**norm) ** (1.0 / norm)
    return smooth


def shared_waves(per_sm: FloatArray, contention: float, rounding: float) -> FloatArray:
    """Waves of so many blocks an SM: whole ones or shared out; shorter than one on a chip that is not full.

    Written without a choice between the two, which takes longer than either.
    """
    several = np.maximum(per_sm, 1.0)
    waves: FloatArray = rounding * np.ceil(several) + (1.0 - rounding - contention) * several
    return waves + contention * per_sm


def waves_us(
    load: FloatArray,
    resident: int,
    sharing: float,
    block_us: tuple[FloatArray | float, FloatArray],
    memory_us: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Time of `load` blocks an SM, `resident` of them at once, and the same without the memory traffic.

        t(a)  = fixed + work (1 + sharing (a - 1))          a blocks at once on an SM
        waves = floor(load / c) |t(c), memory c| + |t(a), memory a'|
                c = resident; a' = load mod c; a = ceil(a') blocks in the last wave

    block_us: (fixed, work) of one block that has its SM to itself. A busier SM does not slow the fixed part.
    memory_us: of one block an SM. On a grid it knows no batch, as the blocks' own time: what is left of the
    full shape are few products.
    """
    fixed_us, work_us = block_us
    full = np.floor(load / resident + _TINY)
    rest = load - full * resident
    last = rest > _TINY
    rest = last * rest
    full_us = fixed_us + work_us * (1.0 + sharing * (resident - 1))
    if resident > 1:
        busy = last * (1.0 + sharing * (np.maximum(np.ceil(rest - _TINY), 1.0) - 1.0))
        rest_us = last * fixed_us + busy * work_us
        rest_square, walk_us = rest_us * rest_us, full * full_us + rest_us
    else:
        rest_square, walk_us = last * (full_us * full_us), (full + last) * full_us
    body = full * in_quadrature(full_us, resident * memory_us)
    body += root(rest_square, (rest * rest) * (memory_us * memory_us))
    return body, walk_us


def byte_us(
    gpu: Gpu, kernel: AttentionPath | ElementwiseKernel | ExpertKernel, moved_bytes: FloatArray, *, cold: bool
) -> FloatArray:
    """Microseconds a byte: from HBM, or also from L2 where the launch before has left `moved_bytes` there.

        hit  = 1 / (1 + (moved / (l2_fill L2))^l2_sharpness)              share still read from L2
        time = (1 - hit + hit / l2_ratio) / (bandwidth_fraction bandwidth)

    cold: everything comes from HBM.
    """
    hbm_us = US_PER_S / (kernel.bandwidth_fraction * gpu.bandwidth_bytes_per_s)
    if cold:
        return np.asarray(hbm_us)
    footprint = moved_bytes / (kernel.l2_fill * gpu.l2_bytes)
    hit = 1.0 / (1.0 + np.minimum(footprint, _FAR_BEYOND) ** kernel.l2_sharpness)
    result: FloatArray = hbm_us * (1.0 - hit + hit / kernel.l2_ratio)
    return result


def elementwise_time(
    gpu: Gpu, kernel: ElementwiseKernel, operator: Elementwise, *, cold: bool = True
) -> OperatorTime:
    """Time of one launch for every (m, n) that `operator` holds (E1 to E4).

    cold: operands come from HBM, and the time is never below bytes / bandwidth. low and high are the
    80 % band of held-out residuals for the range of m.
    """
    moved = operator.bytes
    memory = moved * byte_us(gpu, kernel, moved, cold=cold)
    m = np.broadcast_to(as_float(operator.m), memory.shape)
    fair_us = US_PER_S * gpu.sms / gpu.bandwidth_bytes_per_s
    row_us = moved / m * (fair_us / kernel.row_ratio)
    body, rows_us = waves_us(
        m / gpu.sms, kernel.rows_per_sm, kernel.sharing, (0.0, row_us), memory * (gpu.sms / m)
    )
    if kernel.serial_rows > 0:
        is_serial = m <= kernel.serial_rows
        body = np.where(is_serial, kernel.serial_row_us * m, body)
        rows_us = np.where(is_serial, body, rows_us)
    time_us = kernel.ramp_us + body
    if cold:
        time_us = np.maximum(time_us, memory_time_us(gpu, operator))
    return calibrated_time(
        gpu,
        [(kernel.fit, operator)],
        time_us,
        fixed_us=kernel.ramp_us,
        memory_us=memory,
        work_us=rows_us,
        work=Bound.LATENCY,
    )
