"""One tree in a scenario: what it emits, what it costs with the scenario's drafter, how good it is."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from medusa_sim.acceptance.heads import (
    HeadAccuracy,
    expected_tokens_per_step,
    node_probabilities,
    optimal_order,
    tokens_per_step_error,
)
from medusa_sim.acceptance.shaped import ShapedAcceptance
from medusa_sim.acceptance.tree import CandidateTree
from medusa_sim.arrays import FloatArray, IntArray
from medusa_sim.errors import UsageError
from medusa_sim.grid.cells import price
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.step.drafter.base import Drafter
from medusa_sim.step.step import decode_step, speculative_step


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TreeAnswer:
    """A tree at one batch and length.

    probability: of each node (root first) to be accepted. tokens_error: half width of the 80 % interval of
    the tokens per step. best_tokens_per_step: of the tree of that size that emits most. step_speedup: over
    plain decoding at the same batch and length. extended: whether it uses ranks beyond the measured ones,
    whose accuracies are those of a fitted tail.
    """

    probability: FloatArray
    tokens_per_step: float
    tokens_error: float
    best_tokens_per_step: float
    step_speedup: float
    extended: bool

    @property
    def share_of_best(self) -> float:
        """Tokens per step over the tokens per step of the best tree of the same size."""
        return self.tokens_per_step / self.best_tokens_per_step

    @property
    def least(self) -> float:
        """Probability of the node that is accepted least often: the tokens that removing it costs."""
        return float(self.probability.min())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TreeCurve:
    """Every count from 1 up with the drafting that is fastest for it; entry i has candidates[i]."""

    candidates: IntArray
    tokens_per_step: FloatArray
    step_speedup: FloatArray


def accuracies_of(scenario: Scenario) -> HeadAccuracy:
    """Accuracies by depth and rank. Raises UsageError for a curve, which knows no shapes."""
    heads = scenario.profile.heads
    if heads is None:
        raise UsageError(
            f"acceptance {scenario.profile.name} is a curve of sizes and knows no trees; choose a profile "
            "with accuracies per head and rank, or rates by position"
        )
    return heads


def best_tree(scenario: Scenario, candidates: int, batch: int, seq_len: int) -> CandidateTree:
    """The tree of the largest count up to `candidates` that a search at this place would run.

    Raises UsageError for a profile that knows no shapes, SpecError or CoverageError from the latency model.
    """
    accuracies_of(scenario)
    every = price(scenario, [batch], [seq_len], scenario.options(candidates))
    counts = every.configurations.candidates
    members = np.flatnonzero(counts == counts[counts <= candidates].max())
    chosen = int(members[np.argmax(every.speedup[0, 0, members])])
    option = every.configurations.option_of(chosen)
    tree = None if option is None else option.tree(int(counts[chosen]))
    return CandidateTree(()) if tree is None else tree


def tree_curve(scenario: Scenario, batch: int, seq_len: int, candidates_max: int) -> TreeCurve:
    """Tokens per step and speedup of the best drafting of every count, as in `count_table`.

    Raises SpecError or CoverageError from the latency model.
    """
    by_count = price(scenario, [batch], [seq_len], scenario.options(candidates_max)).by_count
    return TreeCurve(
        candidates=by_count.candidates[0, 0],
        tokens_per_step=by_count.tokens_per_step[0, 0],
        step_speedup=by_count.step_speedup[0, 0],
    )


def tree_answer(scenario: Scenario, tree: CandidateTree, batch: int, seq_len: int) -> TreeAnswer:
    """Tokens per step and speedup of a tree, drafted by the scenario's drafter as deep and wide as it needs.

    seq_len: committed tokens of each sequence.
    Raises UsageError for a profile that knows no shapes, CoverageError where it does not cover the tree;
    SpecError or CoverageError from the latency model.
    """
    measured = accuracies_of(scenario)
    extended = tree.ranks_used > measured.ranks
    heads = measured.with_tail(tree.ranks_used) if extended else measured
    tokens = float(scenario.profile.adjusted(expected_tokens_per_step(tree, heads), tree.candidates))
    best = optimal_order(heads, tree.candidates).tokens_per_step
    error = tokens_per_step_error(tree, heads)
    model = scenario.profile.model
    assert isinstance(model, ShapedAcceptance)  # noqa: S101  # it has accuracies
    speed = 1.0
    if tree.candidates > 1:
        timed = replace(scenario.setting, drafter=tree_drafter(scenario, tree))
        decode_us = float(decode_step(timed, batch, seq_len).time_us)
        speed = decode_us / float(speculative_step(timed, batch, seq_len, tree.candidates).time_us)
    return TreeAnswer(
        probability=node_probabilities(tree, heads),
        tokens_per_step=tokens,
        tokens_error=float(
            max(model.full_errors(np.asarray(tokens), np.asarray(error), np.asarray(tree.depth)))
        ),
        best_tokens_per_step=float(scenario.profile.adjusted(best[-1], tree.candidates)),
        step_speedup=tokens * speed,
        extended=extended,
    )


def tree_drafter(scenario: Scenario, tree: CandidateTree) -> Drafter:
    """The scenario's drafter, as deep as the tree and as wide as the fullest of its levels that go on."""
    drafting = scenario.drafting
    grown = np.unique(tree.parents[1:])
    goes_on = np.bincount(tree.depths[grown])[1:] if grown.size else np.empty(0, np.int64)
    width = int(goes_on.max(initial=1)) if drafting.drafter_class.has_levels else 1
    return drafting.drafter_class.sized(drafting.parts, max(tree.depth, 1), width)
