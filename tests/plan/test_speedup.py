"""Speedups of trees: a head costs what it costs, and a tree is charged as many as it is deep."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from medusa_sim.acceptance.heads import HeadAccuracy, expected_tokens_per_step
from medusa_sim.acceptance.optimise import optimal_order
from medusa_sim.acceptance.tree import CandidateTree
from medusa_sim.errors import CoverageError
from medusa_sim.plan.scenario import sweep_settings
from medusa_sim.plan.speedup import best_tree_speedups, tree_speedup
from medusa_sim.step.drafter import MedusaHeads
from medusa_sim.step.step import decode_step, verify_step

SETTING = sweep_settings(latency="roofline", drafter="ngram")[0].setting
ACCURACY = HeadAccuracy.checked(
    [[0.58, 0.11, 0.06], [0.36, 0.11, 0.06], [0.24, 0.09, 0.06], [0.17, 0.08, 0.05]], [5000] * 4
)


@pytest.mark.parametrize("batch", [1, 24])
def test_every_best_tree_lies_on_the_curve(batch: int) -> None:
    curve = best_tree_speedups(SETTING, ACCURACY, batch, 1024, 40)
    order = optimal_order(ACCURACY, 40)
    for count in range(1, 41):
        tree = order.tree(count)
        assert curve.depth[count - 1] == tree.depth
        assert curve.tokens_per_step[count - 1] == pytest.approx(expected_tokens_per_step(tree, ACCURACY))
        assert curve.speedup[count - 1] == pytest.approx(tree_speedup(SETTING, ACCURACY, tree, batch, 1024))


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_a_tree_is_charged_as_many_heads_as_it_is_deep(depth: int) -> None:
    chain = CandidateTree.chain(depth)
    charged = replace(SETTING, drafter=MedusaHeads(heads=depth), depth=depth)
    plain_us, step_us = (
        float(step.time_us)
        for step in (decode_step(charged, 4, 512), verify_step(charged, 4, 512, depth + 1))
    )
    expected = expected_tokens_per_step(chain, ACCURACY) * plain_us / step_us
    assert tree_speedup(SETTING, ACCURACY, chain, 4, 512) == pytest.approx(expected)


def test_trained_heads_that_a_tree_does_not_use_cost_nothing() -> None:
    tree = CandidateTree.cartesian([3])
    whole, first = (tree_speedup(SETTING, heads, tree, 1, 1024) for heads in (ACCURACY, ACCURACY.first(1)))
    assert whole == first


def test_the_root_alone_is_plain_decoding() -> None:
    assert tree_speedup(SETTING, ACCURACY, CandidateTree(()), 8, 1024) == 1.0
    curve = best_tree_speedups(SETTING, ACCURACY, 8, 1024, 1)
    assert (curve.depth.tolist(), curve.tokens_per_step.tolist(), curve.speedup.tolist()) == (
        [0],
        [1.0],
        [1.0],
    )
    assert curve.by_depth() == ((1, 1, 1),)


def test_ranges_of_one_depth_cover_every_count_once() -> None:
    curve = best_tree_speedups(SETTING, ACCURACY, 1, 1024, 60)
    ranges = curve.by_depth()
    assert [count for _, first, last in ranges for count in range(first, last + 1)] == [*range(1, 61)]
    for depth, first, last in ranges:
        assert (np.maximum(curve.depth[first - 1 : last], 1) == depth).all()


def test_accuracies_of_a_chain_end_the_curve() -> None:
    chain = HeadAccuracy.checked([[0.7], [0.6]])
    assert best_tree_speedups(SETTING, chain, 1, 1024, 64).speedup.shape == (3,)


def test_a_tree_deeper_than_the_heads_is_refused() -> None:
    with pytest.raises(CoverageError, match="depth 5"):
        tree_speedup(SETTING, ACCURACY, CandidateTree.chain(5), 1, 1024)
