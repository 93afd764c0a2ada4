"""How often rejection sampling keeps drawn tokens: one draw, recursive draws, K-SEQ and optimal transport.

Recursive rejection takes draws without replacement (RSD paper 3.1, Algorithm 1, Theorem 3.1), SpecTr's K-SEQ
one of K independent draws (Sun et al. 2023; RSD paper section 2). `bernoulli_acceptance` is the RSD paper's
toy (Figure 1): Bernoulli draft and target, two draft tokens, four methods.

K-SEQ goes through the drafts in order and takes token x with probability
min(1, target(x) / (gamma draft(x))). With taken(x) = min(draft(x), target(x) / gamma), one draft is taken
with probability beta = sum of taken, and one of K with 1 - (1 - beta)^K.

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


RSD_VOCABULARY_MAX = 16
"""Exact enumeration costs vocabulary^(draws - 1); beyond this the sampled form is meant."""


def recursive_rejection(
    draft: npt.ArrayLike, target: npt.ArrayLike, draws: int
) -> tuple[FloatArray, FloatArray]:
    """What recursive rejection of `draws` distinct tokens accepts and emits, exactly, by enumeration.

    Returns (children, emitted): children (..., draws), the probability that the k-th draw is the accepted
    one; emitted (..., vocabulary), the distribution of the token that is accepted or drawn from the last
    residual, which equals the target's (Theorem 3.1).

    After rejecting x, x is struck from the draft, the draft is renormalised (leaving that out biases the
    output from the third draw on), and the target becomes the residual (equations 2 and 3). Fewer tokens
    than draws simply end the list. Raises DataError for a vocabulary too large to enumerate.
    """
    draft, target = np.broadcast_arrays(*checked_pair(draft, target))
    if draft.shape[-1] > RSD_VOCABULARY_MAX or draws < 1:
        raise DataError(
            f"exact recursive rejection takes 1 or more draws of at most {RSD_VOCABULARY_MAX} tokens, "
            f"given {draws} draws of {draft.shape[-1]} tokens"
        )
    contexts = draft.shape[:-1]
    children, emitted = np.zeros((*contexts, draws)), np.zeros(draft.shape)
    for context in np.ndindex(contexts):
        _walk(draft[context], target[context], draws, 1.0, children[context], emitted[context])
    return children, emitted


def _walk(
    draft: FloatArray,
    target: FloatArray,
    draws: int,
    reached: float,
    children: FloatArray,
    emitted: FloatArray,
) -> None:
    """One round of a draft and a residual target; adds what it accepts to `children` and `emitted`."""
    at = children.size - draws
    accepted = np.minimum(draft, target)
    children[at] += reached * accepted.sum()
    emitted += reached * accepted
    over = np.maximum(draft - target, 0.0)  # of the rejected token, times the chance of rejection
    left = residual(draft, target)
    for token in np.flatnonzero(over > 0.0):
        struck = draft.copy()
        struck[token] = 0.0
        if draws > 1 and struck.sum() > 0.0:
            _walk(struck / struck.sum(), left, draws - 1, reached * over[token], children, emitted)
        else:
            emitted += reached * over[token] * left


def recursive_children_of_draws(
    draft: FloatArray, target: FloatArray, tokens: npt.NDArray[np.int64]
) -> FloatArray:
    """(contexts, draws) acceptance probability of each draw, given the drawn tokens (contexts, draws).

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


K_SEQ_VOCABULARY_MAX = 16
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
    if size > K_SEQ_VOCABULARY_MAX:
        raise DataError(
            f"optimal transport enumerates subsets of at most {K_SEQ_VOCABULARY_MAX} tokens, given {size}"
        )
    best = np.ones(np.broadcast_shapes(draft.shape, target.shape)[:-1])
    for chosen in itertools.product((0.0, 1.0), repeat=size):
        subset = np.array(chosen)
        best = np.minimum(best, target @ subset + 1.0 - (draft @ subset) ** draws)
    return np.asarray(best)


DRAWS = 2
SMALLEST = 1e-15
"""At 0 or 1 the draft has no second token to draw; recursive rejection takes the limit from inside."""


def bernoulli_acceptance(draft: npt.ArrayLike, target: npt.ArrayLike) -> dict[str, FloatArray]:
    """Acceptance rate by method for Bernoulli draft and target, given their means (they broadcast).

    Keys as in Figure 1: `Multi-Round SD`, `K-SEQ`, `OTM` (sampling with replacement) and
    `Recur. Rej. Samp.` (without), which is 1 everywhere: two distinct tokens are the whole vocabulary.
    """
    means = np.broadcast_arrays(np.asarray(draft, dtype=np.float64), np.asarray(target, dtype=np.float64))
    drafts, targets = (np.stack([1.0 - mean, mean], axis=-1) for mean in means)
    inside = np.clip(means[0], SMALLEST, 1.0 - SMALLEST)
    draft_inside = np.stack([1.0 - inside, inside], axis=-1)
    return {
        "Multi-Round SD": np.asarray(multi_round_children(drafts, targets, DRAWS).sum(axis=-1)),
        "K-SEQ": k_seq_acceptance(drafts, targets, DRAWS),
        "OTM": optimal_acceptance(drafts, targets, DRAWS),
        "Recur. Rej. Samp.": np.asarray(recursive_rejection(draft_inside, targets, DRAWS)[0].sum(axis=-1)),
    }
