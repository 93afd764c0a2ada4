"""Drafts that a look-up finds in runs: the mean of independent steps, unequal steps of a batch."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from load_tables import constant_table, limits

import medusa_sim as ms
from medusa_sim.load.draws import KINDS, Draws, rates_by_kind
from medusa_sim.load.lengths import Lengths
from medusa_sim.load.load_test import load_test
from medusa_sim.load.point import LoadPoint
from medusa_sim.load.policies import Budget, Fixed
from medusa_sim.load.run_result import RunResult
from medusa_sim.load.serving_loop import run
from medusa_sim.load.sources import closed_loop
from medusa_sim.load.step_table import StepTable
from medusa_sim.scenario.scenario import Scenario

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


def served(table: StepTable, users: int, drafts: int = 3, count: int = 8, spread: float = 0.0) -> RunResult:
    lengths = Lengths(prompt_tokens=1, output_tokens=4000, prompt_cv=0, output_cv=0)
    asked = closed_loop(users, lengths, count=count)
    return run(asked, table, limits(max_requests=users), Fixed(drafts), spread=spread)


@given(rate=st.floats(0.25, 0.95), runs=st.floats(1.0, 6.0), seed=st.integers(0, 99))
def test_drafts_are_found_as_often_as_said_in_runs_as_long_as_said(rate, runs, seed):
    luck = Draws(looked_up(runs, rate).accepted, np.full(400, 100), seed, spread=0.0)
    found = np.diff(luck.found_before()) > 0
    assert found.mean() == pytest.approx(rate, abs=0.02 * np.sqrt(runs))
    after = found[1:][found[:-1]]
    assert after.mean() == pytest.approx(1.0 - (1.0 - rate) / runs, abs=0.04)


@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_tokens_of_the_cells_are_those_of_the_profile(spread):
    # each number as often as it is probable: no chance on average
    rates, longest = (0.7, 0.5, 0.1), 50
    output = np.full(3000, longest)
    luck = Draws(constant_table(STEP_S, rates=rates).accepted, output, seed=3, spread=spread)
    kinds = KINDS if spread else 1
    sums = np.array([luck.tokens_before(drafts) for drafts in range(len(rates) + 1)])
    cells = np.diff(sums, axis=1).reshape(len(rates) + 1, kinds, -1)[:, :, :-longest]
    means = cells.mean(axis=-1)
    expected = 1.0 + np.cumsum(np.pad(rates_by_kind(np.array(rates), spread), ((0, 0), (1, 0))), axis=1)
    np.testing.assert_allclose(means.T, expected, atol=3.0 / cells.shape[-1])
    assert (np.diff(cells, axis=0) >= 0).all()  # a longer draft never emits less


def test_requests_that_hardly_differ_have_the_rates_of_the_profile():
    rates = np.array([0.7, 0.5, 0.1])
    assert rates_by_kind(rates, 0.05).mean(axis=0) == pytest.approx(rates, abs=1e-3)


def test_the_luck_of_a_request_depends_on_nobody_beside_it():
    table = constant_table(STEP_S, rates=(0.7, 0.5))
    asked = closed_loop(64, Lengths(prompt_tokens=1, output_tokens=60), count=300)
    alone, beside = (run(asked, table, limits(max_requests=most), Fixed(2), spread=1.0) for most in (1, 64))
    for result in (alone, beside):
        assert result.preemptions == 0
    np.testing.assert_allclose(
        alone.finish_s - alone.first_token_s, beside.finish_s - beside.first_token_s, atol=1e-9
    )


@pytest.mark.parametrize("users", [1, 4])
def test_the_mean_throughput_is_that_of_the_match_rate(users):
    for runs in (1.0, 1.4, 4.0):
        table = looked_up(runs)
        found = served(table, users, count=48)
        expected = users * table.accepted.tokens_per_step[3] / table.decoding_s(3, users, 2000)
        assert found.whole.emitted / found.end_s == pytest.approx(expected, rel=0.03)
        assert found.whole.accepted / found.whole.speculated == pytest.approx(sum(RATES), rel=0.04)


def test_longer_runs_make_requests_less_equal():
    def spread(runs: float) -> float:
        return float(np.std(served(looked_up(runs), 64, count=64).finish_s))

    assert spread(8.0) > 1.2 * spread(1.0)


@given(share=st.floats(0.0, 1.0), b=st.integers(1, 64), drafts=st.integers(1, 3))
def test_a_step_grows_with_the_share_that_found_drafts(share, b, drafts):
    table = looked_up(1.4)
    whole_s = table.decoding_s(drafts, b, 100)
    found = table.with_found_share_s(whole_s, drafts, b, 100, share)
    assert table.with_found_share_s(whole_s, drafts, b, 100, table.accepted.match_rate) == pytest.approx(
        whole_s
    )
    none_s = table.with_found_share_s(whole_s, drafts, b, 100, 0.0)
    assert none_s <= found + 1e-12
    if drafts > 1:  # the rows of one request each, and what the host takes anyway
        assert none_s == pytest.approx(STEP_S * (1.0 + 0.05 * b) + 0.002)
        rows = b * (1.0 + share * drafts)
        assert found == pytest.approx(STEP_S * (1.0 + 0.05 * rows) + 0.002)


def test_other_policies_and_unequal_requests_look_up_too():
    table = looked_up(1.4)
    asked = closed_loop(8, Lengths(prompt_tokens=8, output_tokens=100), count=80)
    for policy in (Budget.from_table(table), Fixed(2)):
        found = run(asked, table, limits(max_requests=8), policy, spread=1.0)
        assert found.whole.emitted == asked.output_tokens.sum()
    many = closed_loop(32, Lengths(prompt_tokens=1, output_tokens=200, prompt_cv=0, output_cv=0), count=2000)
    alike, unlike = (run(many, table, limits(), Fixed(3), spread=spread) for spread in (0.0, 1.0))
    unlike_share, alike_share = (each.whole.accepted / each.whole.speculated for each in (unlike, alike))
    assert unlike_share == pytest.approx(alike_share, rel=0.05)


PLAIN = Scenario(
    gpu="h100-sxm", model="llama-3.1-8b", runtime="vllm-0.11", drafter="eagle3", acceptance="0.8,0.6,0.4"
)


def point(
    scenario: Scenario = PLAIN, policy: str = "none", rate: float | None = None, **source: object
) -> LoadPoint:
    test = load_test(
        scenario, policies=(policy,), prompt_tokens=125.0, output_tokens=400.0, length_cv=0.5, seeds=1,
        max_num_seqs=source.get("users") or 64, **{"requests": 300, **source},
    )  # fmt: skip
    return test.point(test.servers[0], rate)


def test_a_server_with_next_to_nothing_to_do_draws_its_idle_watts():
    power = PLAIN.gpu.power
    lazy, busy = point(rate=0.02, requests=30).mean, point(rate=8.0).mean
    assert lazy["watts"] == pytest.approx(power.fit.idle_watts, rel=0.15)
    assert power.fit.idle_watts < lazy["watts"] < busy["watts"] < power.limit_watts
    assert lazy["joule_per_token"] > busy["joule_per_token"]


def test_energy_follows_time_and_a_card_without_power_has_none():
    plain, drafted = (point(policy=policy, users=8).mean for policy in ("none", "3"))
    assert drafted["joule_per_token"] < plain["joule_per_token"]
    found = point(PLAIN.but(gpu="cpu-emerald-rapids-50m", model="llama-68m", runtime="cuda-graph",
                            latency="roofline", dtype="fp32"), rate=0.5, requests=20).mean  # fmt: skip
    assert np.isnan(found["watts"])
    assert np.isnan(found["joule_per_token"])


def test_a_closed_loop_draws_what_was_measured(shared_data):
    power = pd.read_csv(shared_data / "engines" / "power_mlenergy.csv")
    rows = power[power.model.str.endswith("Llama-3.1-8B-Instruct") & power.max_num_seqs.isin([8, 32, 128])]
    misses = []
    for row in rows.itertuples():
        found = point(users=int(row.max_num_seqs), requests=6 * int(row.max_num_seqs)).mean
        misses.append(abs(found["watts"] / row.watts_all_gpus - 1.0))
        assert found["joule_per_token"] == pytest.approx(row.joule_per_token, rel=0.15)
    assert np.mean(misses) < 0.08


def test_a_server_that_takes_fewer_requests_with_a_drafter_is_simulated_beside_one_that_does_not():
    scenario = ms.Scenario(gpu="h100-sxm", model="llama-3.1-8b", drafter="eagle3", runtime="sglang")
    asked = {"requests": 200, "seeds": 1, "rates": 40.0, "search": False}
    plain, drafting = (point.mean for point in scenario.simulate(["none", "3"], **asked).answer.points)
    assert drafting["requests_decoding"] <= 48  # what SGLang admits with a drafter
    assert plain["requests_decoding"] > 48
