"""How schemes and workloads change acceptance: ratios of accepted drafts from published figures (T8).

An adjustment moves tokens per step from one published value to another; the ratio of `tokens per step - 1`
(the accepted draft tokens) carries over to other trees, so that one candidate still gives exactly 1.
"""

from __future__ import annotations

from medusa_sim.errors import UsageError, unknown_name

TYPICAL_TOKENS_PER_STEP = 3.24 + 0.02 * (0.09 - 0.06) / (0.25 - 0.06)
"""Of typical acceptance with the threshold that Medusa's public code passes, epsilon = 0.09.

Medusa paper (arXiv 2401.10774) Figure 5, read off the plot to about 0.02: 3.24 at 0.06 and 3.26 at 0.25, on a
line between. Medusa-2 fine-tuned from Vicuna-7B, writing and roleplay of MT-bench, temperature 0.7,
delta = sqrt(epsilon).
"""
GREEDY_TOKENS_PER_STEP = 3.05
"""Of greedy acceptance, which keeps the target's own output (same figure, dot)."""
GREEDY_RATIO = (GREEDY_TOKENS_PER_STEP - 1.0) / (TYPICAL_TOKENS_PER_STEP - 1.0)
"""Accepted draft tokens of greedy over those of typical acceptance."""

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
