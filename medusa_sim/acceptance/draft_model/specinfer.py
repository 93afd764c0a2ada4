"""SpecInfer's multi-round rejection of independent draws (Miao et al. 2023; RSD paper section 2)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from medusa_sim.acceptance.draft_model.sd import checked_pair, residual
from medusa_sim.arrays import FloatArray


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
