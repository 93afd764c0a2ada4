"""Optimal transport with membership cost: the most that K draft tokens can be accepted (Sun et al. 2023)."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt

from medusa_sim.acceptance.draft_model.sd import checked_pair
from medusa_sim.arrays import FloatArray
from medusa_sim.errors import DataError

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
