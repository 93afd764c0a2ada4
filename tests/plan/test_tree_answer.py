"""One tree in a scenario: charged with the scenario's own drafter, and never above what a search finds."""

from dataclasses import replace

import numpy as np
import pytest

from medusa_sim.acceptance.heads import expected_tokens_per_step
from medusa_sim.acceptance.tree import CandidateTree
from medusa_sim.errors import CoverageError, UsageError
from medusa_sim.grid.cells import price
from medusa_sim.grid.sweep import count_table
from medusa_sim.plan.tree_answer import accuracies_of, best_tree, tree_answer, tree_curve, tree_drafter
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.step.drafter.draft_model import DraftModel
from medusa_sim.step.drafter.layer import Eagle
from medusa_sim.step.drafter.medusa import Medusa
from medusa_sim.step.step import decode_step, speculative_step

MEDUSA = Scenario(runtime="cuda-graph", latency="roofline")
EAGLE = Scenario(runtime="cuda-graph", latency="roofline", drafter="eagle")
DRAFT = Scenario(
    latency="roofline", model="llama-2-7b", drafter="draft-model", draft_model="llama-160m", acceptance=0.7
)
CHAINS = MEDUSA.but(chain_only=True)


@pytest.mark.parametrize("scenario", [MEDUSA, EAGLE, DRAFT, CHAINS])
@pytest.mark.parametrize("batch", [1, 24])
def test_best_trees_lie_on_the_curve_and_the_curve_is_the_searchs(scenario, batch):
    curve = tree_curve(scenario, batch, 1024, 40)
    table = count_table(price(scenario, [batch], [1024], scenario.options(40)).by_count)
    assert curve.candidates.tolist() == table.column("candidates").to_pylist()
    assert np.allclose(curve.step_speedup, table.column("speedup"), rtol=1e-12)
    for count in {2, 3, int(curve.candidates[-1]), int(curve.candidates[len(curve.candidates) // 2])}:
        tree = best_tree(scenario, count, batch, 1024)
        found = tree_answer(scenario, tree, batch, 1024)
        at = int(np.searchsorted(curve.candidates, count))
        assert tree.candidates == count
        assert found.tokens_per_step == pytest.approx(curve.tokens_per_step[at], rel=1e-9)
        assert found.step_speedup == pytest.approx(curve.step_speedup[at], rel=1e-9)
        assert 0.0 < found.share_of_best <= 1.0 + 1e-12


@pytest.mark.parametrize("branches", [[3], [2, 2], [4, 2, 1], [1, 1, 1, 1]])
def test_no_tree_is_faster_than_the_best_of_its_size(branches):
    tree = CandidateTree.cartesian(branches)
    curve = tree_curve(MEDUSA, 4, 1024, tree.candidates)
    assert tree_answer(MEDUSA, tree, 4, 1024).step_speedup <= curve.step_speedup[tree.candidates - 1] * (
        1 + 1e-9
    )


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_a_tree_is_charged_as_many_heads_as_it_is_deep(depth):
    chain = CandidateTree.chain(depth)
    charged = replace(MEDUSA.setting, drafter=Medusa(heads=depth))
    plain_us, step_us = (
        float(step.time_us)
        for step in (decode_step(charged, 4, 512), speculative_step(charged, 4, 512, depth + 1))
    )
    expected = expected_tokens_per_step(chain, accuracies_of(MEDUSA)) * plain_us / step_us
    assert tree_answer(MEDUSA, chain, 4, 512).step_speedup == pytest.approx(expected)


@pytest.mark.parametrize(
    ("scenario", "kind", "branches", "width"),
    [
        (EAGLE, Eagle, [1, 1, 1], 1),
        (EAGLE, Eagle, [3, 2, 1], 6),
        (EAGLE, Eagle, [5], 1),
        (DRAFT, DraftModel, [2, 2], 2),
    ],
)
def test_drafters_that_run_level_by_level_are_charged_their_levels(scenario, kind, branches, width):
    drafter = tree_drafter(scenario, CandidateTree.cartesian(branches))
    assert isinstance(drafter, kind)
    assert isinstance(drafter, Eagle | DraftModel)
    assert (drafter.depth, drafter.width) == (len(branches), width)


def test_the_root_is_plain_decoding_and_trees_beyond_the_heads_are_stated_or_refused():
    found = tree_answer(MEDUSA, CandidateTree(()), 8, 1024)
    assert (found.step_speedup, found.tokens_per_step, found.share_of_best) == (1.0, 1.0, 1.0)
    ranks = accuracies_of(MEDUSA).ranks
    assert tree_answer(MEDUSA, CandidateTree.cartesian([ranks + 1]), 1, 1024).extended
    assert not tree_answer(MEDUSA, CandidateTree.cartesian([ranks]), 1, 1024).extended
    with pytest.raises(CoverageError, match="depth 6"):
        tree_answer(MEDUSA, CandidateTree.chain(6), 1, 1024)
    with pytest.raises(UsageError, match="knows no trees"):
        best_tree(MEDUSA.but(acceptance="paper-fig21"), 8, 1, 1024)
