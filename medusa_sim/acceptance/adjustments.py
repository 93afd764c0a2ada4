"""How schemes and workloads change acceptance: ratios of accepted drafts from published figures (T8).

An adjustment moves tokens per step from one published value to another; the ratio of `tokens per step - 1`
(the accepted draft tokens) carries over to other trees, so that one candidate still gives exactly 1.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from medusa_sim.arrays import FloatArray
from medusa_sim.errors import CoverageError, UsageError, unknown_name

TYPICAL_TOKENS_PER_STEP: tuple[tuple[float, float], ...] = (
    (0.01, 3.50),
    (0.05, 3.30),
    (0.06, 3.24),
    (0.25, 3.26),
)
"""(epsilon, tokens per step) of typical acceptance. From 0.07 on the figure only wavers in 3.22..3.30.

Medusa paper (arXiv 2401.10774) Figure 5, read off the plot to about 0.02: Medusa-2 fine-tuned from Vicuna-7B,
writing and roleplay of MT-bench, temperature 0.7, delta = sqrt(epsilon).
"""
LOSSLESS_TOKENS_PER_STEP: dict[str, float] = {"greedy": 3.05, "random-sampling": 2.98}
"""Tokens per step of the schemes that keep the target's own output (same figure, star and dot)."""
DEFAULT_EPSILON = 0.09
"""The threshold that Medusa's public code passes (with delta 0.3 = its square root)."""

WORKLOAD_SPEEDUP: dict[str, float] = {
    "humanities": 2.58,
    "reasoning": 2.58,
    "roleplay": 2.7,
    "writing": 2.72,
    "stem": 2.77,
    "math": 3.01,
    "coding": 3.29,
    "extraction": 3.62,
}
"""Medusa paper (arXiv 2401.10774) Figure 3(b): speedup of Medusa-2 Vicuna-7B by MT-bench category.

One tree and so one overhead for all, hence a ratio of speedups is a ratio of tokens per step.
"""
WORKLOAD_TOKENS_PER_STEP = 3.47
"""Acceleration rate of the same model over all of MT-bench (Table 1), taken for the mean category."""


def typical_tokens_per_step(epsilon: npt.ArrayLike) -> FloatArray:
    """Tokens per step of typical acceptance with hard threshold `epsilon` (Figure 5), linear between points.

    Raises:
        CoverageError: epsilon outside the figure, 0.01..0.25.
    """
    threshold = np.asarray(epsilon, dtype=np.float64)
    points, tokens = (np.array(column) for column in zip(*TYPICAL_TOKENS_PER_STEP, strict=True))
    if not np.all((threshold >= points[0]) & (threshold <= points[-1])):
        raise CoverageError(
            f"epsilon {np.ravel(threshold)[0]:g}: Figure 5 covers {points[0]:g}..{points[-1]:g}"
        )
    return np.asarray(np.interp(threshold, points, tokens))


def scheme_tokens_per_step(scheme: str, epsilon: float | None = None) -> float:
    """Tokens per step of an acceptance scheme on the settings of Figure 5.

    Raises:
        UsageError: an unknown scheme, or a threshold for a scheme that has none.
        CoverageError: a threshold outside the figure.
    """
    if scheme == "typical":
        return float(typical_tokens_per_step(DEFAULT_EPSILON if epsilon is None else epsilon))
    if scheme not in LOSSLESS_TOKENS_PER_STEP:
        raise UsageError(unknown_name("acceptance scheme", scheme, ["typical", *LOSSLESS_TOKENS_PER_STEP]))
    if epsilon is not None:
        raise UsageError(f"epsilon {epsilon:g} belongs to typical acceptance; {scheme} has no threshold")
    return LOSSLESS_TOKENS_PER_STEP[scheme]


def scheme_ratio(scheme: str, epsilon: float | None = None) -> float:
    """Accepted draft tokens under a scheme over those under typical acceptance with its usual threshold.

    Raises what `scheme_tokens_per_step` raises.
    """
    return (scheme_tokens_per_step(scheme, epsilon) - 1.0) / (scheme_tokens_per_step("typical") - 1.0)


def workload_ratio(category: str) -> float:
    """Accepted draft tokens of an MT-bench category over those of the mean category (Figure 3b).

    Raises:
        UsageError: an unknown category.
    """
    if category not in WORKLOAD_SPEEDUP:
        raise UsageError(unknown_name("workload", category, WORKLOAD_SPEEDUP))
    mean = sum(WORKLOAD_SPEEDUP.values()) / len(WORKLOAD_SPEEDUP)
    tokens = WORKLOAD_SPEEDUP[category] / mean * WORKLOAD_TOKENS_PER_STEP
    return (tokens - 1.0) / (WORKLOAD_TOKENS_PER_STEP - 1.0)
