"""Steps of a request: how many it takes until its last token, when each step emits a random number of them.

    (N20)  D = (N - 1 + surplus(N - 1)) / tau
           surplus(l) = sum over x <= l of p(x) surplus(l - x) + sum over x > l of p(x) (x - l)
           surplus(l) -> (mean of x^2 - tau) / (2 tau)                                  for many tokens

A request of N tokens has its first from its prompt; N - 1 are left to steps, each of which emits x tokens
with the probability p(x), tau on average. The last step emits more than the l that are left, and takes as
long as any: the tokens of D steps, tau D on average by Wald's identity, are N - 1 and this surplus. It
follows from what the first step leaves; its limit is the mean overshoot of renewal theory (Feller, An
Introduction to Probability Theory and Its Applications, volume II, chapter XI). Plain steps have none.
"""

from __future__ import annotations

import numpy as np

from medusa_sim.arrays import FloatArray
from medusa_sim.serving.chance import log_normal

_FEW = 64
"""Tokens up to which each number has its own surplus: the limit is within 0.3 % of the steps beyond."""
_ITERATIONS = 60
_EXACT = 1e-13
_HALVES = 0.5
"""Chance of each further token, of which a power is taken: of a geometric chain any will do."""


def request_steps(emission_chances: FloatArray, output_tokens: float, output_cv: float = 0.0) -> FloatArray:
    """(...) D of (N20), averaged over outputs whose further tokens are log-normal; 0 where there are none.

    emission_chances: (..., X) probabilities that a step emits at least 1, 2, ... X tokens. A chain of one
    draft that is accepted in half of the steps needs 1, 1.5 and 2.25 of them for one token, two and three:

    >>> [request_steps(np.array([1.0, 0.5]), tokens).item() for tokens in (1.0, 2.0, 3.0, 4.0)]
    [0.0, 1.0, 1.5, 2.25]
    """
    further = max(output_tokens - 1.0, 0.0)
    each = further * (log_normal(np.full(1, output_cv))[0] if output_cv else np.ones(1))
    return np.asarray(
        (further + _surplus_tokens(emission_chances, each).mean(axis=-1)) / emission_chances.sum(axis=-1)
    )


def chances_of_mean(tokens: FloatArray, shape: FloatArray) -> FloatArray:
    """(..., X) emission chances of a mean number of tokens (...): those of `shape`, all to one power.

    shape: (..., X), falling from 1; 0 stays 0. For a chain each draft's own acceptance has that power then.
    """
    mean, logs = tokens[..., None], np.log(np.where(shape > 0.0, shape, 1.0))
    power = np.zeros(np.broadcast_shapes(mean.shape, (*shape.shape[:-1], 1)))
    for _ in range(_ITERATIONS):  # Newton from below: the mean falls with the power, and is convex
        emission_chances = np.where(shape > 0.0, np.exp(power * logs), 0.0)
        excess = emission_chances.sum(axis=-1, keepdims=True) - mean
        if np.all(excess <= _EXACT * mean):
            break
        slope = -(emission_chances * logs).sum(axis=-1, keepdims=True)
        power = power + np.maximum(excess, 0.0) / np.where(slope > 0.0, slope, np.inf)
    return emission_chances


def chain_chances(tokens: FloatArray, longest: FloatArray) -> FloatArray:
    """(..., X) emission chances of a mean number of tokens alone: as if a chain's drafts were accepted alike.

    longest: (...) tokens that a step emits at most. What a chain of equal drafts emits is geometric, and cut
    there.
    """
    drafts = np.arange(max(float(np.max(longest, initial=1.0)), 1.0))
    shape = np.where(drafts < np.maximum(longest, 1.0)[..., None], _HALVES**drafts, 0.0)
    return chances_of_mean(np.asarray(tokens), shape)


def _surplus_tokens(emission_chances: FloatArray, left: FloatArray) -> FloatArray:
    """(..., lengths) surplus(l) of (N20) where (lengths,) tokens are left, linear between whole numbers."""
    many = (np.arange(emission_chances.shape[-1]) * emission_chances).sum(axis=-1) / emission_chances.sum(
        axis=-1
    )
    surplus = np.broadcast_to(many[..., None], (*many.shape, left.size)).copy()
    few = left <= _FEW
    if few.any():
        table = _few_surplus(emission_chances, int(np.ceil(left[few].max())))
        below = np.floor(left[few]).astype(np.int64)
        above = np.minimum(below + 1, table.shape[-1] - 1)
        surplus[..., few] = table[..., below] + (left[few] - below) * (table[..., above] - table[..., below])
    return surplus


def _few_surplus(emission_chances: FloatArray, most: int) -> FloatArray:
    """(..., 1 + most) surplus(l) for l = none, one, ... tokens that are left."""
    longest = emission_chances.shape[-1]
    chances = emission_chances - np.append(
        emission_chances[..., 1:], np.zeros((*emission_chances.shape[:-1], 1)), axis=-1
    )
    beyond = emission_chances[..., ::-1].cumsum(axis=-1)[..., ::-1]
    surplus = np.zeros((*emission_chances.shape[:-1], 1 + most))
    for left in range(1, most + 1):
        steps = min(left, longest)
        before = surplus[..., left - steps : left][..., ::-1]
        surplus[..., left] = (chances[..., :steps] * before).sum(axis=-1)
        if left < longest:
            surplus[..., left] += beyond[..., left]
    return surplus
