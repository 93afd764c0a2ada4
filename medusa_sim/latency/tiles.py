"""What a GEMM library can choose from: its tiles, each with every split of the k loop."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from medusa_sim.arrays import FloatArray, IntArray
from medusa_sim.gpus.kernels import GemmKernel


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
    """Tiles by splits, with `dimensions` axes of length 1 last: what is the same of all splits once."""
    tiles, splits = len(kernel.tiles), len(kernel.splits)
    columns = candidates_of(kernel).columns()
    cubes = [_alike(np.broadcast_to(column, tiles * splits).reshape(tiles, splits)) for column in columns]
    return Candidates(*(cube.reshape(*cube.shape, *(1,) * dimensions).astype(kind) for cube in cubes))


def _alike(cube: FloatArray) -> FloatArray:
    """Once along the axes along which it is the same."""
    for first in (cube[:, :1], cube[:1]):
        cube = cube[: len(first), : first.shape[1]] if (cube == first).all() else cube
    return cube
