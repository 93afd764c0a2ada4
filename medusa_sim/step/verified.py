"""How many of its candidates a step verifies: all of a request's, or those of drafts that were there.

(N5)  a looked-up step = mean over found ~ Bin(b, match_rate) of a step that verifies b + found (c - 1) tokens
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from medusa_sim.arrays import FloatArray, as_float
from medusa_sim.operators.operator import Size

MOST_APART = 8
"""Requests whose drafts end apart; the mean of more hardly differs."""
_PARTS = 4
"""Equally likely parts of the number of requests that find drafts."""
_LEAST_RATE = 1e-12
"""Of steps that find drafts, and of those that find none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """Which of a request's candidates are verified: all, or those of drafts that its drafter found.

    match_rate: share of the steps in which a drafter that looks drafts up in the text finds any; the others
    are plain. sure_shares: shares of drafts that the drafter is sure of, given that it was of those before;
    the first that it is not sure of ends them. Empty: all are verified.
    """

    match_rate: float = 1.0
    sure_shares: tuple[float, ...] = ()

    @property
    def is_all(self) -> bool:
        """Whether every step verifies all candidates."""
        return self.match_rate == 1.0 and not self.sure_shares

    def mean_tokens(self, candidates: Size) -> Size:
        """Tokens that a step of so many candidates processes of a request, on average."""
        if self.sure_shares:
            return mean_drafted_tokens(as_float(candidates) - 1.0, self.sure_shares)
        if self.match_rate == 1.0:
            return candidates
        return 1.0 + self.match_rate * (np.asarray(candidates, dtype=np.float64) - 1.0)

    def cases(self, batch: Size, candidates: Size) -> tuple[FloatArray, FloatArray]:
        """(tokens of a request, averaged over requests; its probability), (..., cases) each: (N5).

        batch: a mean number of requests has the cases of the nearest whole one.
        """
        requests, tokens = np.broadcast_arrays(as_float(batch), as_float(candidates))
        if self.sure_shares:
            return drafted_tokens(requests, tokens - 1.0, self.sure_shares)
        if self.match_rate == 1.0:
            return tokens[..., None], np.ones((*tokens.shape, 1))
        rate = min(max(self.match_rate, _LEAST_RATE), 1.0 - _LEAST_RATE)
        found, weights = found_shares(np.maximum(np.rint(requests), 1.0), rate)
        return 1.0 + (tokens[..., None] - 1.0) * found, weights


def found_shares(batch: FloatArray, rate: float) -> tuple[FloatArray, FloatArray]:
    """(share of the requests that find drafts, its probability), (..., cases) each: found / b of (N5).

    None at all is a case of its own, as all kernels are those of a plain step then; the others are cut
    into equally likely parts, of which each stands for its mean, so that nothing jumps where rate moves.
    batch: whole numbers of requests.
    """
    shares, weights = np.zeros((*batch.shape, 1 + _PARTS)), np.zeros((*batch.shape, 1 + _PARTS))
    for size in np.unique(batch):
        if size < 1.0 or size % 1.0:
            raise ValueError(f"drafts are found by whole numbers of requests, not by {size:g}")
        place = batch == size
        nodes = _binomial_parts(float(size), rate)
        shares[place], weights[place] = nodes[0] / size, nodes[1]
    return shares, weights


def drafted_tokens(
    batch: FloatArray, drafts: FloatArray, sure_shares: tuple[float, ...]
) -> tuple[FloatArray, FloatArray]:
    """(tokens verified a request, root included, averaged over requests; its probability), (..., cases) each.

    A draft ends before the first token that the drafter is not sure of (`Verified.sure_shares`), each
    request's by itself; of more than MOST_APART requests as of so many.
    """
    sizes = np.broadcast_arrays(np.clip(np.rint(batch), 1, MOST_APART), np.rint(drafts))
    pairs = {(int(b), int(n)) for b, n in zip(*(size.ravel() for size in sizes), strict=True)}
    nodes = 1 + max(b * n for b, n in pairs)
    tokens, weights = np.ones((*sizes[0].shape, nodes)), np.zeros((*sizes[0].shape, nodes))
    for b, n in pairs:
        reached = _reached(n, sure_shares)
        one = reached - np.append(reached[1:], 0.0)
        every = np.ones(1)
        for _ in range(b):
            every = np.convolve(every, one)
        place = (sizes[0] == b) & (sizes[1] == n)
        tokens[place, : every.size] = 1.0 + np.arange(every.size) / b
        weights[place, : every.size] = every
    return tokens, weights


def mean_drafted_tokens(drafts: FloatArray, sure_shares: tuple[float, ...]) -> FloatArray:
    """Mean of `drafted_tokens`: a draft is verified with the probability that it is reached."""
    longest = int(np.rint(drafts).max(initial=0.0))
    return np.cumsum(_reached(longest, sure_shares))[np.rint(drafts).astype(np.int64)]


def _reached(drafts: int, sure_shares: tuple[float, ...]) -> FloatArray:
    """(1 + drafts,) probabilities that no draft, one, two, ... are in a row; the last share goes on."""
    further = [sure_shares[-1]] * (drafts - len(sure_shares))
    return as_float(np.cumprod([1.0, *sure_shares[:drafts], *further]))


@lru_cache(maxsize=4096)
def _binomial_parts(draws: float, rate: float) -> tuple[FloatArray, FloatArray]:
    """(hits, probability): none, then the means of equally likely parts of the others."""
    hits = np.arange(1.0, np.ceil(draws) + 1.0)
    odds = np.log(np.maximum(draws - hits + 1.0, 1e-12) / hits) + np.log(rate / (1.0 - rate))
    logs = draws * np.log1p(-rate) + np.cumsum(odds)
    weights = np.exp(logs)
    none = max(1.0 - float(weights.sum()), 0.0) if draws > 1.0 else 1.0 - rate
    reached = np.concatenate([[0.0], np.cumsum(weights) / weights.sum()])
    total = np.concatenate([[0.0], np.cumsum(weights * hits) / weights.sum()])
    edges = np.interp(np.linspace(0.0, 1.0, _PARTS + 1), reached, total)
    means = _PARTS * np.diff(edges)
    return np.concatenate([[0.0], means]), np.array([none, *[(1.0 - none) / _PARTS] * _PARTS])
