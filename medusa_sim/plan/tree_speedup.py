"""What trees of given accuracies gain: each is charged as many Medusa heads as it is deep."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from medusa_sim.acceptance.heads import HeadAccuracy, expected_tokens_per_step
from medusa_sim.acceptance.profile import AcceptanceProfile
from medusa_sim.acceptance.shaped import ShapedAcceptance
from medusa_sim.acceptance.tree import CandidateTree
from medusa_sim.arrays import FloatArray, IntArray
from medusa_sim.plan.scenario import Scenario
from medusa_sim.plan.surface import price
from medusa_sim.step.drafter.medusa import MedusaHeads
from medusa_sim.step.step import decode_step, verify_step


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BestTrees:
    """The fastest tree of each count, entry c - 1 of each array for c candidates.

    depth: levels below the root, which is the number of Medusa heads charged. speedup: over plain
    decoding at the same batch and length; 1 for the root alone.
    """

    depth: IntArray
    tokens_per_step: FloatArray
    speedup: FloatArray


def with_accuracies(scenario: Scenario, accuracy: HeadAccuracy) -> Scenario:
    """The scenario with Medusa heads of these accuracies."""
    model = ShapedAcceptance("accuracies", accuracy)
    profile = AcceptanceProfile("accuracies", "head-topk", "given", "given with the question", model)
    others = {"draft_model": None, "draft_runtime": None, "draft_vocab": None, "heads": None}
    return scenario.but(drafter="medusa", acceptance=profile, chain_only=False, **others)


def best_tree_speedups(
    scenario: Scenario, accuracy: HeadAccuracy, batch: int, seq_len: int, candidates_max: int
) -> BestTrees:
    """The fastest trees of 1, 2, ... candidates with Medusa heads of these accuracies: `sweep`'s numbers.

    A shallower tree than the one with the most tokens may be faster, since it runs fewer heads. Ends before
    `candidates_max` where the accuracies describe no larger tree. seq_len: committed tokens of each sequence.
    Raises CoverageError where the accuracies are no probabilities along a path; SpecError or
    CoverageError from the latency model.
    """
    if candidates_max < 2:
        return BestTrees(depth=np.zeros(1, dtype=np.int64), tokens_per_step=np.ones(1), speedup=np.ones(1))
    chosen = with_accuracies(scenario, accuracy)
    found = price(chosen, [batch], [seq_len], chosen.options(candidates_max)).by_count
    depth, tokens, speedup = (
        np.broadcast_to(values, found.fits.shape)[0, 0]
        for values in (found.drafts, found.tokens_per_step, found.speedup)
    )
    return BestTrees(depth=depth.astype(np.int64), tokens_per_step=tokens, speedup=speedup)


def tree_speedup(
    scenario: Scenario, accuracy: HeadAccuracy, tree: CandidateTree, batch: int, seq_len: int
) -> float:
    """Speedup of Medusa heads with this tree over plain decoding at the same batch and length.

    As many heads are charged as the tree is deep, however many were trained. seq_len: committed tokens of
    each sequence.
    Raises CoverageError where the accuracies do not cover the tree; SpecError or CoverageError from the
    latency model.
    """
    tokens = expected_tokens_per_step(tree, accuracy)
    if tree.candidates == 1:
        return 1.0
    setting = with_accuracies(scenario, accuracy).setting
    timed = replace(setting, drafter=MedusaHeads(heads=max(tree.depth, 1)))
    decode_us = float(decode_step(timed, batch, seq_len).time_us)
    return tokens * decode_us / float(verify_step(timed, batch, seq_len, tree.candidates).time_us)
