"""Step times and tokens per step -> the interval of a speedup, and throughput."""

from __future__ import annotations

from typing import Literal

import numpy as np

from medusa_sim.arrays import FloatArray, in_quadrature
from medusa_sim.operators.operator import Size
from medusa_sim.units import US_PER_S

Baseline = Literal["same", "fixed"]
BASELINES: tuple[Baseline, ...] = ("same", "fixed")
FIXED_BASELINE_BATCH = 1
FIXED_BASELINE_SEQ_LEN = 1024
"""The one decode step that the paper's Figures 22 and 23 divide by (docs/method.md, baselines)."""


def band(
    value: FloatArray,
    tokens: tuple[FloatArray, FloatArray, FloatArray],
    overhead: tuple[FloatArray, FloatArray],
) -> tuple[FloatArray, FloatArray]:
    """(low, high) of a speedup, 80 %, from tokens per step (low, value, high) and the overhead's half-widths.

    overhead: (slower, faster) on the logarithm (`step.compose.overhead_halves`). Half-widths of the two in
    quadrature. Plain decoding (one token) is exact.
    """
    slow, fast = overhead
    few, many = np.log(tokens[1] / tokens[0]), np.log(tokens[2] / tokens[1])
    plain = tokens[1] == 1.0
    low = np.where(plain, value, value * np.exp(-in_quadrature(slow, few)))
    high = np.where(plain, value, value * np.exp(in_quadrature(fast, many)))
    return low, high


def tokens_per_s(batch: Size, tokens_per_step: FloatArray, step_us: FloatArray) -> FloatArray:
    """Tokens per second of the whole batch."""
    return np.asarray(batch) * tokens_per_step / step_us * US_PER_S
