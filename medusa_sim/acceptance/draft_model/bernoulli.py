"""The RSD paper's toy (Figure 1): Bernoulli draft and target, two draft tokens, four methods."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from medusa_sim.acceptance.draft_model.rsd import recursive_rejection
from medusa_sim.acceptance.draft_model.spectr import (
    k_seq_acceptance,
    multi_round_children,
    optimal_acceptance,
)
from medusa_sim.arrays import FloatArray

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
