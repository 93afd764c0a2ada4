"""Step times and tokens per step -> overhead, speedup and throughput."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from medusa_sim.operators import FloatArray, Size
from medusa_sim.step import Setting, StepTime, decode_step, verify_step
from medusa_sim.units import US_PER_S

Baseline = Literal["same", "fixed"]
FIXED_BASELINE_BATCH = 1
FIXED_BASELINE_SEQ_LEN = 1024
"""The one decode step that the paper's Figures 22 and 23 divide by (docs/method.md, baselines)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Decode, verify and baseline steps of one grid; at one candidate the verify step is the decode step.

    Step times in microseconds. `overhead` is verify / decode at the same batch and length, with
    `baseline="fixed"` verify over the one decode step that the paper's figures divide by.
    """

    decode: StepTime
    verify: StepTime
    verify_us: FloatArray
    verify_low_us: FloatArray
    verify_high_us: FloatArray
    baseline_us: FloatArray

    @property
    def overhead(self) -> FloatArray:
        """Verify step / baseline step."""
        return self.verify_us / self.baseline_us


def steps(
    setting: Setting, batch: Size, seq_len: Size, candidates: Size, baseline: Baseline = "same"
) -> Steps:
    """Both steps over a broadcast grid. Raises SpecError or CoverageError from the latency model."""
    decoded = decode_step(setting, batch, seq_len)
    verified = verify_step(setting, batch, seq_len, candidates)
    baseline_us = decoded.time_us
    if baseline == "fixed":
        baseline_us = decode_step(setting, FIXED_BASELINE_BATCH, FIXED_BASELINE_SEQ_LEN).time_us
    plain = np.asarray(candidates) == 1
    return Steps(
        decode=decoded,
        verify=verified,
        verify_us=np.where(plain, decoded.time_us, verified.time_us),
        verify_low_us=np.where(plain, decoded.low_us, verified.low_us),
        verify_high_us=np.where(plain, decoded.high_us, verified.high_us),
        baseline_us=baseline_us,
    )


def speedup(tokens_per_step: FloatArray, overhead: FloatArray) -> FloatArray:
    """Tokens per step over overhead (Medusa, section 3: speedup = acceleration rate / overhead)."""
    return tokens_per_step / overhead


def speedup_band(
    grid: Steps, tokens_per_step: FloatArray, tokens_band: tuple[FloatArray, FloatArray]
) -> tuple[FloatArray, FloatArray]:
    """(low, high) of the speedup, 80 %.

    Relative half-widths of the verify step and of the tokens per step in quadrature. The baseline
    step's own error is left out: held-out ratios T(m)/T(1) scatter no wider than times do
    (docs/method.md, accuracy), because both steps read the same weights.
    """
    value = tokens_per_step / grid.overhead
    slow = np.log(grid.verify_high_us / grid.verify_us)
    fast = np.log(grid.verify_us / grid.verify_low_us)
    few = np.log(tokens_per_step / tokens_band[0])
    many = np.log(tokens_band[1] / tokens_per_step)
    low = value * np.exp(-np.hypot(slow, few))
    high = value * np.exp(np.hypot(fast, many))
    plain = tokens_per_step == 1.0
    return np.where(plain, value, low), np.where(plain, value, high)


def tokens_per_s(batch: Size, tokens_per_step: FloatArray, verify_us: FloatArray) -> FloatArray:
    """Tokens per second of the whole batch."""
    return np.asarray(batch) * tokens_per_step / verify_us * US_PER_S
