"""Policies: by batch, by request (fewer drafts for those that accept few, at the cost of a step's rows)."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from load_tables import constant_table, limits, requests

from medusa_sim.errors import UsageError
from medusa_sim.load.arrivals import Lengths, closed_loop
from medusa_sim.load.by_request import AdaptiveVerification, BudgetByRequest
from medusa_sim.load.kinds import Hardness
from medusa_sim.load.policies import (
    Adaptive,
    Budget,
    BySize,
    Costs,
    Fixed,
    Policy,
    State,
    ThroughputAware,
    schedule_of,
)
from medusa_sim.load.policy_names import policy_of
from medusa_sim.load.scheduler import run
from medusa_sim.load.step_table import StepTable

STEP_S = 0.01
RATES = (0.7, 0.5, 0.35, 0.25)


def growing_table(by_row: float, drafting: float = 0.1) -> StepTable:
    """Steps that take longer with every row; a tenth and more of each draft in drafting."""
    b, drafts = np.arange(129)[None, :, None], np.arange(len(RATES) + 1)[:, None, None]
    step_s = STEP_S * (1.0 + by_row * b * (drafts + 1)) * np.ones((1, 1, 2))
    share = np.broadcast_to(drafting * drafts[..., 0], step_s.shape[:2])
    return constant_table(
        STEP_S, rates=RATES, requests_max=128, step_s=step_s / (1.0 - share[..., None]), drafting_share=share
    )


def served_per_s(table: StepTable, policy: Policy, users: int, spread: float, seed: int = 0) -> float:
    lengths = Lengths(prompt_tokens=1, output_tokens=200, prompt_cv=0, output_cv=0.5)
    asked = closed_loop(users, lengths, count=16 * users, seed=seed)
    found = run(asked, table, limits(max_requests=users), policy, seed, spread=spread)
    start, end = found.window_s
    return float(((found.finish_s > start) & (found.finish_s <= end)).sum() / (end - start))


@pytest.mark.parametrize("by_row", [0.0, 0.002, 0.01, 0.1])
@pytest.mark.parametrize("users", [1, 7, 64])
def test_where_requests_are_alike_it_is_the_budget_of_the_batch(by_row, users):
    table = growing_table(by_row, drafting=0.02)
    asked = closed_loop(users, Lengths(prompt_tokens=20, output_tokens=80), count=4 * users, seed=3)
    each, alike = (
        run(asked, table, limits(max_requests=users), policy)
        for policy in (BudgetByRequest.of(table, 0.0), Budget.of(table))
    )
    np.testing.assert_array_equal(each.finish_s, alike.finish_s)
    np.testing.assert_array_equal(each.steps_s, alike.steps_s)


@pytest.mark.parametrize("by_row", [0.002, 0.01])
def test_at_a_full_card_it_serves_no_fewer_than_any_fixed_number_and_more_where_requests_differ(by_row):
    table, users = growing_table(by_row, drafting=0.02), 64
    for spread, gain in ((1.0, 0.985), (2.5, 1.02)):
        own = served_per_s(table, BudgetByRequest(table, spread), users, spread)
        fixed = [served_per_s(table, Fixed(drafts), users, spread) for drafts in range(len(RATES) + 1)]
        assert own > gain * max(fixed)


def test_a_deep_draft_of_easy_requests_is_not_drafted_for_all():
    # taking what is worth most first would draft four for all, at the price of two rows of everything
    table = growing_table(0.002, drafting=0.09)
    own, alike = (
        served_per_s(table, policy, 32, 1.0) for policy in (BudgetByRequest(table, 1.0), Budget.of(table))
    )
    assert own > 0.985 * alike


def test_verification_takes_the_likeliest_drafts_by_costs_of_one_context():
    # steps that grow with rows and context: a table of long contexts asks for fewer rows than a right one
    b, drafts = np.arange(129)[None, :, None], np.arange(len(RATES) + 1)[:, None, None]
    by_row = np.array([0.002, 0.02])  # at 1 and at 1,000,000 tokens
    step_s = STEP_S * (1.0 + by_row * b * (drafts + 1))
    table = constant_table(STEP_S, rates=RATES, requests_max=128, step_s=step_s)
    state = State(now_s=0.0, requests=64, waiting=0, mean_length=100.0, kv_share=0.1, drafts=0, accepted=None,
                  steps=0)  # fmt: skip
    accepted, tried = np.tile([2, 20], 32), np.full(64, 40)
    long, right = (
        AdaptiveVerification(table, 2.0, Costs(table, context)).choose_each(state, accepted, tried)
        for context in (1e6, None)
    )
    assert (long <= right).all()
    assert long.sum() < right.sum()
    assert (right[::2] < right[1::2]).all()  # of hard requests fewer
    gains = Hardness(np.asarray(RATES), 2.0)
    kept = np.concatenate([[1.0], gains.gains[gains.of(np.array([accepted[:1], tried[:1]]))][0]])
    best = np.concatenate([[1.0], gains.gains[gains.of(np.array([accepted[1:2], tried[1:2]]))][0]])
    # no draft that is left out is likelier than one that is taken
    taken = min(kept[right[0]], best[right[1]])
    left = max([*kept[right[0] + 1 : right[0] + 2], *best[right[1] + 1 : right[1] + 2]], default=0.0)
    assert taken >= left


def test_as_many_are_drafted_as_there_are_and_some_are_verified():
    table = growing_table(0.05, drafting=0.05)
    asked = closed_loop(64, Lengths(prompt_tokens=1, output_tokens=100), count=256)
    found = run(asked, table, limits(max_requests=64), AdaptiveVerification(table, 1.0), spread=1.0)
    assert found.emitted == asked.output_tokens.sum()
    assert found.steps_s[:4, 1:].sum() == 0.0  # every step drafts four
    whole = run(asked, table, limits(max_requests=64), Fixed(4), spread=1.0)
    assert found.accepted / found.speculated < whole.accepted / whole.speculated
    assert found.end_s < whole.end_s


def test_hard_requests_get_fewer_drafts():
    table = growing_table(0.01, drafting=0.0)
    policy = BudgetByRequest(table, 2.0)
    accepted, tried = np.array([0, 2, 20, 60, 0]), np.array([40, 40, 60, 64, 0])
    state = State(now_s=0.0, requests=5, waiting=0, mean_length=64.0, kv_share=0.1, drafts=0, accepted=None,
                  steps=0)  # fmt: skip
    drafts = policy.choose_each(state, accepted, tried)
    assert drafts[:4].tolist() == sorted(drafts[:4])
    assert drafts[0] < drafts[4] <= drafts[3]  # of the last nothing is known yet
    assert policy.choose(state) == policy.choose_each(state, 0 * accepted, 0 * tried).max()


@given(spread=st.floats(0.0, 4.0), tried=st.integers(0, 5000), share=st.floats(0.0, 1.0))
def test_more_accepted_drafts_never_make_a_request_look_harder(spread, tried, share):
    known = Hardness(np.asarray(RATES), spread)
    accepted = np.array([int(share * tried), tried])
    low, high = known.gains[known.of(np.array([accepted, [tried, tried]]))]
    assert (low <= high + 1e-12).all()
    assert ((known.gains >= 0.0) & (known.gains <= 1.0)).all()
    nothing = known.gains[known.of(np.zeros((2, 1), dtype=np.int64))][0]
    if spread == 0.0:
        np.testing.assert_allclose(nothing, RATES)


@given(
    drafts=st.lists(st.integers(0, len(RATES)), min_size=1, max_size=128),
    by_row=st.floats(0.0, 0.1),
    length=st.floats(1.0, 1e6),
)
def test_a_step_costs_its_rows_and_the_longest_drafting(drafts, by_row, length):
    table = growing_table(by_row)
    b, deepest = len(drafts), max(drafts)
    found = table.ragged_s(sum(drafts), deepest, b, length)
    equal = [table.decoding_s(each, b, length) for each in (0, deepest)]
    assert equal[0] - 1e-12 <= found <= equal[1] + 1e-12
    if deepest:
        seen = table.unequal_s(
            np.array([sum(drafts)]), np.array([deepest]), b, table.step_s[:, b, table.nearest(length)]
        )
        assert seen[0] == pytest.approx(found, rel=1e-9)
        whole = table.decoding_s(deepest, b, length) * table.drafting_share[deepest, b]
        rows = STEP_S * (1.0 + by_row * (b + sum(drafts)))
        assert found == pytest.approx(rows + whole, rel=1e-9)


def test_where_all_are_drafted_for_every_step_pays_for_them() -> None:
    """Verified drafts change with the length, drafted ones do not: asked within a row of equal steps."""

    class Wavering:
        name, whole, waits, hold_steps = "wavering", True, True, 4

        def choose(self, state: State) -> int:
            return self.at(state.requests, state.mean_length, state.drafts, state.accepted, state.steps)

        def at(self, requests: int, length: float, drafts: int, accepted: float | None, steps: int) -> int:
            return 1 + int(length) // 20 % 3

    asked = closed_loop(8, Lengths(prompt_tokens=20, output_tokens=150), count=64, seed=1)
    found = run(asked, growing_table(0.01), limits(max_requests=8), Wavering())
    assert found.steps_s[len(RATES)].sum() > 0.9 * found.steps_s.sum()
    assert found.steps_s[1 : len(RATES)].sum() == 0.0


@pytest.mark.parametrize(
    "nonsense", [-1, 9, 1.5, None, True, "three", [1], [9, 9], [-1, 0], [0.5, 1.0], "each None"]
)
def test_a_policy_that_returns_nonsense_is_refused_in_one_line(nonsense):
    each = isinstance(nonsense, list) or nonsense == "each None"

    class Broken:
        name = "broken"

        def choose(self, state: State) -> object:
            return 0 if each else nonsense

    class Each(Broken):
        def choose_each(self, state: State, accepted: np.ndarray, tried: np.ndarray) -> object:
            return None if nonsense == "each None" else nonsense

    told = "for 2 requests; a whole number from 0 to 1" if each else "whole numbers from 0 to 1"
    table = constant_table(STEP_S, rates=(0.5,))
    with pytest.raises(UsageError, match=f"policy broken chose .* {told}"):
        run(requests([0.0, 0.0], prompt=[5, 5], output=[9, 9]), table, limits(), (Each if each else Broken)())


def table_with_growth() -> StepTable:
    """Steps that take longer with every request, so that drafts lose in large batches."""
    plain = constant_table(STEP_S, rates=(0.6, 0.4), requests_max=64)
    b = np.arange(65)[None, :, None]
    drafts = np.arange(3)[:, None, None]
    step = STEP_S * (1.0 + 0.1 * b * (drafts + 1)) * np.ones_like(plain.step_s)
    return constant_table(STEP_S, rates=(0.6, 0.4), requests_max=64, step_s=step)


def test_budget_and_schedule_choose_less_at_larger_batches():
    table = table_with_growth()
    budget, schedule = Budget.of(table), schedule_of(table, 64)

    def state(requests: int) -> State:
        return State(
            now_s=0.0, requests=requests, waiting=0, mean_length=64.0, kv_share=0.1, drafts=0, accepted=None,
            steps=0,
        )  # fmt: skip

    for policy in (budget, schedule):
        chosen = [policy.choose(state(b)) for b in (1, 8, 64)]
        assert chosen == sorted(chosen, reverse=True)
        assert chosen[0] == 2
        assert chosen[-1] == 0
    rate = table.rate_per_s[:, 1:, 0]
    taken = [budget.choose(state(b)) for b in range(1, 65)]
    np.testing.assert_array_equal(taken, np.argmax(rate, axis=0))


def test_adaptive_policies_follow_acceptance_and_cost():
    tiers = (1, 3, 7)
    for rate, expected in ((0.95, 7), (0.2, 1)):
        policy = Adaptive(tiers=tiers)
        table = constant_table(STEP_S, rates=tuple(rate**i for i in range(1, 8)))
        asked = closed_loop(4, Lengths(prompt_tokens=4, output_tokens=400, prompt_cv=0, output_cv=0), count=8)
        found = run(asked, table, limits(), policy)
        by_drafts = found.steps_s.sum(axis=1)
        assert int(np.argmax(by_drafts[1:])) + 1 == expected
    # The tier with most tokens a second: long where drafts are taken and cheap, short where either ends.
    cheap = np.ones((8, 33, 2)) * (1.0 + 0.05 * np.arange(8))[:, None, None]
    dear = np.ones((8, 33, 2)) * (1.0 + 0.9 * np.arange(8))[:, None, None]
    asked = closed_loop(4, Lengths(prompt_tokens=4, output_tokens=400, prompt_cv=0, output_cv=0), count=8)
    for seconds, rate, expected in ((cheap, 0.95, 7), (cheap, 0.02, 1), (dear, 0.8, 1)):
        rates = tuple(rate**i for i in range(1, 8))
        table, believed = (constant_table(STEP_S, rates, **own) for own in ({}, {"step_s": seconds}))
        found = run(asked, table, limits(), ThroughputAware(costs=Costs(believed, 1.0)))
        assert int(np.argmax(found.steps_s.sum(axis=1)[1:])) + 1 == expected


def test_tensorrt_llms_schedule_says_up_to_how_many_requests():
    policy = policy_of("draft_len_schedule=4:4,8:2,32:1", constant_table(STEP_S, rates=(0.5,) * 4), 100.0)
    assert isinstance(policy, BySize)
    assert policy.entries == ((1, 4), (5, 2), (9, 1), (33, 0))
