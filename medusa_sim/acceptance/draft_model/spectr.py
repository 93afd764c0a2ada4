"""SpecTr's K-SEQ selection among K independent draft tokens (Sun et al. 2023; RSD paper section 2).

K-SEQ goes through the drafts in order and takes token x with probability
min(1, target(x) / (gamma draft(x))). With taken(x) = min(draft(x), target(x) / gamma), one draft is taken
with probability beta = sum of taken, and one of K with 1 - (1 - beta)^K.
"""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt

from medusa_sim.acceptance.draft_model.sd import checked_pair, residual
from medusa_sim.arrays import FloatArray
from medusa_sim.errors import DataError

BISECTIONS = 60
"""Halvings of gamma's interval [1, K]: the error ends below 1e-16 K."""
_EQUAL = 1e-8
"""A factor and another this near are taken as equal where they are divided by their difference."""


def _taken(draft: FloatArray, target: FloatArray, gamma: FloatArray) -> FloatArray:
    """min(draft, target / gamma), per token."""
    return np.asarray(np.minimum(draft, target / gamma[..., None]))


def _accepted(beta: FloatArray, draws: int) -> FloatArray:
    """1 - (1 - beta)^K, without cancellation for small beta."""
    return np.asarray(-np.expm1(draws * np.log1p(-np.minimum(beta, 1.0 - 1e-16))))


def k_seq_gamma(
    draft: npt.ArrayLike, target: npt.ArrayLike, draws: int, bisections: int = BISECTIONS
) -> FloatArray:
    """The smallest valid gamma, where gamma beta = 1 - (1 - beta)^K, by bisection per context.

    A smaller gamma would give a negative residual, a larger one (K is always valid) accepts less.
    The error is (K - 1) / 2^bisections, upwards.
    """
    draft, target = checked_pair(draft, target)
    shape = np.broadcast_shapes(draft.shape, target.shape)[:-1]
    low, high = np.ones(shape), np.full(shape, float(draws))
    for _ in range(bisections):
        middle = (low + high) / 2.0
        beta = _taken(draft, target, middle).sum(axis=-1)
        valid = middle * beta >= _accepted(beta, draws)
        low, high = np.where(valid, low, middle), np.where(valid, middle, high)
    return np.asarray(high)


def k_seq_acceptance(draft: npt.ArrayLike, target: npt.ArrayLike, draws: int) -> FloatArray:
    """Probability that one of K independent draft tokens is accepted: 1 - (1 - beta(gamma))^K."""
    draft, target = checked_pair(draft, target)
    gamma = k_seq_gamma(draft, target, draws)
    return _accepted(_taken(draft, target, gamma).sum(axis=-1), draws)


def k_seq_holders(
    draft: npt.ArrayLike, target: npt.ArrayLike, draws: int, bisections: int = BISECTIONS
) -> FloatArray:
    """(..., K) probability that a draft is accepted and exactly 1, 2, ... K of the drafts hold its token.

    Where draft i is the accepted one, the i - 1 before it were rejected and hold x with probability
    r(x) = (draft(x) - taken(x)) / (1 - beta) each; the K - i after it hold x with draft(x). As a polynomial
    in z, whose exponents count the other drafts that hold x:

        sum over x of taken(x) sum over i of A(x)^(i-1) B(x)^(K-i) = sum over x of taken (A^K - B^K) / (A - B)
        A = (1 - beta) (1 - r + r z),  B = 1 - draft + draft z

    Its coefficients are a discrete Fourier transform of its values at the K-th roots of unity.
    """
    draft, target = checked_pair(draft, target)
    taken = _taken(draft, target, k_seq_gamma(draft, target, draws, bisections))
    missed = 1.0 - taken.sum(axis=-1, keepdims=True)
    rejected = draft - taken
    values = []
    for z in np.exp(-2j * np.pi * np.arange(draws // 2 + 1) / draws):
        after_rejection = (missed - rejected) + rejected * z
        fresh = (1.0 - draft) + draft * z
        apart = after_rejection - fresh
        equal = np.abs(apart) < _EQUAL
        apart = np.where(equal, 1.0, apart)
        powers = after_rejection**draws - fresh**draws
        walks = np.where(equal, draws * fresh ** (draws - 1), powers / apart)
        values.append((taken * walks).sum(axis=-1))
    return np.fft.irfft(np.stack(values, axis=-1), n=draws, axis=-1)


def multi_round_children(draft: npt.ArrayLike, target: npt.ArrayLike, draws: int) -> FloatArray:
    """(..., draws) probability that the k-th independent draw is the accepted one.

    Each round tests against the residual of the round before; the draft's distribution stays, so that a
    token that was rejected may be drawn again (it is then rejected again: its residual is 0).
    """
    drawn_from, left = checked_pair(draft, target)
    reached = np.ones(np.broadcast_shapes(drawn_from.shape, left.shape)[:-1])
    children = []
    for _ in range(draws):
        beta = np.minimum(drawn_from, left).sum(axis=-1)
        children.append(reached * beta)
        reached = reached * (1.0 - beta)
        left = residual(drawn_from, left)
    return np.stack(children, axis=-1)


VOCABULARY_MAX = 16
"""The minimum cut is taken over all 2^vocabulary sets of tokens."""


def optimal_acceptance(draft: npt.ArrayLike, target: npt.ArrayLike, draws: int) -> FloatArray:
    """Largest probability that the target's token is among `draws` independent draws from the draft.

    The transport problem is a flow from tuples of draws to tokens they contain; by max-flow = min-cut
    it is min over token sets B of target(B) + 1 - draft(B)^K. Shape: contexts.

    Raises:
        DataError: a vocabulary too large to enumerate its subsets.
    """
    draft, target = checked_pair(draft, target)
    size = draft.shape[-1]
    if size > VOCABULARY_MAX:
        raise DataError(
            f"optimal transport enumerates subsets of at most {VOCABULARY_MAX} tokens, given {size}"
        )
    best = np.ones(np.broadcast_shapes(draft.shape, target.shape)[:-1])
    for chosen in itertools.product((0.0, 1.0), repeat=size):
        subset = np.array(chosen)
        best = np.minimum(best, target @ subset + 1.0 - (draft @ subset) ** draws)
    return np.asarray(best)
