"""Accepted drafts of a chain, drawn by position; requests may be easier or harder to draft for than others.

    (L3)  logit a_k(request) = logit a_k + m + s z,  z normal

a_k is the profile's probability that draft k is accepted where those before it were, s the spread
(`--acceptance-spread`). Rates of a profile are counted by step, and a hard request takes more steps: m is
chosen so that the harmonic mean of tokens per step over the requests, which throughput follows, stays the
profile's.
"""

from __future__ import annotations

import numpy as np

from medusa_sim.arrays import FloatArray, IntArray

_DRAWN = 1 << 16
"""Drawn at a time."""
KINDS = 64
"""Requests of as many kinds, equally many of each, stand for the normal distribution."""
_EDGE = 1e-9


def rates_by_kind(rates: FloatArray, spread: float) -> FloatArray:
    """(kinds, K) probabilities that at least so many drafts are accepted, hardest requests first (L3)."""
    if spread == 0.0 or rates.size == 0:
        return rates[None, :]
    from scipy.special import expit, logit, ndtri

    before = np.concatenate([[1.0], rates[:-1]])
    step = np.divide(rates, before, out=np.zeros_like(rates), where=before > 0.0)
    own = logit(np.clip(step, _EDGE, 1.0 - _EDGE))
    normal = spread * ndtri((np.arange(KINDS) + 0.5) / KINDS)

    def shifted(by: float) -> FloatArray:
        return np.asarray(np.cumprod(expit(own[None, :] + normal[:, None] + by), axis=1))

    wanted = 1.0 / (1.0 + rates.sum())
    low, high = -20.0 - 5.0 * spread, 20.0 + 5.0 * spread
    for _ in range(60):
        middle = 0.5 * (low + high)
        steps_per_token = float((1.0 / (1.0 + shifted(middle).sum(axis=1))).mean())
        low, high = (middle, high) if steps_per_token > wanted else (low, middle)
    return shifted(0.5 * (low + high))


def kinds_of(count: int, seed: int) -> IntArray:
    """(count,) which kind each request is."""
    return np.random.default_rng([seed, 3]).integers(0, KINDS, count)


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
