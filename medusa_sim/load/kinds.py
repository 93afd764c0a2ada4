"""Requests that are easier or harder to draft for than others, and what their past acceptance tells of each.

    (L4)  logit a_k(request) = logit a_k + m + s z,  z normal

a_k is the profile's probability that draft k is accepted where those before it were, s the spread
(`--acceptance-spread`). Rates of a profile are counted by step, and a hard request takes more steps: m is
chosen so that the harmonic mean of tokens per step over the requests, which throughput follows, stays the
profile's.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from medusa_sim.arrays import FloatArray, IntArray

KINDS = 64
"""Requests of as many kinds, equally many of each, stand for the normal distribution."""
_EDGE = 1e-9
_CLASSES = 16
_SHARES = 64
_MOST_TRIALS = 1000
_TRIALS = np.unique(np.rint(np.concatenate([[0.0], np.geomspace(1, _MOST_TRIALS, 28)])))
"""Trials that are told apart, and shares of them that were accepted."""
_PLACE = np.array([1, _MOST_TRIALS + 1])


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


class Hardness:
    """Classes of requests by how many of the drafts that were tried for them were accepted.

    gains: (classes, K) probability that at least so many drafts of a request of a class are accepted: the
    mean over the kinds of (L4), each weighted by how likely its trials are. One class where all are alike.
    """

    def __init__(self, rates: FloatArray, spread: float) -> None:
        kinds = rates_by_kind(rates, spread)
        accepted = np.arange(_SHARES + 1) / _SHARES * _TRIALS[:, None]
        steps = np.concatenate([np.ones((len(kinds), 1)), kinds], axis=1)
        trial = np.clip(kinds.sum(axis=1) / steps[:, :-1].sum(axis=1), _EDGE, 1.0 - _EDGE)
        likely = accepted[..., None] * np.log(trial) + (_TRIALS[:, None] - accepted)[..., None] * np.log1p(
            -trial
        )
        weight = np.exp(likely - likely.max(axis=-1, keepdims=True))
        gains = (weight / weight.sum(axis=-1, keepdims=True)) @ kinds
        score = gains.sum(axis=-1)
        width = max(float(np.ptp(score)), _EDGE) / _CLASSES
        distinct, place = np.unique(
            np.minimum((score - score.min()) / width, _CLASSES - 1).astype(np.int64), return_inverse=True
        )
        self._place = place.ravel()
        cells = gains.reshape(place.size, -1)
        self.gains = np.stack([cells[self._place == each].mean(axis=0) for each in range(distinct.size)])
        rows = np.searchsorted(_TRIALS, np.arange(_MOST_TRIALS + 1), side="right") - 1
        self._row = rows * (_SHARES + 1)
        every = np.arange(_MOST_TRIALS + 1)
        known = [self._found(np.minimum(every, each), each).astype(np.int8) for each in every[:, None]]
        self._known = np.concatenate(known)

    def of(self, past: IntArray) -> IntArray:
        """(requests,) the class of each. past: (2, requests) drafts that were accepted, and tried."""
        tried = past[1]
        if tried.item(tried.argmax()) > _MOST_TRIALS:
            return self._found(past[0], tried)
        return np.asarray(self._known.take(_PLACE.dot(past)))

    def _found(self, accepted: IntArray, tried: IntArray) -> IntArray:
        """`of`, worked out."""
        share = (accepted * _SHARES + tried // 2) // np.maximum(tried, 1)
        place = self._row[np.minimum(tried, _MOST_TRIALS)] + share
        return np.asarray(self._place.take(place))


@lru_cache(maxsize=4)
def hardness_of(rates: tuple[float, ...], spread: float) -> Hardness:
    """The classes of a profile's rates and a spread."""
    return Hardness(np.array(rates), spread)
