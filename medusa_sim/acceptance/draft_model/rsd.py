"""Recursive rejection sampling of draws without replacement (RSD paper 3.1, Algorithm 1, Theorem 3.1)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from medusa_sim.acceptance.draft_model.sd import checked_pair, normalised, residual
from medusa_sim.arrays import FloatArray
from medusa_sim.errors import DataError

VOCABULARY_MAX = 16
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
    if draft.shape[-1] > VOCABULARY_MAX or draws < 1:
        raise DataError(
            f"exact recursive rejection takes 1 or more draws of at most {VOCABULARY_MAX} tokens, "
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
