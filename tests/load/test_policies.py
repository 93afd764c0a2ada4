"""Policies: which number of drafts they choose, and that a choice is one."""

import numpy as np
import pytest
from load_tables import constant_table, limits, requests

from medusa_sim.errors import UsageError
from medusa_sim.load.lengths import Lengths
from medusa_sim.load.load_test import load_test
from medusa_sim.load.policies import (
    Adaptive,
    Budget,
    BySize,
    Policy,
    State,
    ThroughputAware,
    schedule_for,
)
from medusa_sim.load.policy_names import drafts_asked, policy_of
from medusa_sim.load.serving_loop import run
from medusa_sim.load.sources import closed_loop
from medusa_sim.load.step_table import StepTable
from medusa_sim.plan.recommend import recommend
from medusa_sim.scenario.question import Question
from medusa_sim.scenario.scenario import Scenario

STEP_S = 0.01


@pytest.mark.parametrize("nonsense", [-1, 9, 1.5, None, True, "three"])
def test_a_policy_that_returns_nonsense_is_refused_in_one_line(nonsense):
    class Broken(Policy):
        name = "broken"

        def drafts(self, state: State) -> object:
            return nonsense

    table = constant_table(STEP_S, rates=(0.5,))
    with pytest.raises(UsageError, match=r"policy broken chose .* whole numbers from 0 to 1"):
        run(requests([0.0, 0.0], prompt=[5, 5], output=[9, 9]), table, limits(), Broken())


def table_with_growth() -> StepTable:
    """Steps that take longer with every request, so that drafts lose in large batches."""
    plain = constant_table(STEP_S, rates=(0.6, 0.4), requests_max=64)
    b = np.arange(65)[None, :, None]
    drafts = np.arange(3)[:, None, None]
    step = STEP_S * (1.0 + 0.1 * b * (drafts + 1)) * np.ones_like(plain.step_s)
    return constant_table(STEP_S, rates=(0.6, 0.4), requests_max=64, step_s=step)


def test_budget_and_schedule_choose_less_at_larger_batches():
    table = table_with_growth()
    budget, schedule = Budget.from_table(table), schedule_for(table, 64)

    def state(requests: int) -> State:
        return State(
            now_s=0.0, requests=requests, unadmitted=0, mean_length=64.0, kv_share=0.1, drafts=0,
            accepted=None, steps=0,
        )  # fmt: skip

    for policy in (budget, schedule):
        chosen = [policy.drafts(state(b)) for b in (1, 8, 64)]
        assert chosen == sorted(chosen, reverse=True)
        assert chosen[0] == 2
        assert chosen[-1] == 0
    rate = table.rate_per_s[:, 1:, 0]
    taken = [budget.drafts(state(b)) for b in range(1, 65)]
    np.testing.assert_array_equal(taken, np.argmax(rate, axis=0))


@pytest.mark.parametrize(
    ("names", "most"),
    [(["schedule=1:3,32:0"], 3), (["schedule=1:0"], 1), (["2", "schedule=1:1"], 2), (["2", "budget"], 16)],
)
def test_a_test_is_sized_for_the_longest_draft_that_its_policies_may_run(names, most):
    assert drafts_asked(names, 16) == most


def test_the_schedule_is_what_recommend_writes_where_no_server_adds_to_steps():
    given = {"gpu": "h100-sxm", "model": "llama-3.1-8b", "runtime": "cuda-graph", "drafter": "eagle3"}
    test = load_test(Scenario(**given), policies=("schedule",), requests=30, seeds=1, max_num_seqs=128)
    length = int(test.table.lengths[np.argmin(np.abs(test.table.lengths - 1024))])
    rows = recommend(Scenario(**given), Question(batch_max=128, seq_len=(length,))).schedule
    entries = schedule_for(test.table, 1024).entries
    assert [(row.batch_min, row.drafts) for row in rows] == list(entries)
    assert len(entries) > 1


def test_adaptive_policies_follow_acceptance_and_cost():
    tiers = (1, 3, 7)
    for rate, expected in ((0.95, 7), (0.2, 1)):
        policy = Adaptive(tiers=tiers)
        table = constant_table(STEP_S, rates=tuple(rate**i for i in range(1, 8)))
        asked = closed_loop(4, Lengths(prompt_tokens=4, output_tokens=400, prompt_cv=0, output_cv=0), count=8)
        found = run(asked, table, limits(), policy)
        by_drafts = found.whole.steps_s.sum(axis=1)
        assert int(np.argmax(by_drafts[1:])) + 1 == expected
    # The tier with most tokens a second: long where drafts are taken and cheap, short where either ends.
    cheap = np.ones((8, 33, 2)) * (1.0 + 0.05 * np.arange(8))[:, None, None]
    dear = np.ones((8, 33, 2)) * (1.0 + 0.9 * np.arange(8))[:, None, None]
    asked = closed_loop(4, Lengths(prompt_tokens=4, output_tokens=400, prompt_cv=0, output_cv=0), count=8)
    for seconds, rate, expected in ((cheap, 0.95, 7), (cheap, 0.02, 1), (dear, 0.8, 1)):
        rates = tuple(rate**i for i in range(1, 8))
        table, believed = (constant_table(STEP_S, rates, **own) for own in ({}, {"step_s": seconds}))
        found = run(asked, table, limits(), ThroughputAware(step_s=believed.step_s[:, :, 0]))
        assert int(np.argmax(found.whole.steps_s.sum(axis=1)[1:])) + 1 == expected


def test_tensorrt_llms_schedule_says_up_to_how_many_requests():
    policy = policy_of("draft_len_schedule=4:4,8:2,32:1", constant_table(STEP_S, rates=(0.5,) * 4), 100.0)
    assert isinstance(policy, BySize)
    assert policy.entries == ((1, 4), (5, 2), (9, 1), (33, 0))
