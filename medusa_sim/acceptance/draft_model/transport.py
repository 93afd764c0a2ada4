"""Optimal transport with membership cost: the most that K draft tokens can be accepted (Sun et al. 2023)."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt

from medusa_sim.acceptance.draft_model.sd import checked_law
from medusa_sim.arrays import FloatArray
from medusa_sim.errors import DataError

VOCABULARY_MAX = 16
"""The minimum cut is taken over all 2^vocabulary sets of tokens."""


def optimal_acceptance(p: npt.ArrayLike, q: npt.ArrayLike, draws: int) -> FloatArray:
    """Largest probability that the target's token is among `draws` independent draws from p.

    The transport problem is a flow from tuples of draws to tokens they contain; by max-flow = min-cut
    it is min over token sets B of q(B) + 1 - p(B)^K. Shape: contexts.

    Raises:
        DataError: a vocabulary too large to enumerate its subsets.
    """
    draft, target = checked_law(p, "draft law"), checked_law(q, "target law")
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


def optimal_coupling(p: npt.ArrayLike, q: npt.ArrayLike, draws: int) -> tuple[FloatArray, float]:
    """The transport plan itself for one context, by linear programming.

    Returns (plan, acceptance): plan (vocabulary^draws, vocabulary) couples each tuple of draws (in
    itertools.product order) with the emitted token.

    Raises:
        DataError: laws of more than one context.
    """
    from scipy.optimize import linprog

    draft, target = checked_law(p, "draft law"), checked_law(q, "target law")
    if draft.ndim != 1 or draft.shape != target.shape:
        raise DataError("an optimal coupling is computed for one context: two laws of one vocabulary")
    size = draft.size
    tuples = list(itertools.product(range(size), repeat=draws))
    source = np.array([np.prod(draft[list(draw)]) for draw in tuples])
    member = np.array([[float(token in draw) for token in range(size)] for draw in tuples])
    rows = np.kron(np.eye(len(tuples)), np.ones(size))
    columns = np.kron(np.ones(len(tuples)), np.eye(size))
    solution = linprog(
        -member.ravel(),
        A_eq=np.vstack([rows, columns]),
        b_eq=np.concatenate([source, target]),
        method="highs",
    )
    plan = np.asarray(solution.x, dtype=np.float64).reshape(member.shape)
    return plan, float((plan * member).sum())
