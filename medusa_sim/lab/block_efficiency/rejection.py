"""How often rejection sampling keeps one of K drawn tokens, by method: (D2) to (D5).

(D2) K-SEQ (SpecTr, Sun et al. 2023; RSD paper, section 2): independent draws, draft i is taken with
min(1, target / (gamma draft)). With taken = min(draft, target / gamma) and beta its sum, one of K
is taken with 1 - (1 - beta)^K; gamma solves gamma beta = 1 - (1 - beta)^K
(D3) multi-round (SpecInfer): independent draws, target_k+1 = norm((target_k - draft)+)
(D4) recursive (RSD paper, section 3.1, Algorithm 1): draws without replacement; besides, the rejected
token is struck from the draft, which is renormalised
(D5) optimal transport: min over sets X of target(X) + 1 - draft(X)^K
"""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt

from medusa_sim.arrays import FloatArray
from medusa_sim.errors import DataError

SUM_TOLERANCE = 1e-9
"""How far the sum of a distribution may lie from 1: float64 sums of a vocabulary stay well inside."""


def checked_distribution(probabilities: npt.ArrayLike, name: str) -> FloatArray:
    """`probabilities` as floats.

    Raises:
        DataError: an entry that is negative or not finite, or a sum that is not 1.
    """
    array = np.asarray(probabilities, dtype=np.float64)
    if array.ndim < 1 or array.shape[-1] < 1 or not np.all(np.isfinite(array) & (array >= 0.0)):
        raise DataError(f"{name}: a probability distribution has finite entries from 0 along its last axis")
    total = array.sum(axis=-1)
    if np.any(np.abs(total - 1.0) > SUM_TOLERANCE):
        worst = float(np.ravel(total)[np.argmax(np.abs(np.ravel(total) - 1.0))])
        raise DataError(f"{name}: a probability distribution sums to 1, given {worst:.9g}")
    return array


def checked_pair(draft: npt.ArrayLike, target: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    """The distributions of draft and target, (..., vocabulary) each. Raises DataError for what is none."""
    return checked_distribution(draft, "draft"), checked_distribution(target, "target")


def normalised(mass: FloatArray, fallback: FloatArray) -> FloatArray:
    """`mass` scaled to sum 1; `fallback` where there is no mass at all (draft equals target: 0 / 0)."""
    total = mass.sum(axis=-1, keepdims=True)
    return np.asarray(np.where(total > 0.0, mass / np.where(total > 0.0, total, 1.0), fallback))


def residual(draft: FloatArray, target: FloatArray) -> FloatArray:
    """Distribution of the token drawn after a rejection: Norm[(target - draft)+].

    The target's own where both are equal.
    """
    return normalised(np.maximum(target - draft, 0.0), target)


def recursive_children_of_draws(
    draft: FloatArray, target: FloatArray, tokens: npt.NDArray[np.int64]
) -> FloatArray:
    """(contexts, draws) (D4) probability that each draw is accepted, given the drawn tokens (as many).

    The building block of large vocabularies: average it over sampled `tokens` (distinct per context,
    drawn without replacement from the draft in this order; -1 ends a list early).
    """
    draft, target = draft.copy(), target.copy()
    rows = np.arange(draft.shape[0])
    reached = np.ones(draft.shape[0])
    children = np.zeros(tokens.shape)
    for k in range(tokens.shape[1]):
        token = tokens[:, k]
        there = token >= 0
        own = np.where(there, draft[rows, token], 1.0)
        theta = np.where(there, np.minimum(target[rows, token] / np.where(own > 0.0, own, 1.0), 1.0), 0.0)
        children[:, k] = reached * theta
        reached = reached * (1.0 - theta)
        left = residual(draft, target)
        target = np.where(there[:, None], left, target)
        struck = draft.copy()
        struck[rows[there], token[there]] = 0.0
        draft = normalised(struck, draft)
    return children


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
    """(D2) The smallest valid gamma, where gamma beta = 1 - (1 - beta)^K, by bisection per context.

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
    """(D2) Probability that one of K independent draft tokens is accepted: 1 - (1 - beta(gamma))^K."""
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
    """(..., draws) (D3) probability that the k-th independent draw is the accepted one.

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


SUBSETS_OF_MOST = 16
"""Tokens of a vocabulary, all 2^vocabulary sets of which the minimum cut is taken over."""


def optimal_acceptance(draft: npt.ArrayLike, target: npt.ArrayLike, draws: int) -> FloatArray:
    """(D5) Largest probability that the target's token is among `draws` independent draws from the draft.

    The transport problem is a flow from tuples of draws to tokens they contain; by max-flow = min-cut
    it is min over token sets B of target(B) + 1 - draft(B)^K. Shape: contexts.

    Raises:
        DataError: a vocabulary too large to enumerate its subsets.
    """
    draft, target = checked_pair(draft, target)
    size = draft.shape[-1]
    if size > SUBSETS_OF_MOST:
        raise DataError(
            f"optimal transport enumerates subsets of at most {SUBSETS_OF_MOST} tokens, given {size}"
        )
    best = np.ones(np.broadcast_shapes(draft.shape, target.shape)[:-1])
    for chosen in itertools.product((0.0, 1.0), repeat=size):
        subset = np.array(chosen)
        best = np.minimum(best, target @ subset + 1.0 - (draft @ subset) ** draws)
    return np.asarray(best)
