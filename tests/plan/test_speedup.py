"""Speedups of trees: a head costs what it costs, and a tree is charged as many as it is deep."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from medusa_sim.acceptance.heads import HeadAccuracy, expected_tokens_per_step
from medusa_sim.acceptance.optimise import optimal_order
from medusa_sim.acceptance.tree import CandidateTree
from medusa_sim.errors import CoverageError
from medusa_sim.plan.scenario import Scenario
from medusa_sim.plan.tree_speedup import best_tree_speedups, tree_speedup, with_accuracies
from medusa_sim.step.drafter.medusa import MedusaHeads
from medusa_sim.step.step import decode_step, verify_step

SCENARIO = Scenario(latency="roofline")
ACCURACY = HeadAccuracy.checked(
    [[0.58, 0.11, 0.06], [0.36, 0.11, 0.06], [0.24, 0.09, 0.06], [0.17, 0.08, 0.05]], [5000] * 4
)


@pytest.mark.parametrize("batch", [1, 24])
def test_no_tree_of_its_size_is_faster_than_the_curve_and_one_is_as_fast(batch: int) -> None:
    curve = best_tree_speedups(SCENARIO, ACCURACY, batch, 1024, 40)
    orders = [optimal_order(ACCURACY.first(heads), 40) for heads in (1, 2, 3, 4)]
    for count in range(2, 41):
        trees = [order.tree(count) for order in orders if count <= order.candidates_max]
        gains = [tree_speedup(SCENARIO, ACCURACY, tree, batch, 1024) for tree in trees]
        best = int(np.argmax(gains))
        assert curve.speedup[count - 1] == pytest.approx(gains[best], rel=1e-9)
        assert curve.depth[count - 1] == trees[best].depth
        assert curve.tokens_per_step[count - 1] == pytest.approx(
            expected_tokens_per_step(trees[best], ACCURACY)
        )


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_a_tree_is_charged_as_many_heads_as_it_is_deep(depth: int) -> None:
    chain = CandidateTree.chain(depth)
    charged = replace(with_accuracies(SCENARIO, ACCURACY).setting, drafter=MedusaHeads(heads=depth))
    plain_us, step_us = (
        float(step.time_us)
        for step in (decode_step(charged, 4, 512), verify_step(charged, 4, 512, depth + 1))
    )
    expected = expected_tokens_per_step(chain, ACCURACY) * plain_us / step_us
    assert tree_speedup(SCENARIO, ACCURACY, chain, 4, 512) == pytest.approx(expected)


def test_trained_heads_that_a_tree_does_not_use_cost_nothing() -> None:
    tree = CandidateTree.cartesian([3])
    whole, first = (tree_speedup(SCENARIO, heads, tree, 1, 1024) for heads in (ACCURACY, ACCURACY.first(1)))
    assert whole == pytest.approx(first, rel=5e-4)  # the cache moves as many rows as the deepest path has


def test_the_root_alone_is_plain_decoding() -> None:
    assert tree_speedup(SCENARIO, ACCURACY, CandidateTree(()), 8, 1024) == 1.0
    curve = best_tree_speedups(SCENARIO, ACCURACY, 8, 1024, 1)
    assert (curve.depth.tolist(), curve.tokens_per_step.tolist(), curve.speedup.tolist()) == (
        [0],
        [1.0],
        [1.0],
    )


def test_accuracies_of_a_chain_end_the_curve() -> None:
    chain = HeadAccuracy.checked([[0.7], [0.6]])
    assert best_tree_speedups(SCENARIO, chain, 1, 1024, 64).speedup.shape == (3,)


def test_a_tree_deeper_than_the_heads_is_refused() -> None:
    with pytest.raises(CoverageError, match="depth 5"):
        tree_speedup(SCENARIO, ACCURACY, CandidateTree.chain(5), 1, 1024)
