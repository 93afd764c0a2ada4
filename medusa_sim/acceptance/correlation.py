"""One correlation of all heads, fitted to measured trees."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from medusa_sim.acceptance.heads import HeadAccuracy, expected_tokens_per_step
from medusa_sim.acceptance.tree import CandidateTree
from medusa_sim.errors import DataError

_EXACT = 1e-12


def fitted_correlation(cases: Sequence[tuple[HeadAccuracy, CandidateTree, float]]) -> float:
    """The one correlation whose expected tokens per step meet the measured ones.

    `cases`: (heads, tree, measured tokens per step). Solves for a mean ratio of 1, inside the range
    where every head stays a probability; 0 if the independent product is already too large.

    Raises:
        DataError: no case, or heads on whose accuracy a correlation changes nothing.
    """
    from scipy.optimize import brentq

    if not cases:
        raise DataError("a correlation needs at least one measured tree")

    def excess(rho: float) -> float:
        ratios = [
            expected_tokens_per_step(tree, heads.with_correlation(rho)) / measured
            for heads, tree, measured in cases
        ]
        return float(np.mean(ratios)) - 1.0

    low, high = 0.0, min(heads.correlation_max for heads, _, _ in cases)
    if not np.isfinite(high):
        raise DataError("a correlation needs two heads, the later one with an accuracy above 0")
    if excess(low) >= 0.0:
        return low
    if excess(high) <= 0.0:
        return high
    return float(brentq(excess, low, high, xtol=_EXACT))
