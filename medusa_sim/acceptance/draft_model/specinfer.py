"""SpecInfer's multi-round rejection of independent draws (Miao et al. 2023; RSD paper section 2)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from medusa_sim.acceptance.draft_model.sd import checked_law, residual
from medusa_sim.arrays import FloatArray


def multi_round_children(p: npt.ArrayLike, q: npt.ArrayLike, draws: int) -> FloatArray:
    """(..., draws) probability that the k-th independent draw is the accepted one.

    Each round tests against q^(k+1) = Norm[(q^(k) - p)+]; the draft's law stays p, so that a token
    that was rejected may be drawn again (it is then rejected again: its residual is 0).
    """
    draft, left = checked_law(p, "draft law"), checked_law(q, "target law")
    reached = np.ones(np.broadcast_shapes(draft.shape, left.shape)[:-1])
    children = []
    for _ in range(draws):
        beta = np.minimum(draft, left).sum(axis=-1)
        children.append(reached * beta)
        reached = reached * (1.0 - beta)
        left = residual(draft, left)
    return np.stack(children, axis=-1)


def multi_round_output_law(p: npt.ArrayLike, q: npt.ArrayLike, draws: int) -> FloatArray:
    """Law of the emitted token after at most `draws` rounds; equals q."""
    draft, left = checked_law(p, "draft law"), checked_law(q, "target law")
    reached = np.ones((*np.broadcast_shapes(draft.shape, left.shape)[:-1], 1))
    law = np.zeros(np.broadcast_shapes(draft.shape, left.shape))
    for _ in range(draws):
        accepted = np.minimum(draft, left)
        law = law + reached * accepted
        reached = reached * (1.0 - accepted.sum(axis=-1, keepdims=True))
        left = residual(draft, left)
    return np.asarray(law + reached * left)
