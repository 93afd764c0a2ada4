"""The RSD paper's toy (Figure 1): Bernoulli draft and target, two draft tokens, four methods."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from medusa_sim.acceptance.draft_model.rsd import recursive_children
from medusa_sim.acceptance.draft_model.specinfer import multi_round_children
from medusa_sim.acceptance.draft_model.spectr import k_seq_acceptance
from medusa_sim.acceptance.draft_model.transport import optimal_acceptance
from medusa_sim.arrays import FloatArray

DRAWS = 2
SMALLEST = 1e-15
"""At p = 0 or 1 the draft has no second token to draw; recursive rejection takes the limit from inside."""


def bernoulli_acceptance(p: npt.ArrayLike, q: npt.ArrayLike) -> dict[str, FloatArray]:
    """Acceptance rate by method for draft Ber(p) and target Ber(q), arrays that broadcast.

    Keys as in Figure 1: `Multi-Round SD`, `K-SEQ`, `OTM` (sampling with replacement) and
    `Recur. Rej. Samp.` (without), which is 1 everywhere: two distinct tokens are the whole vocabulary.
    """
    draft, target = np.broadcast_arrays(np.asarray(p, dtype=np.float64), np.asarray(q, dtype=np.float64))
    p_law, q_law = np.stack([1.0 - draft, draft], axis=-1), np.stack([1.0 - target, target], axis=-1)
    inside = np.clip(draft, SMALLEST, 1.0 - SMALLEST)
    p_inside = np.stack([1.0 - inside, inside], axis=-1)
    return {
        "Multi-Round SD": np.asarray(multi_round_children(p_law, q_law, DRAWS).sum(axis=-1)),
        "K-SEQ": k_seq_acceptance(p_law, q_law, DRAWS),
        "OTM": optimal_acceptance(p_law, q_law, DRAWS),
        "Recur. Rej. Samp.": np.asarray(recursive_children(p_inside, q_law, DRAWS).sum(axis=-1)),
    }
