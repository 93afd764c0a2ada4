"""Draws: how many tokens a request emits in each of its steps, drawn before the run begins.

    (L3)  accepted = the number of i <= K with u < r_i,  u uniform
    (L4)  logit a_i(request) = logit a_i + shift + spread x normal
    (L5)  P(found after found) = 1 - (1 - match) / runs,  P(found after none) = match / runs

Draws stand in a long row: each is one step, and holds the tokens that it emits with the longest draft; each
number of tokens is there as often as the profile says, in random order. A request starts at a draw of its own
and goes on by one a step; with K drafts a draw emits at most K + 1. So what a request draws depends neither
on who is served with it nor on the policy, and policies can be compared request by request.

In (L3) r_i is the probability that at least i drafts are accepted. In (L4) a_i is the profile's probability
that draft i is accepted where those before it were, spread its `request_spread`, normal a draw of the
standard normal distribution. Profiles count by step, and a hard request takes more steps: shift is chosen so
that the harmonic mean of tokens per step over the requests, which throughput follows, stays the profile's. In
(L5) match is the share of steps in which a look-up finds drafts (`match_rate`), in runs so many times as long
as those of independent steps (`match_runs`): a text that is being copied goes on being copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from medusa_sim.arrays import BoolArray, FloatArray, IntArray, conditional
from medusa_sim.load.accepted import Accepted

KINDS = 64
"""Kinds of requests, equally many of each, that stand for the normal distribution of (L4)."""
_LEAST_DRAWS, _MOST_DRAWS = 1 << 12, 1 << 18
"""There are as many draws as the requests take steps, within these."""
_LEAST_DRAWS_OF_KIND = 1 << 11
_EDGE = 1e-9


class Draws:
    """Draws of every request. first: (requests,) the index of each one's first step.

    output_tokens: (requests,) tokens to emit; spread: that of (L4). Where a request's first draft is accepted
    more often than drafts are found, they are found as often as it is accepted.
    """

    def __init__(self, accepted: Accepted, output_tokens: IntArray, seed: int, spread: float) -> None:
        longest = int(output_tokens.max())
        self.first = [0] * output_tokens.size
        self._tokens = np.ones(longest + 1, dtype=np.int64)
        self._found: IntArray | None = None
        self._sums: dict[int, Sequence[int]] = {}
        if not accepted.rates.size:
            return
        random = np.random.default_rng([seed, 5])
        rates = rates_by_kind(accepted.rates, spread)
        kinds = len(rates)
        steps = round(float(output_tokens.sum() / accepted.tokens_per_step[-1]))
        draws = min(max(steps, _LEAST_DRAWS), _MOST_DRAWS) // kinds
        if kinds > 1:
            draws = max(draws, _LEAST_DRAWS_OF_KIND)
        first = random.integers(0, draws, output_tokens.size)
        if kinds > 1:
            first += kinds_of(output_tokens.size, seed) * (draws + longest)
        self.first = first.tolist()
        found = None
        if accepted.match_rate < 1.0:
            match_rate = np.maximum(rates[:, :1], accepted.match_rate)
            rates = rates / match_rate
            found = _in_runs(match_rate, accepted.match_runs, draws, random)
        tokens = random.permuted(_evenly(rates, draws), axis=1)
        if found is not None:
            tokens = np.where(found, tokens, 1)
            self._found = _in_a_row(found, longest)
        self._tokens = _in_a_row(tokens, longest)

    def tokens_before(self, drafts: int) -> Sequence[int]:
        """(draws + 1,) tokens of all draws before each, where every step has so many drafts."""
        if drafts not in self._sums:
            tokens = np.minimum(self._tokens, drafts + 1)
            self._sums[drafts] = [0, *np.cumsum(tokens).tolist()] if drafts else range(tokens.size + 1)
        return self._sums[drafts]

    def found_before(self) -> Sequence[int] | None:
        """(draws + 1,) draws before each in which drafts were found; None where they always are."""
        return None if self._found is None else [*accumulate(self._found.tolist(), initial=0)]


def rates_by_kind(rates: FloatArray, spread: float) -> FloatArray:
    """(kinds, drafts) probability that at least k drafts are accepted, of the hardest requests first (L4)."""
    if spread == 0.0 or rates.size == 0:
        return rates[None, :]
    from scipy.optimize import brentq
    from scipy.special import expit, logit, ndtri

    middle_logit = logit(np.clip(conditional(rates), _EDGE, 1.0 - _EDGE))
    normal = spread * ndtri((np.arange(KINDS) + 0.5) / KINDS)

    def shifted(shift: float) -> FloatArray:
        return np.asarray(np.cumprod(expit(middle_logit[None, :] + normal[:, None] + shift), axis=1))

    def excess(shift: float) -> float:
        """Steps a token over those of the rates as they are."""
        return float((1.0 / (1.0 + shifted(shift).sum(axis=1))).mean()) - 1.0 / (1.0 + float(rates.sum()))

    far = 20.0 + 5.0 * spread
    return shifted(float(brentq(excess, -far, far, xtol=1e-13)))


def kinds_of(count: int, seed: int) -> IntArray:
    """(count,) the kind of each request."""
    return np.random.default_rng([seed, 3]).integers(0, KINDS, count)


def _evenly(rates: FloatArray, draws: int) -> IntArray:
    """(kinds, draws) tokens of a step, each number as often as rates (kinds, drafts) say, the most first."""
    share = (np.arange(draws) + 0.5) / draws
    tokens = np.ones((len(rates), draws), dtype=np.int64)
    for rate in rates.T:
        tokens += share < rate[:, None]
    return tokens


def _in_runs(match_rate: FloatArray, runs: float, draws: int, random: np.random.Generator) -> BoolArray:
    """(kinds, draws) whether drafts are found (L5). match_rate: (kinds, 1)."""
    drawn = random.random((len(match_rate), draws))
    goes_on = 1.0 - 1.0 / runs
    begins = drawn >= goes_on
    begins[:, 0] = True
    drawn[:, 0] = goes_on + drawn[:, 0] / runs
    begin = np.maximum.accumulate(np.where(begins, np.arange(draws), 0), axis=1)
    return np.asarray(np.take_along_axis(drawn < goes_on + match_rate / runs, begin, axis=1))


def _in_a_row(draws: IntArray | BoolArray, longest: int) -> IntArray:
    """All kinds in a row, each followed by its beginning: no request runs out of draws."""
    return np.pad(draws, ((0, 0), (0, longest)), mode="wrap").astype(np.int64).ravel()
