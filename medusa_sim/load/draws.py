"""Accepted drafts of a chain, drawn by position."""

from __future__ import annotations

import numpy as np

from medusa_sim.arrays import FloatArray, IntArray

_DRAWN = 1 << 16
"""Drawn at a time."""


class Draws:
    """Tokens that a step with a chain of K drafts emits: P(more than i) = rates[kind, i - 1].

    rates: (kinds, at least K); kinds: (requests,) which row is whose, where there are several.
    """

    def __init__(self, rates: FloatArray, drafts: int, seed: int, kinds: IntArray | None = None) -> None:
        self._falling = np.ascontiguousarray(rates[0, :drafts][::-1])
        self._rates = np.ascontiguousarray(rates[:, :drafts].T)
        self._kinds = kinds
        self._random = np.random.default_rng([seed, drafts])
        self._held: FloatArray | IntArray = np.empty(0)
        self._used = 0

    def take(self, steps: int, at: IntArray) -> IntArray:
        """(steps, requests) tokens that these requests emit, one more than drafts are accepted."""
        wanted = steps * at.size
        begin = self._used
        if begin + wanted > self._held.size:
            uniform = self._random.random(max(_DRAWN, wanted))
            self._held, begin = self._emitted(uniform) if self._kinds is None else uniform, 0
        self._used = begin + wanted
        taken = self._held[begin : self._used].reshape(steps, at.size)
        if self._kinds is None:
            return taken  # type: ignore[return-value]  # drawn by `_emitted`
        own = self._rates.take(self._kinds.take(at), axis=1)
        return np.asarray(np.add.reduce(taken < own[:, None, :], axis=0, dtype=np.int64) + 1)

    def _emitted(self, uniform: FloatArray) -> IntArray:
        """Of the one kind that there is."""
        below = np.searchsorted(self._falling, uniform, side="right")
        return np.asarray(self._falling.size + 1 - below, dtype=np.int64)

    def give_back(self, count: int) -> None:
        """The last `count` of what was taken were not needed."""
        self._used -= count
