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
    from scipy.special import expit, logit, ndtri

    if spread == 0.0 or rates.size == 0:
        return rates[None, :]
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
    """Accepted drafts of a chain of K: P(at least i) = rates[kind, i - 1].

    rates: (kinds, at least K); kinds: (requests,) which row is whose, where there are several.
    """

    def __init__(self, rates: FloatArray, drafts: int, seed: int, kinds: IntArray | None = None) -> None:
        self._rates = np.ascontiguousarray(rates[:, :drafts])
        self._kinds = kinds
        self._random = np.random.default_rng([seed, drafts])
        self._held: FloatArray | IntArray = np.empty(0)
        self._used = 0

    def take(self, steps: int, at: IntArray) -> IntArray:
        """(steps, requests) accepted drafts of these requests."""
        wanted = steps * at.size
        if self._used + wanted > self._held.size:
            uniform = self._random.random(max(_DRAWN, wanted))
            self._held, self._used = self._accepted(uniform) if len(self._rates) == 1 else uniform, 0
        taken = self._held[self._used : self._used + wanted].reshape(steps, at.size)
        self._used += wanted
        if len(self._rates) == 1:
            return np.asarray(taken, dtype=np.int64)
        assert self._kinds is not None  # noqa: S101  # several rows have an owner each
        own = self._rates[self._kinds[at]]
        accepted = np.zeros(taken.shape, dtype=np.int64)
        for column in range(own.shape[1]):
            accepted += taken < own[:, column]
        return accepted

    def _accepted(self, uniform: FloatArray) -> IntArray:
        """Of the one kind that there is."""
        falling = self._rates[0, ::-1]
        return np.asarray(falling.size - np.searchsorted(falling, uniform, side="right"), dtype=np.int64)

    def give_back(self, count: int) -> None:
        """The last `count` of what was taken were not needed."""
        self._used -= count
