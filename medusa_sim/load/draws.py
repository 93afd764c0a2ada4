"""Accepted drafts of a chain, drawn by position."""

from __future__ import annotations

import numpy as np

from medusa_sim.arrays import FloatArray, IntArray

_DRAWN = 1 << 16
"""Drawn at a time."""


class Draws:
    """Accepted drafts of a chain of K, drawn by position: P(at least i) = rates[i - 1]."""

    def __init__(self, rates: FloatArray, drafts: int, seed: int) -> None:
        self._falling = rates[:drafts][::-1].copy()
        self._drafts = drafts
        self._random = np.random.default_rng([seed, drafts])
        self._held = np.empty(0, dtype=np.int64)
        self._used = 0

    def take(self, steps: int, requests: int) -> IntArray:
        """(steps, requests) accepted drafts."""
        wanted = steps * requests
        if self._used + wanted > self._held.size:
            uniform = self._random.random(max(_DRAWN, wanted))
            below = np.searchsorted(self._falling, uniform, side="right")
            self._held, self._used = self._drafts - below, 0
        taken = self._held[self._used : self._used + wanted]
        self._used += wanted
        return taken.reshape(steps, requests)

    def give_back(self, count: int) -> None:
        """The last `count` of what was taken were not needed."""
        self._used -= count
