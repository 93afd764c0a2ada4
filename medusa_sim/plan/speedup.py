"""Step times and tokens per step -> overhead, speedup and throughput; what trees of candidates gain."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from medusa_sim.acceptance.heads import HeadAccuracy, expected_tokens_per_step
from medusa_sim.acceptance.optimise import optimal_order
from medusa_sim.acceptance.tree import CandidateTree
from medusa_sim.arrays import FloatArray, IntArray
from medusa_sim.operators.operator import Size
from medusa_sim.step.drafter import MedusaHeads
from medusa_sim.step.step import Setting, StepTime, decode_step, verify_step
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BestTrees:
    """The trees with the most tokens per step. Entry c - 1 of each array is the tree of c candidates.

    depth: levels below the root, which is the number of Medusa heads charged. speedup: over plain
    decoding at the same batch and length; 1 for the root alone.
    """

    depth: IntArray
    tokens_per_step: FloatArray
    speedup: FloatArray

    def by_depth(self) -> tuple[tuple[int, int, int], ...]:
        """(depth, smallest, largest count) of each depth; the root alone goes with depth 1.

        A larger tree is never shallower, so these ranges cover every count once.
        """
        levels = np.maximum(self.depth, 1)
        return tuple(
            (
                int(depth),
                int(np.searchsorted(levels, depth)) + 1,
                int(np.searchsorted(levels, depth, side="right")),
            )
            for depth in np.unique(levels)
        )


def best_tree_speedups(
    setting: Setting, accuracy: HeadAccuracy, batch: int, seq_len: int, candidates_max: int
) -> BestTrees:
    """Best trees of 1, 2, ... candidates with Medusa heads of these accuracies.

    Ends before `candidates_max` where the accuracies describe no larger tree. Each tree is charged as
    `tree_speedup` charges it. seq_len: committed tokens of each sequence.
    Raises CoverageError where the accuracies are no probabilities along a path; SpecError or
    CoverageError from the latency model.
    """
    order = optimal_order(accuracy, candidates_max)
    deepest = np.maximum.accumulate([0, *(len(path) for path in order.paths)])
    depth = deepest.astype(np.int64)
    tokens = order.tokens_per_step
    counts = np.arange(1, depth.size + 1)
    gain = _with_heads(setting, batch, seq_len, counts, depth, tokens)
    return BestTrees(depth=depth, tokens_per_step=tokens, speedup=gain)


def tree_speedup(
    setting: Setting, accuracy: HeadAccuracy, tree: CandidateTree, batch: int, seq_len: int
) -> float:
    """Speedup of Medusa heads with this tree over plain decoding at the same batch and length.

    As many heads are charged as the tree is deep, however many were trained; the drafter of `setting`
    plays no part. seq_len: committed tokens of each sequence.
    Raises CoverageError where the accuracies do not cover the tree; SpecError or CoverageError from the
    latency model.
    """
    tokens = np.asarray([expected_tokens_per_step(tree, accuracy)])
    counts, depth = np.asarray([tree.candidates]), np.asarray([tree.depth])
    return float(_with_heads(setting, batch, seq_len, counts, depth, tokens)[0])


def _with_heads(
    setting: Setting, batch: int, seq_len: int, candidates: IntArray, depth: IntArray, tokens: FloatArray
) -> FloatArray:
    """Speedup of each tree, entry by entry, each with as many heads as it is deep."""
    found = np.empty(candidates.shape)
    for levels in np.unique(depth):
        alike = depth == levels
        heads = max(int(levels), 1)
        timed = replace(setting, drafter=MedusaHeads(heads=heads), depth=heads)
        found[alike] = speedup(tokens[alike], steps(timed, batch, seq_len, candidates[alike]).overhead)
    return found
