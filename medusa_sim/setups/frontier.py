"""The set-ups that nothing beats: none else is both faster for the user and better by the measure."""

from __future__ import annotations

import numpy as np

from medusa_sim.arrays import BoolArray, FloatArray


def on_frontier(speed: FloatArray, worth: FloatArray) -> BoolArray:
    """(n,) whether no other row has at least this speed and this worth, and more of one of them.

    speed, worth: larger is better; nan is never on the frontier. Of equal rows the first is.
    """
    order = np.lexsort((-worth, -speed))
    order = order[np.isfinite(speed[order]) & np.isfinite(worth[order])]
    best_before = np.maximum.accumulate(np.concatenate([[-np.inf], worth[order]]))[:-1]
    found = np.zeros(speed.size, dtype=np.bool_)
    found[order] = worth[order] > best_before
    return found
