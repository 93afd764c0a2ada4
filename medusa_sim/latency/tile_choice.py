"""Which candidate (`latency.tiles`) a GEMM library takes: the one of least cost, found with little work."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from medusa_sim.arrays import BoolArray, FloatArray, IntArray
from medusa_sim.gpus.gpu import Gpu
from medusa_sim.gpus.kernels import GemmKernel
from medusa_sim.latency.tiles import Candidates

_BOUND_DIGITS = 1e-4
"""Relative rounding error of a bound in single precision, at most."""
_STEPS_KEPT = 1 << 15
"""64 kB of choices."""


class KnownChoices:
    """The candidate that a library takes at each whole step of m. find: of some of the steps, in one row."""

    def __init__(self, find: Callable[[FloatArray], IntArray]) -> None:
        self._find = find
        self._known: npt.NDArray[np.int16] = np.empty(0, np.int16)

    def at(self, steps: FloatArray) -> IntArray:
        """At whole steps, each found once; beyond _STEPS_KEPT none is remembered."""
        if np.max(steps, initial=0.0) > _STEPS_KEPT:
            new, index = np.unique(steps, return_inverse=True)
            return self._find(new)[index].reshape(steps.shape)
        place, found = steps.astype(np.int64), self._known
        if (more := np.max(place, initial=0) + 1 - found.size) > 0:
            found = np.concatenate([found, np.full(more, -1, np.int16)])
        if (unknown := place[found.take(place) < 0]).size:
            asked = np.flatnonzero(np.bincount(unknown))
            found[asked] = self._find(asked.astype(np.float64))
        self._known = found  # at last: other threads ask too
        return found.take(place).astype(np.int64)


def cheapest(bound: FloatArray, cost: Callable[[IntArray, IntArray | slice], FloatArray]) -> IntArray:
    """(M,) the candidate of least cost of each of M layers, of equal ones the first.

    bound: (C, M), below the costs and quick to know. cost: of the given candidates of the layers at the given
    places, one each. A candidate whose bound is above what another one costs is never asked for: of 40 a
    handful is left.
    """
    least, place = _where(bound == bound.min(axis=0))
    first = np.empty(bound.shape[1], np.int64)
    first[place] = least
    reached = cost(first, slice(None))
    index, place = _where(bound <= (reached * (1.0 + _BOUND_DIGITS)).astype(bound.dtype))
    order = np.lexsort((cost(index, place), place))
    found: IntArray = index[order[np.searchsorted(place[order], np.arange(first.size))]]
    return found


def _where(holds: BoolArray) -> tuple[IntArray, IntArray]:
    """`np.nonzero` of a table, three times as fast."""
    return np.divmod(np.flatnonzero(holds), holds.shape[1])


def among_allowed(
    kernel: GemmKernel, candidates: Candidates, sizes: tuple[FloatArray, FloatArray], cost: FloatArray
) -> FloatArray:
    """(tiles x splits, *shape) costs of (tiles, splits, *shape), infinite where the library does not take it.

    sizes: m and n.
    """
    allowed, shape = candidates.allowed(*sizes), cost.shape[2:]
    every = cost if allowed.all() else np.where(allowed, cost, np.inf)
    every = np.broadcast_to(every, (len(kernel.tiles), len(kernel.splits), *shape))
    return every.reshape(-1, *shape)


def wave_cost(gpu: Gpu, candidate: Candidates, m: FloatArray, n: FloatArray) -> FloatArray:
    """What a library that counts waves makes least: waves, idle SMs in the last, padding, then 1 / tile_n.

    Each in units that the next cannot reach. Source: DeepGEMM (MIT), `get_best_config` of its heuristics.
    """
    columns = np.ceil(n / candidate.tile_n)
    blocks = np.ceil(m / candidate.tile_m) * columns
    waves = np.ceil(blocks / gpu.sms)
    padding = (columns * candidate.tile_n - n) / candidate.tile_n
    return 4.0 * gpu.sms * waves - 2.0 * (blocks - (waves - 1.0) * gpu.sms) + padding + 1.0 / candidate.tile_n
