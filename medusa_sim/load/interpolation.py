"""Nodes of a table: at which sizes it is computed, and between which of them a size lies."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from medusa_sim.arrays import IntArray


def geometric(low: int, high: int, ratio: float, first: int | None = None) -> IntArray:
    """Whole numbers from low to high, each about `ratio` times the one before; from `first` on after low."""
    start = low if first is None else min(first, high)
    count = 2 + int(np.ceil(np.log(high / start) / np.log(ratio))) if high > start else 2
    return np.union1d([low], np.rint(np.geomspace(start, high, count)).astype(np.int64))


def between(nodes: list[float], value: float) -> tuple[int, float]:
    """(the place of the node below, the share of the way to the next); beyond the ends along the last two."""
    place = bisect_right(nodes, value, 1, len(nodes) - 1) - 1
    return place, (value - nodes[place]) / (nodes[place + 1] - nodes[place])
