"""Drafts that a look-up finds in runs: the mean of independent steps, unequal steps of a batch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from load_tables import constant_table, limits

from medusa_sim.load.arrivals import Lengths, closed_loop
from medusa_sim.load.draws import Found
from medusa_sim.load.policies import Budget, BudgetByRequest, Fixed
from medusa_sim.load.record import Record
from medusa_sim.load.scheduler import run
from medusa_sim.load.step_table import StepTable

STEP_S = 0.01
RATES = (0.25, 0.2, 0.15)


def looked_up(runs: float, match_rate: float = 0.4) -> StepTable:
    """Steps that take longer with every row that is found."""
    b, drafts = np.arange(65)[None, :, None], np.arange(len(RATES) + 1)[:, None, None]
    step_s = STEP_S * (1.0 + 0.05 * b * (1.0 + match_rate * drafts)) * np.ones((1, 1, 2))
    step_s[1:] += 0.002  # of the host, whether anything is found or not
    return constant_table(
        STEP_S, rates=RATES, requests_max=64, step_s=step_s, match_rate=match_rate, match_runs=runs
    )


def served(table: StepTable, users: int, drafts: int = 3, count: int = 8, spread: float = 0.0) -> Record:
    lengths = Lengths(prompt_tokens=1, output_tokens=4000, prompt_cv=0, output_cv=0)
    asked = closed_loop(users, lengths, count=count)
    return run(asked, table, limits(max_requests=users), Fixed(drafts), spread=spread)


@given(rate=st.floats(0.05, 0.95), runs=st.floats(1.0, 6.0), pieces=st.lists(st.integers(1, 40), min_size=1))
def test_drafts_are_found_as_often_as_said_in_runs_as_long_as_said(
    rate: float, runs: float, pieces: list[int]
) -> None:
    requests = 4000
    found, at = Found(np.full(requests, rate), runs, seed=1), np.arange(requests)
    seen = []
    for steps in pieces[:5]:
        taken = found.take(steps, at)
        found.left_at(at, taken[-1])
        seen.append(taken)
    steps = np.concatenate(seen)
    assert steps.mean() == pytest.approx(rate, abs=0.04)
    if len(steps) > 1:
        after = steps[1:][steps[:-1]]
        assert after.mean() == pytest.approx(1.0 - (1.0 - rate) / runs, abs=0.05)


@pytest.mark.parametrize("users", [1, 4])
def test_the_mean_throughput_is_that_of_the_match_rate(users: int) -> None:
    for runs in (1.0, 1.4, 4.0):
        table = looked_up(runs)
        found = served(table, users, count=48)
        expected = users * table.tokens_per_step[3] / table.decoding_s(3, users, 2000)
        assert found.emitted / found.end_s == pytest.approx(expected, rel=0.03)
        assert found.accepted / found.speculated == pytest.approx(sum(RATES), rel=0.04)


def test_longer_runs_make_requests_less_equal() -> None:
    def spread(runs: float) -> float:
        return float(np.std(served(looked_up(runs), 64, count=64).finish_s))

    assert spread(8.0) > 1.2 * spread(1.0)


@given(share=st.floats(0.0, 1.0), b=st.integers(1, 64), drafts=st.integers(1, 3))
def test_a_step_grows_with_the_share_that_found_drafts(share: float, b: int, drafts: int) -> None:
    table = looked_up(1.4)
    whole_s = table.decoding_s(drafts, b, 100)
    found = table.found_s(whole_s, drafts, b, 100, share)
    assert table.found_s(whole_s, drafts, b, 100, table.match_rate) == pytest.approx(whole_s)
    none_s = table.found_s(whole_s, drafts, b, 100, 0.0)
    assert none_s <= found + 1e-12
    if drafts > 1:  # the rows of one request each, and what the host takes anyway
        assert none_s == pytest.approx(STEP_S * (1.0 + 0.05 * b) + 0.002)
        rows = b * (1.0 + share * drafts)
        assert found == pytest.approx(STEP_S * (1.0 + 0.05 * rows) + 0.002)


def test_other_policies_and_unequal_requests_look_up_too() -> None:
    table = looked_up(1.4)
    asked = closed_loop(8, Lengths(prompt_tokens=8, output_tokens=100), count=80)
    for policy in (Budget.of(table), BudgetByRequest(table, 1.0), Fixed(2)):
        found = run(asked, table, limits(max_requests=8), policy, spread=1.0)
        assert found.emitted == asked.output_tokens.sum()
    many = closed_loop(32, Lengths(prompt_tokens=1, output_tokens=200, prompt_cv=0, output_cv=0), count=2000)
    alike, unlike = (run(many, table, limits(), Fixed(3), spread=spread) for spread in (0.0, 1.0))
    assert unlike.accepted / unlike.speculated == pytest.approx(alike.accepted / alike.speculated, rel=0.05)
