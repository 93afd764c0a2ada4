"""Recursive rejection sampling of draws without replacement (RSD paper 3.1, Algorithm 1, Theorem 3.1)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from medusa_sim.acceptance.draft_model.sd import checked_law, normalised, residual
from medusa_sim.arrays import FloatArray
from medusa_sim.errors import DataError

VOCABULARY_MAX = 16
"""Exact enumeration costs vocabulary^(draws - 1); beyond this the sampled form is meant."""


def _walk(
    p: FloatArray, q: FloatArray, draws: int, reached: float, children: FloatArray, law: FloatArray
) -> None:
    """One round with draft law p and residual target q; adds what it accepts to `children` and `law`."""
    at = children.size - draws
    accepted = np.minimum(p, q)
    children[at] += reached * accepted.sum()
    law += reached * accepted
    over = np.maximum(p - q, 0.0)  # law of the rejected token, times the chance of rejection
    left = residual(p, q)
    for token in np.flatnonzero(over > 0.0):
        struck = p.copy()
        struck[token] = 0.0
        if draws > 1 and struck.sum() > 0.0:
            _walk(struck / struck.sum(), left, draws - 1, reached * over[token], children, law)
        else:
            law += reached * over[token] * left


def _enumerated(p: npt.ArrayLike, q: npt.ArrayLike, draws: int) -> tuple[FloatArray, FloatArray]:
    draft, target = np.broadcast_arrays(checked_law(p, "draft law"), checked_law(q, "target law"))
    if draft.shape[-1] > VOCABULARY_MAX or draws < 1:
        raise DataError(
            f"exact recursive rejection takes 1 or more draws of at most {VOCABULARY_MAX} tokens, "
            f"given {draws} draws of {draft.shape[-1]} tokens"
        )
    contexts = draft.shape[:-1]
    children, law = np.zeros((*contexts, draws)), np.zeros(draft.shape)
    for context in np.ndindex(contexts):
        _walk(draft[context], target[context], draws, 1.0, children[context], law[context])
    return children, law


def recursive_children(p: npt.ArrayLike, q: npt.ArrayLike, draws: int) -> FloatArray:
    """(..., draws) probability that the k-th of `draws` distinct tokens is the accepted one, exactly.

    Enumerates which tokens are rejected: after rejecting x, x is struck from p, p is renormalised
    (leaving that out biases the output from the third draw on), and the target becomes
    Norm[(q^(k) - p^(k))+] (equations 2 and 3). Fewer tokens than draws simply end the list.
    """
    return _enumerated(p, q, draws)[0]


def recursive_output_law(p: npt.ArrayLike, q: npt.ArrayLike, draws: int) -> FloatArray:
    """Law of the emitted token, accepted or drawn from the last residual; equals q (Theorem 3.1)."""
    return _enumerated(p, q, draws)[1]


def recursive_children_of_draws(p: FloatArray, q: FloatArray, tokens: npt.NDArray[np.int64]) -> FloatArray:
    """(contexts, draws) acceptance probability of each draw, given the drawn tokens (contexts, draws).

    The building block of large vocabularies: average it over sampled `tokens` (distinct per context,
    drawn without replacement from p in this order; -1 ends a list early).
    """
    p, q = p.copy(), q.copy()
    rows = np.arange(p.shape[0])
    reached = np.ones(p.shape[0])
    children = np.zeros(tokens.shape)
    for k in range(tokens.shape[1]):
        token = tokens[:, k]
        there = token >= 0
        own = np.where(there, p[rows, token], 1.0)
        theta = np.where(there, np.minimum(q[rows, token] / np.where(own > 0.0, own, 1.0), 1.0), 0.0)
        children[:, k] = reached * theta
        reached = reached * (1.0 - theta)
        left = residual(p, q)
        q = np.where(there[:, None], left, q)
        struck = p.copy()
        struck[rows[there], token[there]] = 0.0
        p = normalised(struck, p)
    return children
