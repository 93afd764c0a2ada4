"""What policies carry: searches end where they should, and say what is best where nothing does."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from load_tables import limits
from one_line import one_line

from medusa_sim.errors import MedusaSimError, UsageError
from medusa_sim.load.answer import LoadAnswer, run_load
from medusa_sim.load.carried import (
    SEARCH_REQUESTS,
    Carried,
    find_carried,
    off_from,
    rates_to_try,
    requests_held,
    saturation,
    search_requests,
)
from medusa_sim.load.load_test import load_test
from medusa_sim.load.point import LoadPoint
from medusa_sim.load.policies import Adaptive, BySize, State
from medusa_sim.load.policy_names import policy_of
from medusa_sim.report.load.screen import context_text, runs_text
from medusa_sim.report.load.sentences import answer_text
from medusa_sim.report.load.tables import carried_table, load_table
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
            assert (point.mean["goodput_share"] >= test.goals.share) is keeps
    assert drafting.gpus_for(50.0, 1) == int(np.ceil(50.0 / drafting.largest_per_s))
    each = replace(drafting, largest_per_s=0.7)
    assert 2.1 / 0.7 > 3.0  # as floats
    assert [each.gpus_for(rate, 2) for rate in (0.7, 2.1, 2.11)] == [2, 6, 8]


def test_policies_are_compared_on_the_same_requests(answer):
    for rate in (4.0, 12.0):
        plain, drafting = (point for point in answer.points if point.rate_per_s == rate)
        np.testing.assert_array_equal(
            plain.first_record.requests.prompt_tokens, drafting.first_record.requests.prompt_tokens
        )
        np.testing.assert_array_equal(plain.first_record.arrival_s, drafting.first_record.arrival_s)
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


def test_limits_that_nothing_meets_and_rates_above_saturation_are_told_with_what_is_possible():
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
    per_s, tokens_per_s = saturation(test, test.servers[0])
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
        own_s = 1.02 * table.own_linear_s
        slow = replace(table, step_s=1.02 * table.step_s, own_linear_s=own_s, prompts=slower_prompts)
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


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"policies": ("fast",)}, "policy 'fast': give one of none, K"),
        ({"policies": ("9",)}, "drafts 9 tokens and the acceptance describes 3"),
        ({"policies": ("schedule=8:3",)}, "entries rise from 1"),
        ({"policies": ("schedule=1-3",)}, "entries are REQUESTS:DRAFTS"),
        ({"policies": ()}, "policies are empty"),
        ({"policies": (3,)}, "policy 3: a name is needed"),
        ({"policies": (Adaptive,)}, "derived from medusa_sim.load.policies.Policy"),
        ({"policies": ("priority",)}, "not simulated"),
        ({"policies": ("enable_adaptive_verification",)}, "logits, which are not drawn"),
        ({"prefix": "mine"}, "prefix 'mine'"),
        ({"policies": ("adaptive=2",)}, "policy 'adaptive=2': give one of"),
        ({"policies": ("none", "schedule=1:9")}, "drafts 9 tokens and the acceptance describes 3"),
        ({"seeds": 0}, "seeds 0"),
        ({"requests": 0}, "requests 0"),
        ({"burstiness": 0.0}, "burstiness 0"),
        ({"tpot_ms": -1.0}, "tpot ms -1"),
        ({"share": 1.5}, "share 1.5"),
        ({"prompt_tokens": 0.0}, "prompt tokens 0"),
        ({"prompt_tokens": 200_000.0}, "on average do not fit"),
        ({"length_cv": 99.0}, "length cv 99"),
        ({"users": 0}, "users 0"),
        ({"max_num_seqs": 512, "max_num_batched_tokens": 100}, "below max-num-seqs"),
        ({"trace": "none.csv"}, "no such file"),
        ({"trace": "none.csv", "users": 3}, "give one of them"),
    ],
)
def test_bad_questions_are_one_line(arguments, told):
    with one_line(MedusaSimError, match=told):
        run_load(load_test(SCENARIO, **arguments), [1.0] if "users" not in arguments else None, search=False)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf"), 5e-324, 1e7])
def test_a_rate_that_is_none_is_one_line(rate):
    test = load_test(SCENARIO, policies=("none",), **SMALL)
    with pytest.raises(UsageError, match="from 1e-06 to 1e\\+06 requests a second"):
        run_load(test, [rate], search=False)
    with pytest.raises(UsageError, match="target rate"):
        run_load(test, [1.0], target_rate=rate)


def test_requests_that_come_at_once_have_no_rate(tmp_path):
    trace = tmp_path / "burst.csv"
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n" + "7,100,20\n" * 40, encoding="utf-8")
    test = load_test(SCENARIO, policies=("none", "3"), trace=trace, max_num_seqs=16, tpot_ms=12.0)
    found = run_load(test)
    assert [each.searched for each in found.carried] == [False, False]
    assert np.isnan(found.points[0].arrivals_per_s)
    assert found.points[0].mean["requests"] == 40
    assert "saturates at" in answer_text(found)
    with pytest.raises(UsageError, match="all 40 come at once"):
        run_load(test, [2.0], search=False)


def test_blanks_around_a_policys_name_count_for_nothing_and_k_takes_a_number():
    test = load_test(SCENARIO, policies=(" schedule", "speculative-adaptive ", " 3"), **SMALL)
    assert test.policies == ("schedule", "adaptive", "K=3")
    with pytest.raises(UsageError, match="policy 'K=none': give one of"):
        policy_of("K=none", test.table, 100.0)


def test_every_name_of_a_policy_runs():
    test = load_test(SCENARIO, policies=("none", "K=2", "schedule", "schedule-context", "adaptive", "budget",
                                         "schedule=1:3,4:1"), **SMALL)  # fmt: skip
    for server in test.servers:
        state = State(now_s=0.0, requests=3, waiting=0, mean_length=400.0, kv_share=0.1, drafts=0,
                      accepted=None, steps=0)  # fmt: skip
        assert 0 <= server.policy().drafts(state) <= 3
    assert policy_of("schedule=1:3,4:1", test.table, 100.0).drafts(state) == 3


def test_a_search_shares_its_requests_among_the_seeds_and_says_so():
    test = load_test(SCENARIO, policies=("none",), requests=1000, seeds=3)
    assert search_requests(test) == SEARCH_REQUESTS // 3
    assert f"first {SEARCH_REQUESTS // 3} of each" in runs_text(test)
    assert search_requests(load_test(SCENARIO, policies=("none",), requests=1000, seeds=50)) == 500
    assert "search" not in runs_text(load_test(SCENARIO, policies=("none",), requests=300))


def test_progress_ends_at_its_total_and_never_before():
    told: list[tuple[int, int]] = []
    test = load_test(SCENARIO, policies=("none", "3"), tpot_ms=12.0, **SMALL)
    run_load(test, advance=lambda done, total: told.append((done, total)))
    assert told[-1][0] == told[-1][1]
    assert all(done < total for done, total in told if done < told[-1][0])


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
    assert f"with a predicted gain to context {found.at - 1} " in said
    many = "1 request" if requests == 1 else f"{requests} requests"
    assert context_text(answer) == [f"with {many} in a step {said}"]
    plain = run_load(load_test(test.scenario, policies=("none",), requests=30, seeds=1), [1.0], search=False)
    assert plain.context is None
    assert context_text(plain) == []


def test_the_profile_says_how_far_requests_differ(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text(
        'kind = "position"\nschema = 1\ntitle = "t"\nsource = "s"\nagreement = "target"\n'
        'rates = "conditional"\nrequest_spread = 0.7\n[[positions]]\nrate = 0.8\n[[positions]]\nrate = 0.7\n',
        encoding="utf-8",
    )
    scenario = Scenario(gpu="h100-sxm", model="llama-3.1-8b", drafter="eagle3", acceptance=str(path))
    assert load_test(scenario).spread == 0.7
    assert load_test(SCENARIO).spread == 0.0


def test_a_policy_runs_once_whatever_it_was_called():
    asked = ("3", "none", "K=3", "k=3", "none", " 3 ", "speculative-adaptive", "adaptive")
    test = load_test(SCENARIO, policies=asked)
    assert [server.name for server in test.servers] == ["K=3", "none", "adaptive"]
    for own in (BySize(((1, 2),), name="none"), Adaptive(name="K=3")):
        with pytest.raises(UsageError, match=own.name):
            load_test(SCENARIO, policies=("none", "3", own))


def test_requests_that_were_cut_to_what_fits_are_told():
    scenario = Scenario(model="vicuna-7b", gpu="h100-sxm")
    for prompt, output in ((1700, 300), (400, 100)):
        test = load_test(
            scenario, policies=("none",), requests=40, seeds=1, prompt_tokens=prompt, output_tokens=output
        )
        told = [line for line in warnings(run_load(test, (1.0,), search=False)) if " cut to " in line]
        most = scenario.model.max_seq_len
        long = int((test.sample.prompt_tokens + test.sample.output_tokens == most).sum())
        mean = [f"{each.mean():,.0f}" for each in (test.sample.prompt_tokens, test.sample.output_tokens)]
        expected = [f"{long} of 40 requests", f"the {most} tokens", f"{mean[0]} in, {mean[1]} out"]
        assert len(told) == (long > 0) == (prompt > 400)
        assert all(part in line for line in told for part in expected)


def test_cancelled_requests_end_before_their_outputs_do():
    some, every = (load_test(SCENARIO, requests=2000, cancelled=share) for share in (0.25, 1.0))
    whole = load_test(SCENARIO, requests=2000).requests(5.0, 0)[0]
    left, _ = some.requests(5.0, 0)
    np.testing.assert_array_equal(left.arrival_s, whole.arrival_s)
    shorter = left.output_tokens < whole.output_tokens
    assert shorter.mean() == pytest.approx(0.25, abs=0.03)
    ended = every.requests(5.0, 0)[0].output_tokens / whole.output_tokens
    assert ended.mean() == pytest.approx(0.5, abs=0.03)
    assert (
        saturation(some, some.servers[0]).requests_per_s
        > saturation(load_test(SCENARIO, requests=2000), some.servers[0]).requests_per_s
    )
    with pytest.raises(UsageError, match="cancelled"):
        load_test(SCENARIO, cancelled=1.5)


def test_a_trace_with_sessions_saturates_where_more_requests_a_second_are_not_served_faster(tmp_path):
    """The first of each session finds nothing in the cache, also where the server is always full."""
    rows = [f"{i},3000,60,{i % 40}" for i in range(80)]
    path = tmp_path / "trace.csv"
    path.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens,session", *rows]), encoding="utf-8")
    test = load_test(
        SCENARIO, policies=("none",), trace=path, prefix="session", prefix_hit_rate=0.9, max_num_seqs=8
    )
    (server,) = test.servers
    served = test.point(server, 1000.0).mean["requests_per_s"]
    # filling and emptying 8 places takes some of a run of 80 requests
    assert saturation(test, server).requests_per_s == pytest.approx(served, rel=0.1)


def test_what_requests_share_is_held_once():
    """Half of 8 blocks of prompt in 10 of a request: 97 of 101 blocks hold 97 // 6 of them."""
    most = limits(kv_blocks=101, prefix_hit_rate=0.5, shares_prefix=True)
    sample = SimpleNamespace(prompt_tokens=np.array([100, 156]))
    test = SimpleNamespace(mean_length=158.8, sample=sample)
    assert requests_held(test, SimpleNamespace(limits=most)) == 16  # type: ignore[arg-type]


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


def carrying(policy: str, rate: float, **more) -> Carried:
    return Carried(policy=policy, saturated_per_s=36.0, saturated_tokens_per_s=1.0, largest_per_s=rate,
                   off_from=None, **more)  # fmt: skip


@pytest.mark.parametrize(
    ("drafting", "told"), [(35.8, "no more requests/s"), (30.0, "fewer requests/s"), (40.0, "sustains 40.0")]
)
def test_a_rate_that_is_no_larger_is_not_told_as_a_gain(drafting, told):
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
        policy="K=3", rate_per_s=rate, offered_per_s=rate, values=(mean, mean), first_record=None
    )


@given(growth=st.floats(-3.0, 3.0), rate=st.floats(0.5, 4.0))
def test_a_run_is_called_growing_by_a_number_that_grows(growth, rate):
    """A falling queue is not told as a rising one, a share that rises not as one that falls."""
    point = drifting(growth, rate)
    told = _unsteady(point, 1.91, has_goals=True)
    assert ("more requests wait every second" in told) == (not point.is_steady)
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
