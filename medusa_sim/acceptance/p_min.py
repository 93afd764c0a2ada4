"""Drafts that end where the drafter is unsure: `p-min` of llama.cpp.

A draft ends before the first token whose probability under the drafter is below t. How sure a drafter is
differs from token to token; it is taken as right about itself, so that a token of probability p is accepted
with probability p:

    (local 6)  p ~ Beta(K c, K (1 - c)),   kept = P(p >= t),   accepted of those = E[p | p >= t]

c is the rate of a draft, given that the one before was accepted, K how little certainty differs (0: always
sure or never; infinite: always c). K = 2 meets the acceptance of Qwen3.8-27B's own head at eight p-min from 0
to 0.8 (five drafts, RTX PRO 6000 Max-Q, August 2026) within 1.5 % on average.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from medusa_sim.acceptance.profile import AcceptanceProfile
from medusa_sim.acceptance.shaped import ShapedAcceptance
from medusa_sim.arrays import FloatArray
from medusa_sim.errors import UsageError

CONCENTRATION = 2.0
"""K of (local 6)."""
_LEAST, _MOST = 1e-6, 1.0 - 1e-6


def sure_drafts(rates: FloatArray, p_min: float) -> tuple[FloatArray, FloatArray]:
    """(sure, sure and accepted) shares of each draft, given that the one before was, of conditional rates."""
    from scipy.special import betaincc

    mean = np.clip(rates, _LEAST, _MOST)
    sure, unsure = CONCENTRATION * mean, CONCENTRATION * (1.0 - mean)
    is_sure = np.asarray(betaincc(sure, unsure, p_min), dtype=np.float64)
    return is_sure, rates * np.asarray(betaincc(sure + 1.0, unsure, p_min), dtype=np.float64)


def ending_unsure(profile: AcceptanceProfile, p_min: float) -> tuple[tuple[float, ...], AcceptanceProfile]:
    """(shares of drafts that the drafter is sure of, given those before; the acceptance that is left).

    Raises UsageError for a curve of tree sizes, which has no rates.
    """
    if not isinstance(profile.model, ShapedAcceptance):
        raise UsageError(
            f"p-min {p_min:g}: acceptance {profile.name} has no rates of single drafts; give them with "
            "--acceptance 0.8,0.6,0.5"
        )
    heads = profile.model.heads
    rates = heads.conditional()[:, 0].copy()
    rates[0] = min(1.0, profile.ratio * rates[0])  # so that all accepted drafts are `ratio` times as many
    sure, accepted = sure_drafts(rates, p_min)
    left = replace(heads, accuracy=accepted[:, None], correlation=0.0)
    model = replace(profile.model, heads=left)
    return tuple(sure.tolist()), replace(profile, model=model, ratio=1.0)
