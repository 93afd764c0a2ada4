"""Distributions that a server's steps are averaged over: how many of some draws hit, and lengths."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np

from medusa_sim.arrays import FloatArray, IntArray

_NORMAL = np.asarray(
    [
        -1.5341205443525459, -0.8871465590188758, -0.4887764111146694, -0.15731068461017067,
        0.15731068461017067, 0.4887764111146694, 0.8871465590188758, 1.5341205443525459,
    ]
)  # fmt: skip
"""Quantiles 1/16, 3/16, ... of a standard normal variable: equally likely values of it."""
LENGTHS = _NORMAL.size
"""Equally likely values that stand for a distribution of lengths."""
_FEW = 24.0
"""Mean number of hits up to which every number counts by itself; beyond it is normal."""
_RARE = 1e-7
"""Probability below which a number of hits is left out."""


class Hits(NamedTuple):
    """(hits,) numbers of hits, their probabilities, and the places of the draws that they belong to."""

    number: FloatArray
    weight: FloatArray
    place: IntArray


@cache
def normal_values() -> FloatArray:
    """(LENGTHS,) equally likely values of mean 0 and variance 1, as of a normal variable."""
    return np.asarray(_NORMAL / np.sqrt((_NORMAL**2).mean()))


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


def place_between(sizes: FloatArray, some: FloatArray) -> tuple[IntArray, FloatArray]:
    """Of `some` numbers, the index of the rising size above each, and how far it lies from the one below."""
    above = np.clip(np.searchsorted(sizes, some), 1, sizes.size - 1)
    return above, (np.maximum(some, sizes[0]) - sizes[above - 1]) / (sizes[above] - sizes[above - 1])


def sums_by_place(values: FloatArray, place: IntArray, size: int) -> FloatArray:
    """(size,) sums of the values of each place."""
    return np.bincount(place, values, size).astype(np.float64)
