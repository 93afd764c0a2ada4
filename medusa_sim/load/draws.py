"""Accepted drafts of a chain, drawn by position; requests may be easier or harder to draft for than others.

    (L3)  logit a_k(request) = logit a_k + m + s z,  z normal

a_k is the profile's probability that draft k is accepted where those before it were, s the spread
(`--acceptance-spread`). Rates of a profile are counted by step, and a hard request takes more steps: m is
chosen so that the harmonic mean of tokens per step over the requests, which throughput follows, stays the
profile's.

`Decoding` has the requests that decode: lengths, what they still have to emit, the KV blocks that they hold.
"""

from __future__ import annotations

import numpy as np

from medusa_sim.arrays import FloatArray, IntArray
from medusa_sim.load.limits import Limits

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


class Decoding:
    """Requests in the first `count` places of the arrays, in order of admission.

    at: which request; remaining: tokens to emit; length: tokens in the KV cache, `length_sum` of all; shared:
    blocks of each that are held elsewhere too, `shared_sum` of all.
    """

    def __init__(self, limits: Limits) -> None:
        self.block_tokens, self.held = limits.block_tokens, limits.held
        self.slots = 1 + limits.lookahead
        self.at, self.remaining, self.length, self.shared = (
            np.zeros(limits.max_requests, dtype=np.int64) for _ in range(4)
        )
        self.count = 0
        self.length_sum = self.shared_sum = 0

    def join(self, request: int, remaining: int, length: int, shared: int = 0) -> None:
        """A request whose prompt has been read decodes from the next step on."""
        place = self.count
        self.at[place], self.remaining[place], self.length[place] = request, remaining, length
        self.shared[place] = shared
        self.length_sum += length
        self.shared_sum += shared
        self.count = place + 1

    def drop_last(self) -> tuple[int, int]:
        """(request, tokens that remain) of the request that was admitted last; its place is free."""
        self.count -= 1
        self.length_sum -= int(self.length[self.count])
        self.shared_sum -= int(self.shared[self.count])
        return int(self.at[self.count]), int(self.remaining[self.count])

    def emit(self, gained: IntArray | int, total: int) -> None:
        """Every request has emitted `gained` tokens, `total` of all."""
        self.remaining[: self.count] -= gained
        self.length[: self.count] += gained
        self.length_sum += total

    def remove_finished(self) -> list[int]:
        """Requests without tokens to emit leave; which they were."""
        count = self.count
        staying = self.remaining[:count] > 0
        if staying.all():
            return []
        gone: list[int] = self.at[:count][~staying].tolist()
        kept = int(staying.sum())
        for array in (self.at, self.remaining, self.length, self.shared):
            array[:kept] = array[:count][staying]
        self.count = kept
        self.length_sum = int(self.length[:kept].sum())
        self.shared_sum = int(self.shared[:kept].sum())
        return gone

    def blocks(self, drafts: int, steps: int = 1) -> int:
        """KV blocks held in the last of so many steps, if every draft is accepted until then."""
        more = (drafts + 1) * (steps - 1) + drafts + self.slots
        filled = (self.length[: self.count] + (more + self.block_tokens - 1)) // self.block_tokens
        if self.held is None:
            return int(filled.sum()) - self.shared_sum
        return int(np.ceil(self.held.take(filled, mode="clip").sum())) - self.shared_sum

    def blocks_bound(self, drafts: int, steps: int) -> int:
        """KV blocks held in the last of so many steps, at most; quicker than `blocks` where it can be."""
        if self.held is not None:
            return self.blocks(drafts, steps)
        size = self.block_tokens
        more = (drafts + 1) * steps - 1 + self.slots
        return (self.length_sum + self.count * (more + size - 1)) // size - self.shared_sum

    def steps_until_full(self, drafts: int, kv_blocks: int) -> int:
        """Steps after which so many blocks may be full, at least 1."""
        size, count = self.block_tokens, self.count
        if self.held is not None:
            free = (kv_blocks - self.blocks(drafts) - count) * size
        else:
            free = (kv_blocks + self.shared_sum) * size - self.length_sum
            free -= count * (size - 2 + self.slots)
        return max(free // (count * (drafts + 1)), 1)

    @property
    def cache_tokens(self) -> int:
        """Tokens' worth of KV cache that is held, of all layers."""
        if self.held is None:
            return self.length_sum - self.shared_sum * self.block_tokens
        return self.blocks(-self.slots) * self.block_tokens
