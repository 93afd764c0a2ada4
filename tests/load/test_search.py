"""What policies carry: searches end where they should, and say what is best where nothing does."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from medusa_sim.errors import UsageError
from medusa_sim.load.answer import LoadAnswer, run_load
from medusa_sim.load.carried_rates import CarriedRates, find_carried, rates_to_try
from medusa_sim.load.load_test import load_test
from medusa_sim.load.losses import off_from
from medusa_sim.load.point import LoadPoint
from medusa_sim.load.policies import Adaptive
from medusa_sim.load.saturation import requests_held, saturation
from medusa_sim.report.load.screen import carried_table, context_text, load_table
from medusa_sim.report.load.sentences import answer_text
from medusa_sim.report.load.values import carried_values, context_values, load_arrow, timeline_arrow
from medusa_sim.report.load.warnings import _unsteady, warnings
from medusa_sim.report.words.break_even import break_even_text
from medusa_sim.scenario.scenario import Scenario

SCENARIO = Scenario(gpu="h100-sxm", model="llama-3.1-8b", drafter="eagle3", max_drafts=3)
SMALL = {"requests": 300, "seeds": 2, "max_num_seqs": 64}


@pytest.fixture(scope="module")
def answer() -> LoadAnswer:
    test = load_test(SCENARIO, policies=("none", "3"), tpot_ms=12.0, **SMALL)
    return run_load(test, [4.0, 12.0], target_rate=50.0)


def test_a_caption_explains_columns_that_are_there(answer):
    assert "off from" in carried_table(answer).title
    assert "off from" not in carried_table(replace(answer, carried=answer.carried[:1])).title


def test_the_largest_rate_keeps_the_limits_and_a_larger_one_does_not(answer):
    plain, drafting = answer.carried
    assert 0.0 < plain.largest_per_s < drafting.largest_per_s <= drafting.saturated_per_s
    test = answer.test
    for server, found in zip(test.servers, answer.carried, strict=True):
        assert found.largest_per_s is not None
        if found.largest_per_s >= found.saturated_per_s:
            continue
        for factor, keeps in ((0.97, True), (1.1, False)):
            point = test.point(server, factor * found.largest_per_s)
            assert (point.mean["goodput_share"] >= test.slos.share) is keeps
    assert drafting.gpus_for(50.0, 1) == int(np.ceil(50.0 / drafting.largest_per_s))
    each = replace(drafting, largest_per_s=0.7)
    assert 2.1 / 0.7 > 3.0  # as floats
    assert [each.gpus_for(rate, 2) for rate in (0.7, 2.1, 2.11)] == [2, 6, 8]


def test_policies_are_compared_on_the_same_requests(answer):
    for rate in (4.0, 12.0):
        plain, drafting = (point for point in answer.points if point.rate_per_s == rate)
        np.testing.assert_array_equal(
            plain.first_result.requests.prompt_tokens, drafting.first_result.requests.prompt_tokens
        )
        np.testing.assert_array_equal(plain.first_result.arrival_s, drafting.first_result.arrival_s)
        ratio, low, high = drafting.ratio_to(plain, "e2e_mean_s")
        assert low < ratio < high < 1.0
        assert plain.half_width("tpot_mean_s") > 0.0


def test_the_sentence_and_the_rows_name_both_rates_and_every_metric(answer):
    told = answer_text(answer)
    assert told.startswith("With 3 drafts a step the server sustains ")
    assert "requests/s within 12.0 ms a token" in told
    assert " without. " in told
    rows = load_arrow(answer)
    assert rows.num_rows == 4
    assert {"policy", "rate_per_s", "ttft_p99_s", "itl_p50_s", "goodput_per_s", "kv_share", "e2e_ratio_low",
            "usd_per_million_tokens", "share_prompts"} <= set(rows.column_names)  # fmt: skip
    shares = sum(rows.column(name).to_numpy() for name in
                 ("share_decoding", "share_drafting", "share_prompts", "share_idle"))  # fmt: skip
    np.testing.assert_allclose(shares, 1.0, atol=1e-9)
    assert carried_values(answer)[0]["gpus_needed"] >= carried_values(answer)[1]["gpus_needed"]
    line = timeline_arrow(answer)
    assert set(line.column("policy").to_pylist()) == {"none", "K=3"}


def test_limits_that_nothing_meets_and_rates_above_saturation_are_shown_with_what_is_possible():
    test = load_test(SCENARIO, policies=("none", "2"), tpot_ms=0.5, **SMALL)
    told = answer_text(run_load(test, [2.0]))
    assert told.startswith("No policy keeps 0.500 ms a token for 90 % of the requests at any rate")
    assert "keep it with" in told
    test = load_test(SCENARIO, policies=("none",), **SMALL)
    found = run_load(test, [500.0])
    full = found.carried[0].saturated_per_s
    told = " ".join(warnings(found))
    assert "plain decoding at 500 requests/s is not steady" in told
    assert f"up to 0.9 of that, {0.9 * full:.3g}" in told


def adaptive() -> Adaptive:
    return Adaptive(tiers=(1, 2, 3))


def test_where_drafting_loses_in_a_batch_is_where_the_table_says():
    slow = Scenario(gpu="l40s", model="llama-3.1-8b", drafter="eagle", acceptance=0.25, max_drafts=3)
    test = load_test(slow, policies=("none", "3"), requests=200, seeds=1, max_num_seqs=128)
    fixed = test.servers[1]
    own, any_number = (
        off_from(fixed.table, policy, test.mean_length, 128) for policy in (fixed.policy(), adaptive())
    )
    j = int(np.argmin(np.abs(fixed.table.lengths - test.mean_length)))
    rate = fixed.table.rate_per_s[:, :, j]
    for off, drafting in ((own, rate[3]), (any_number, rate[1:].max(axis=0))):
        assert off is not None
        assert (drafting[off:] <= rate[0, off:]).all()
        if off > 1:
            assert drafting[off - 1] > rate[0, off - 1]
    assert own < any_number  # three drafts lose before one does


def test_a_closed_loop_is_full_at_its_users():
    test = load_test(SCENARIO, policies=("none",), users=16, requests=160, seeds=1)
    point = run_load(test, search=False).points[0]
    assert point.mean["requests_in_system"] == pytest.approx(16.0, rel=0.03)
    # Little's law: users = rate x time in the system, over a window of few requests
    assert point.mean["requests_per_s"] * point.mean["e2e_mean_s"] == pytest.approx(16.0, rel=0.15)
    with pytest.raises(UsageError, match="closed loop"):
        run_load(test, [3.0])


def test_littles_law_holds_in_the_measured_window():
    test = load_test(SCENARIO, policies=("none",), requests=6000, length_cv=0.3, seeds=1)
    mean = run_load(test, [15.0], search=False).points[0].mean
    expected = 15.0 * mean["e2e_mean_s"]
    assert mean["requests_in_system"] == pytest.approx(expected, rel=0.05)


def test_saturation_does_not_depend_on_the_rate_that_is_asked():
    test = load_test(SCENARIO, policies=("none",), **SMALL)
    per_s, tokens_per_s, *_ = saturation(test, test.servers[0])
    assert per_s > 1.0
    assert tokens_per_s / per_s == pytest.approx(256, rel=0.15)
    assert rates_to_try(per_s)[-1] == pytest.approx(0.9 * per_s, rel=0.06)


@settings(max_examples=12, deadline=None)
@given(
    limit_ms=st.floats(4.0, 60.0),
    prompt=st.sampled_from([64, 512, 2000]),
    cv=st.sampled_from([0.0, 0.8]),
    slots=st.sampled_from([4, 16, 48]),
    policy=st.sampled_from(["none", "3"]),
)
def test_nothing_carries_more_than_it_is_full_at(limit_ms, prompt, cv, slots, policy):
    test = load_test(SCENARIO, policies=(policy,), tpot_ms=limit_ms, prompt_tokens=prompt, output_tokens=64,
                     length_cv=cv, max_num_seqs=slots, requests=220, seeds=2)  # fmt: skip
    (found,) = find_carried(test)
    assert 0.0 <= found.largest_per_s <= found.saturated_per_s
    assert found.largest_half_width is None or found.largest_half_width >= 0.0
    if found.largest_per_s:
        assert found.largest_low_per_s < found.largest_per_s < found.largest_high_per_s
        assert found.largest_high_per_s <= found.saturated_high_per_s


def test_an_error_of_the_step_is_larger_in_the_latency_by_what_the_queue_adds():
    # d TPOT / TPOT = e / (1 - rho'): steps that are longer by 2 % meet more requests
    test = load_test(SCENARIO, policies=("none",), requests=3000, length_cv=0.3, seeds=1, prompt_tokens=512)
    server = test.servers[0]
    for rate in (5.0, 24.0):
        point = test.point(server, rate)
        table, prompts = server.table, server.table.prompts
        slower_prompts = replace(
            prompts, linear_s=1.02 * prompts.linear_s, attention_s=1.02 * prompts.attention_s
        )
        own_s = 1.02 * table.decode_linear_s
        slow = replace(table, step_s=1.02 * table.step_s, decode_linear_s=own_s, prompts=slower_prompts)
        slower = test.point(replace(server, table=slow), rate)
        grown = np.log(slower.mean["tpot_mean_s"] / point.mean["tpot_mean_s"])
        share = point.mean["queue_share"]
        assert grown == pytest.approx(np.log(1.02) / (1.0 - share), rel=0.35)
        low, high = point.band("tpot_mean_s")
        assert low < point.mean["tpot_mean_s"] < high
        assert np.log(high / point.mean["tpot_mean_s"]) > point.mean["step_slower"]
        if rate > 20.0:
            assert share > 0.3
            assert grown > 1.3 * np.log(1.02)


def test_rates_lie_on_both_sides_of_what_is_carried(answer):
    full = answer.carried[0].saturated_per_s
    rates = rates_to_try(full, answer.carried)
    for each in answer.carried:
        assert min(rates) < each.largest_per_s
        assert max(rates) > each.largest_per_s or each.largest_per_s > 0.9 * each.saturated_per_s


def test_a_policy_that_keeps_its_limits_until_it_is_full_is_tried_where_it_is_steady():
    test = load_test(SCENARIO, policies=("none",), **SMALL, tpot_ms=60_000.0)
    (plain,) = find_carried(test)
    assert plain.largest_per_s == plain.saturated_per_s
    assert max(rates_to_try(plain.saturated_per_s, [plain])) <= 0.9 * plain.saturated_per_s


def test_an_overloaded_run_says_that_it_is_not_steady_whatever_its_length():
    # shares within limits of such a run tell its length: none of them is printed
    found = {}
    for count in (400, 1600):
        test = load_test(SCENARIO, policies=("none",), requests=count, seeds=2, max_num_seqs=8, ttft_ms=9000)
        full = saturation(test, test.servers[0]).requests_per_s
        for factor in (0.7, 0.89, 1.05, 1.5):
            answer = run_load(test, [factor * full], search=False)
            point = answer.points[0]
            found[count, factor] = point.mean["goodput_share"]
            assert answer.is_steady(point) is (factor < 1.0)
            told = " ".join(warnings(answer))
            assert ("not steady" in told) is (factor > 1.0)
            assert ("not steady" in str(load_table(answer).rows)) is (factor > 1.0)
            if factor > 1.2:
                assert not point.is_steady
                grown = point.mean["queue_growth_per_s"]
                assert grown == pytest.approx((factor - 1.0) * full, rel=0.25)
    assert found[400, 1.5] > 1.5 * found[1600, 1.5]
    assert found[400, 0.7] == pytest.approx(found[1600, 0.7], abs=0.05)


def test_contexts_that_pay_are_those_of_the_recommendation():
    """On an Ampere GPU FlashAttention-2 splits no keys of a round: beyond some context drafts lose."""
    test = load_test(
        Scenario(gpu="a100-80gb-sxm", model="llama-3.1-8b", drafter="eagle3", acceptance="0.7"),
        policies=("none", "3"), requests=30, seeds=1,
    )  # fmt: skip
    answer = run_load(test, [1.0], search=False)
    assert answer.context is not None
    requests, found = answer.context
    assert requests >= 1
    assert found.direction == "loses from"
    assert [stretch.verdict for stretch in found.known] == ["pays", "uncertain", "loses"]
    told = context_values(answer)
    assert told["requests"] == requests
    assert told["at"] == found.at
    said = f"speculation {break_even_text(found, 'context')}"
    assert f"{found.at - 1:,}" in said
    many = "1 request" if requests == 1 else f"{requests} requests"
    assert context_text(answer) == [f"with {many} in a step {said}"]
    plain = run_load(load_test(test.scenario, policies=("none",), requests=30, seeds=1), [1.0], search=False)
    assert plain.context is None
    assert context_text(plain) == []


def test_drafting_is_switched_off_only_where_so_many_requests_fit():
    """Beyond what the KV cache holds there is no batch to switch it off at."""
    scenario = Scenario(gpu="l4", model="llama-3.1-8b", drafter="eagle3", acceptance=0.3, max_drafts=3)
    test = load_test(scenario, policies=("none", "3"), requests=60, seeds=1, prompt_tokens=1500)
    server = test.servers[1]
    most = requests_held(test, server)
    assert most * server.limits.blocks_of(round(test.mean_length)) <= server.limits.kv_blocks
    assert most < server.limits.max_requests
    for each in (1, most, server.limits.max_requests):
        off = off_from(server.table, server.policy(), test.mean_length, each)
        assert off is None or off <= each


def carrying(policy: str, rate: float, **more) -> CarriedRates:
    return CarriedRates(policy=policy, saturated_per_s=36.0, saturated_tokens_per_s=1.0, largest_per_s=rate,
                   off_from=None, **more)  # fmt: skip


@pytest.mark.parametrize(
    ("drafting", "told"), [(35.8, "no more requests/s"), (30.0, "fewer requests/s"), (40.0, "sustains 40.0")]
)
def test_a_rate_that_is_no_larger_is_not_shown_as_a_gain(drafting, told):
    scenario = Scenario(gpu="h100-sxm", model="llama-3.1-8b", drafter="eagle3")
    test = load_test(scenario, policies=("none", "3"), requests=60, seeds=2, tpot_ms=50.0)
    answer = run_load(test, (5.0,), search=False)
    found = answer_text(replace(answer, carried=(carrying("none", 35.9), carrying("K=3", drafting))))
    assert told in found
    assert ("pays up to saturation" in found) == (drafting > 36.0)


def drifting(growth: float, rate: float) -> LoadPoint:
    mean = {"queue_growth_per_s": growth, "requests": 900.0, "goodput_share_first": 0.99,
            "goodput_share_last": 1.0, "preemptions": 0.0}  # fmt: skip
    return LoadPoint(
        policy="K=3", rate_per_s=rate, offered_per_s=rate, values=(mean, mean), first_result=None
    )


@given(growth=st.floats(-3.0, 3.0), rate=st.floats(0.5, 4.0))
def test_a_run_is_called_growing_by_a_number_that_grows(growth, rate):
    """A falling queue is not told as a rising one, a share that rises not as one that falls."""
    point = drifting(growth, rate)
    told = _unsteady(point, 1.91, has_slos=True)
    assert ("more requests are in the server every second" in told) == (not point.is_steady)
    if not point.is_steady:
        assert point.mean["queue_growth_per_s"] > 0.0
    assert "first third" not in told
    assert "it saturates at 1.91 requests/s, and up to 0.9 of that, 1.72" in told


def test_a_request_is_as_long_as_its_prompt_and_half_of_its_output_weighed_by_its_steps(monkeypatch):
    """100 + 10 tokens over 20 steps and 400 + 40 over 80."""
    test = load_test(SCENARIO)
    made = SimpleNamespace(prompt_tokens=np.array([100, 400]), output_tokens=np.array([20, 80]))
    monkeypatch.setattr(type(test), "requests", lambda *_: (made, None))
    assert test.mean_length == pytest.approx((110 * 20 + 440 * 80) / 100)
