"""What a GEMM library can choose from: its tiles, each with every split of the k loop."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from medusa_sim.arrays import FloatArray, IntArray
from medusa_sim.specs.gpu import Gpu
from medusa_sim.specs.kernels import GemmKernel


@dataclass(frozen=True, slots=True)
class Candidates:
    """Everything the library can choose: tiles, each with every split. Arrays of one shape."""

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
        """The candidates at `index`, in its shape."""
        return Candidates(*(column[index] for column in self._columns()))

    def before(self, dimensions: int) -> Candidates:
        """With `dimensions` axes of length 1 after the candidates' own, to broadcast against shapes."""
        shape = (-1, *(1 for _ in range(dimensions)))
        return Candidates(*(column.reshape(shape) for column in self._columns()))

    def allowed(self, m: FloatArray, n: FloatArray) -> npt.NDArray[np.bool_]:
        """Whether the library uses the candidate at all for these m and n."""
        inside: npt.NDArray[np.bool_] = (
            (m >= self.m_min) & (m <= self.m_max) & (n >= self.n_min) & (n <= self.n_max)
        )
        return inside

    def _columns(self) -> tuple[FloatArray, ...]:
        return tuple(getattr(self, field.name) for field in fields(self))


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
    return Candidates(*np.asarray(rows, dtype=np.float64).T)


def wave_cost(gpu: Gpu, candidate: Candidates, m: FloatArray, n: FloatArray) -> FloatArray:
    """What a library that counts waves makes least: waves, idle SMs in the last, padding, then 1 / tile_n.

    Each in units that the next cannot reach. Source: DeepGEMM (MIT), `get_best_config` of its heuristics.
    """
    columns = np.ceil(n / candidate.tile_n)
    blocks = np.ceil(m / candidate.tile_m) * columns
    waves = np.ceil(blocks / gpu.sms)
    padding = (columns * candidate.tile_n - n) / candidate.tile_n
    return 4.0 * gpu.sms * waves - 2.0 * (blocks - (waves - 1.0) * gpu.sms) + padding + 1.0 / candidate.tile_n
