"""Requests that are easier or harder to draft for than others.

    (L4)  logit a_k(request) = logit a_k + m + s z,  z normal

a_k is the profile's probability that draft k is accepted where those before it were, s its `request_spread`.
Rates of a profile are counted by step, and a hard request takes more steps: m is chosen so that the harmonic
mean of tokens per step over the requests, which throughput follows, stays the profile's.
"""

from __future__ import annotations

import numpy as np

from medusa_sim.arrays import FloatArray, IntArray

KINDS = 64
"""Requests of as many kinds, equally many of each, stand for the normal distribution."""
_EDGE = 1e-9


def rates_by_kind(rates: FloatArray, spread: float) -> FloatArray:
    """(kinds, K) probabilities that at least so many drafts are accepted, hardest requests first (L4)."""
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
