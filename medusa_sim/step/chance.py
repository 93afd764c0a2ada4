"""Distributions that a server's steps are averaged over: how many of some draws hit, and lengths."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np

from medusa_sim.arrays import FloatArray, IntArray, as_float

LENGTHS = 8
"""Equally likely values that stand for a distribution of lengths."""
_FEW = 24.0
"""Mean number of hits up to which every number counts by itself; beyond it is normal."""
_RARE = 1e-7
"""Probability below which a number of hits is left out."""
MOST_APART = 8
"""Requests whose drafts end apart; the mean of more hardly differs."""
_PARTS = 4
"""Equally likely parts of the number of requests that find drafts."""


class Hits(NamedTuple):
    """(hits,) numbers of hits, their probabilities, and the places of the draws that they belong to."""

    number: FloatArray
    weight: FloatArray
    place: IntArray


@cache
def normal_values() -> FloatArray:
    """(LENGTHS,) equally likely values of a standard normal variable."""
    from statistics import NormalDist

    values = np.asarray([NormalDist().inv_cdf((k + 0.5) / LENGTHS) for k in range(LENGTHS)])
    return np.asarray(values / np.sqrt((values**2).mean()))


def binomial(draws: FloatArray, share: FloatArray) -> Hits:
    """How many of (cells,) draws hit, each with this probability; draws need not be whole.

    Every number of hits where these are few on average, else equally likely ones of the normal limit.
    """
    mean = draws * share
    few, many = np.flatnonzero(mean <= _FEW), np.flatnonzero(mean > _FEW)
    parts: list[tuple[FloatArray, FloatArray, IntArray]] = []
    if few.size:
        b, p = draws[few], np.minimum(share[few], 1.0 - 1e-12)
        most = mean[few].max()
        counts = np.arange(np.ceil(most + 9.0 * np.sqrt(most) + 16.0) + 1.0)  # beyond, nothing is left
        odds = np.maximum(b[:, None] - counts[:-1], 0.0) / counts[1:] * (p / (1.0 - p))[:, None]
        first = np.exp(b * np.log1p(-p))[:, None]
        weights = np.concatenate([first, first * np.cumprod(odds, axis=1)], axis=1)
        weights /= weights.sum(axis=1, keepdims=True)
        place, column = np.nonzero(weights > _RARE)
        parts.append((counts[column], weights[place, column], few[place]))
    if many.size:
        spread = np.sqrt(mean[many] * (1.0 - share[many]))
        hits = np.maximum(mean[many][:, None] + spread[:, None] * normal_values(), 0.0)
        parts.append((hits.ravel(), np.full(hits.size, 1.0 / LENGTHS), np.repeat(many, LENGTHS)))
    return Hits(*map(np.concatenate, zip(*parts, strict=True)))


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

    A draft ends before the first token that the drafter is not sure of (`Setting.sure_shares`), each
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


def log_normal(cv: FloatArray) -> FloatArray:
    """(cvs, LENGTHS) equally likely log-normal values of mean 1; cv: (cvs,) coefficients of variation."""
    sigma = np.sqrt(np.log1p(cv**2))[:, None]
    values = np.exp(sigma * normal_values())
    return np.asarray(values / values.mean(axis=1, keepdims=True))


def quantile(values: FloatArray, weights: FloatArray, place: IntArray, share: float, size: int) -> FloatArray:
    """(size,) least value of each place below which this share of its weight lies; all given (values,)."""
    order = np.lexsort((values, place))
    place, values = place[order], values[order]
    reached = np.cumsum(weights[order])
    last = np.searchsorted(place, np.arange(size), side="right") - 1
    before = np.concatenate([[0.0], reached[last[:-1]]])
    wanted = before + share * (reached[last] - before)
    return np.asarray(values[np.minimum(np.searchsorted(reached, wanted), last)])


def sums_by_place(values: FloatArray, place: IntArray, size: int) -> FloatArray:
    """(size,) sums of the values of each place."""
    return np.bincount(place, values, size).astype(np.float64)
