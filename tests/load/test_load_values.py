"""Runs whose every time is known by hand: what a wrong constant of the loop would change."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from left_out import numbers_left_out
from load_tables import MOST_TOKENS, constant_table, limits, prompt_times, requests

from medusa_sim.arrays import Halves
from medusa_sim.errors import UsageError
from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.grid.cells import price
from medusa_sim.load import step_table
from medusa_sim.load.energy import Energy, energy_of
from medusa_sim.load.lengths import Lengths
from medusa_sim.load.load_test import load_test
from medusa_sim.load.metrics import _growth, _sensitivity, _shares, metrics_of
from medusa_sim.load.point import LoadPoint, half_width
from medusa_sim.load.policies import Fixed
from medusa_sim.load.prompt_table import PromptTable
from medusa_sim.load.requests import LEAST_RATE, Requests, checked_requests
from medusa_sim.load.run_result import RunResult
from medusa_sim.load.serving_loop import run
from medusa_sim.load.slos import Slos
from medusa_sim.load.sources import closed_loop, open_loop
from medusa_sim.load.step_table import StepTable, acceptance_rates, chains
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.serving.watts import prompt_joules, watts
from medusa_sim.step.sampling import filter_us

SERVER_S, SENDING_S, BY_REQUEST_S, BY_TOKEN_S, PROMPT_TOKEN_S = 0.002, 0.003, 1e-3, 1e-6, 1e-5


def prompts_of(**other: object) -> PromptTable:
    """10 us a token."""
    return prompt_times(linear_s=PROMPT_TOKEN_S * np.arange(MOST_TOKENS), **other)


def growing_table(rates: tuple[float, ...] = (), **other: object) -> StepTable:
    """10 ms, 1 ms a request and 1 us a token of it; 10 us a token of prompts."""
    lengths = np.array([1.0, 1e6])
    b = np.arange(257)[None, :, None]
    step_s = 0.010 + b * (BY_REQUEST_S + BY_TOKEN_S * lengths) * np.ones((len(rates) + 1, 1, 1))
    given = {"step_s": step_s, "prompts": prompts_of(), "lengths": lengths,
             "client_s": SERVER_S, "sending_s": SENDING_S}  # fmt: skip
    return constant_table(0.010, rates, **{**given, **other})


def own_s(requests: int, *lengths: int) -> float:
    """Seconds of steps of so many requests, one for each mean length."""
    return sum(0.010 + requests * (BY_REQUEST_S + BY_TOKEN_S * length) for length in lengths)


@pytest.mark.parametrize(("drafts", "lengths"), [(0, range(100, 110)), (2, range(100, 110, 3))])
def test_a_request_alone(drafts, lengths):
    """All drafts are accepted: each step emits one token and the drafts."""
    table = growing_table(
        (1.0,) * drafts, prompts=prompts_of(drafter_s=np.full(MOST_TOKENS, 0.0005 * (drafts > 0)))
    )
    found = run(requests([0.0], prompt=[100], output=[11]), table, limits(), Fixed(drafts))
    first_s = SERVER_S + 0.010 + 100 * PROMPT_TOKEN_S + 0.0005 * (drafts > 0)
    assert found.first_token_s.tolist() == pytest.approx([first_s])
    assert found.finish_s.tolist() == pytest.approx([first_s + own_s(1, *lengths)])
    assert found.whole.steps == 1 + len(lengths)
    assert (found.whole.emitted, found.whole.prompt_tokens) == (11, 100)
    assert found.whole.speculated == (len(lengths) if drafts else 0)
    assert found.whole.accepted == drafts * found.whole.speculated
    assert found.in_system_s == pytest.approx(found.finish_s[0])


def test_a_prompt_rides_on_a_step_and_sends_its_first_token_after_those_of_the_batch():
    # the second request is there when the first one's prompt has been read
    found = run(requests([0.0, 0.001], prompt=[100, 50], output=[4, 2]), growing_table(), limits(), Fixed(0))
    first_s = SERVER_S + 0.011
    second_s = first_s + own_s(1, 100) + 50 * PROMPT_TOKEN_S
    assert found.first_token_s.tolist() == pytest.approx([first_s, second_s + SENDING_S])
    both_s = second_s + own_s(2, (101 + 50) / 2)
    assert found.finish_s.tolist() == pytest.approx([both_s + own_s(1, 102), both_s + SENDING_S])


def test_drafts_and_a_token_of_each_request_take_from_what_prompts_may_have():
    """Of 32 tokens a step a request with two drafts takes 3: 58 tokens of a prompt are two chunks of 29."""
    table = constant_table(0.01, (0.0, 0.0))
    asked = requests([0.0, 0.0001], prompt=[8, 58], output=[50, 1])
    found = run(asked, table, limits(token_budget=32, max_requests=8), Fixed(2))
    assert found.first_token_s.tolist() == pytest.approx([0.01, 0.03])
    longer = requests([0.0, 0.0001], prompt=[8, 59], output=[50, 1])
    found = run(longer, table, limits(token_budget=32, max_requests=8), Fixed(2))
    assert found.first_token_s.tolist() == pytest.approx([0.01, 0.04])


def test_where_the_budget_is_short_all_draft_less():
    table = constant_table(0.01, (1.0, 1.0, 1.0))
    asked = closed_loop(8, Lengths(prompt_tokens=1, output_tokens=21, prompt_cv=0, output_cv=0), count=8)
    found = run(asked, table, limits(token_budget=16, max_requests=8), Fixed(3))
    assert found.whole.steps_s[:, 8].tolist() == pytest.approx([0.0, 0.10, 0.0, 0.0])  # 20 tokens, two a step


def test_a_full_cache_preempts_at_its_last_block():
    """Two requests of 15 tokens and 20 outputs: five blocks hold them to the end, four do not."""
    asked = requests([0.0, 0.0], prompt=[15, 15], output=[20, 20])
    for blocks, lost in ((6, 0), (5, 1)):
        found = run(asked, constant_table(0.01), limits(kv_blocks=blocks), Fixed(0))
        assert (blocks, found.preemptions) == (blocks, lost)
    assert found.whole.prompt_tokens > 30  # what was lost is computed again
    assert found.kv_blocks_most == 5


def test_users_think_before_they_ask_again():
    asked = closed_loop(
        1, Lengths(prompt_tokens=4, output_tokens=3, prompt_cv=0, output_cv=0), count=4, think_s=0.5
    )
    found = run(asked, constant_table(0.01, client_s=SERVER_S), limits(), Fixed(0))
    assert np.diff(found.arrival_s).tolist() == pytest.approx([SERVER_S + 0.03 + 0.5] * 3)
    assert found.window_s == pytest.approx((SERVER_S + 0.03, found.arrival_s[-1] - 0.5))


def test_a_tenth_of_many_drawn_requests_warms_up():
    drawn = [open_loop(5.0, Lengths(), count=count).warm for count in (199, 200, 1000)]
    assert drawn == [0, 20, 100]
    assert open_loop((2.0, 5.0), Lengths(), count=1000).warm == 0


def measured_once(asked: Requests, table: StepTable, drafts: int = 0, **slos: float) -> dict[str, float]:
    within = limits(kv_blocks=1000)
    return metrics_of(run(asked, table, within, Fixed(drafts)), table, within, Slos(**slos))


def test_metrics_of_three_requests_by_hand():
    """Arrivals at 0, 1 and 2 s, alone in the server: steps of 10 ms, prompts of one step."""
    asked = requests([0.0, 1.0, 2.0], prompt=[4, 4, 4], output=[1, 3, 11])
    found = measured_once(asked, constant_table(0.01), tpot_s=0.02, e2e_s=0.05)
    assert found["requests"] == 3
    assert found["requests_per_s"] == pytest.approx(3 / 2.11)
    assert found["goodput_share"] == pytest.approx(2 / 3)  # one takes 110 ms
    assert found["goodput_per_s"] == pytest.approx(2 / 2.11)
    for name, values in (("ttft", [0.01] * 3), ("tpot", [0.01] * 2), ("e2e", [0.01, 0.03, 0.11])):
        assert found[f"{name}_mean_s"] == pytest.approx(np.mean(values))
        assert found[f"{name}_p90_s"] == pytest.approx(np.quantile(values, 0.9))
    assert found["itl_mean_s"] == pytest.approx(0.01)
    assert found["itl_p50_s"] == pytest.approx(0.01, rel=8e-4)  # a class is 0.14 % wide
    assert found["tokens_per_s"] == pytest.approx(15 / 2.11)
    assert found["prompt_tokens_per_s"] == pytest.approx(12 / 2.11)
    assert found["share_idle"] == pytest.approx(1 - 0.15 / 2.11)
    assert found["share_prompts"] == pytest.approx(0.03 / 2.11)
    assert found["requests_in_system"] == pytest.approx(0.15 / 2.11, rel=0.1)  # bins of 20 ms


@pytest.mark.parametrize("cv", [0.0, 0.4])
@pytest.mark.parametrize("blocks", [1 << 20, 160])
@pytest.mark.parametrize("arrivals", ["closed", "open"])
def test_requests_a_second_emit_their_tokens(arrivals, blocks, cv):
    """Of one window: equal ones finish in waves, which its ends cut, and preempted ones in parts."""
    lengths = Lengths(prompt_tokens=120, output_tokens=40, prompt_cv=cv, output_cv=cv)
    closed, drawn = closed_loop(24, lengths, count=1500), open_loop(9.0, lengths, count=1500)
    asked = closed if arrivals == "closed" else drawn
    within = limits(kv_blocks=blocks)
    result = run(asked, constant_table(0.1, (0.8,)), within, Fixed(1))
    found = metrics_of(result, constant_table(0.1, (0.8,)), within, Slos())
    start, end = result.window_s
    tokens = asked.output_tokens[(result.finish_s > start) & (result.finish_s <= end)].mean()
    # the mean leaves out the parts at both ends: cv sqrt(2 requests in flight) / requests
    assert found["requests_per_s"] * tokens == pytest.approx(found["tokens_per_s"], rel=1e-9 + 0.01 * cv)


def test_cancelled_requests_take_time_and_are_no_goodput():
    """The third goes away with 2 of 11 tokens: within the limit till then, as it would not be to its end."""
    asked = requests([0.0, 1.0, 2.0], prompt=[4, 4, 4], output=[1, 3, 2])
    kept = measured_once(asked, constant_table(0.01), e2e_s=0.025)
    gone = replace(asked, cancelled=np.array([False, False, True]))
    found = measured_once(gone, constant_table(0.01), e2e_s=0.025)
    assert (kept["goodput_share"], found["goodput_share"]) == pytest.approx((2 / 3, 1 / 2))
    assert (kept["goodput_per_s"], found["goodput_per_s"]) == pytest.approx((2 / 2.02, 1 / 2.02))
    assert found["e2e_mean_s"] == pytest.approx((0.01 + 0.03) / 2)
    for name in ("requests", "requests_per_s", "tokens_per_s", "share_idle"):
        assert found[name] == kept[name]
    nobody = measured_once(replace(asked, cancelled=np.ones(3, dtype=np.bool_)), constant_table(0.01))
    assert nobody["goodput_per_s"] == 0.0
    assert np.isnan(nobody["goodput_share"])


@pytest.mark.parametrize("share", [0.0, 0.3, 0.8])
def test_goodput_is_the_share_that_completes_of_all_within_limits_that_everybody_keeps(share):
    """Marks follow requests to other rates, choices and repetitions; who completes has the whole output."""
    whole = open_loop(6.0, Lengths(prompt_tokens=50, output_tokens=20), count=400, seed=1)
    asked = whole.with_cancelled(share, seed=2)
    completes = asked.completes
    assert 1.0 - completes.mean() == pytest.approx(share, abs=0.06)
    np.testing.assert_array_equal(completes, asked.output_tokens == whole.output_tokens)
    found = measured_once(asked, constant_table(0.01), e2e_s=1e6)
    complete_per_s = found["requests_per_s"] * completes[whole.warm :].mean()
    assert found["goodput_share"] == 1.0
    assert found["goodput_per_s"] == pytest.approx(complete_per_s)
    again = asked.at_rate(3.0).first(30).repeated(60, users=4)
    np.testing.assert_array_equal(again.completes, np.tile(completes[:30], 2))


def test_sessions_of_a_trace_that_is_repeated_are_others_in_each_turn():
    asked = replace(requests([0.0] * 4, [9] * 4, [3] * 4), session=np.array([0, 2, -1, 0]))
    assert asked.repeated(10, users=2).session.tolist() == [0, 2, -1, 0, 3, 5, -1, 3, 6, 8]


def test_a_load_without_drafts_needs_none_priced():
    scenario = Scenario(model="llama-3.1-8b", acceptance="0.8,0.6", drafter="eagle3")
    longest = [
        load_test(scenario, policies=given).drafts_max for given in (("none",), ("none", "1"), (Fixed(0),))
    ]
    assert longest == [0, 1, len(chains(scenario))]


def test_what_the_time_went_to_and_how_full_the_cache_is():
    """A request of 1,000 and 1,001 tokens in steps that draft for a quarter of their time."""
    share = np.full((2, 257), 0.25)
    share[:, 0] = 0.0  # a step of prompts alone drafts nothing
    table = constant_table(0.01, (0.0,), drafting_share=share)
    found = measured_once(requests([0.0], prompt=[1000], output=[1001]), table, drafts=1)
    assert found["share_drafting"] == pytest.approx(0.25 * 1000 / 1001, rel=1e-6)
    assert found["share_decoding"] == pytest.approx(0.75 * 1000 / 1001, rel=1e-6)
    assert found["drafts"] == pytest.approx(1.0)
    assert found["accepted_drafts"] == 0.0
    assert found["kv_share"] == pytest.approx(1500 / 16_000, rel=0.01)
    assert 0.126 <= found["kv_share_most"] <= 0.126 + 128 / 16_000  # as if drafts were accepted
    assert found["requests_decoding"] == pytest.approx(1000 / 1001, rel=0.01)


def point(runs: int = 2, **metrics: float) -> LoadPoint:
    return LoadPoint(
        policy="none", rate_per_s=4.0, offered_per_s=4.0, values=(metrics,) * runs, first_result=None
    )


def test_intervals_by_hand():
    assert half_width(np.array([1.0, 2.0, 3.0])) == pytest.approx(4.302653 / np.sqrt(3))
    assert half_width(np.array([1.0, 2.0, 3.0]), 0.9) == pytest.approx(1.885618 / np.sqrt(3))
    given = {"tpot_mean_s": 0.02, "ttft_mean_s": 0.1, "queue_share": 0.5, "step_faster": 0.05,
             "step_slower": 0.1, "server_share": 0.25, "server_band": 0.4, "requests": 900.0}  # fmt: skip
    found = point(**given, queue_growth_per_s=0.0)
    assert found.band("tpot_mean_s") == pytest.approx((0.02 * np.exp(-0.1), 0.02 * np.exp(0.2)))
    # of the first token: three quarters follow the steps, a quarter the server
    low, high = (np.hypot(0.75 * half / 0.5, 0.4 * 0.25) for half in (0.05, 0.1))
    assert found.band("ttft_mean_s") == pytest.approx((0.1 * np.exp(-low), 0.1 * np.exp(high)))
    # two seeds apart: by Student's quantile 3.078 of their mean's error, 5 % of it
    apart = replace(
        found, values=tuple({**found.values[0], "tpot_mean_s": 0.02 * each} for each in (0.95, 1.05))
    )
    chance = 3.0776835 * 0.05
    assert apart.band("tpot_mean_s") == pytest.approx(
        (0.02 * np.exp(-np.hypot(0.1, chance)), 0.02 * np.exp(np.hypot(0.2, chance)))
    )
    # 900 requests of two seeds: a rise of more than 2 sqrt(900) = 60 in 225 s is no chance
    steady = [point(**given, queue_growth_per_s=growth).is_steady for growth in (0.26, 0.27)]
    assert steady == [True, False]


def test_joules_are_those_of_steps_prompts_and_idle_time():
    power = load_gpu("h100-sxm").power
    assert power is not None
    asked = requests([0.0, 1.0], prompt=[100, 100], output=[11, 11])
    result = run(asked, constant_table(0.01), limits(), Fixed(0))
    above_w = np.zeros((1, 257))
    above_w[0, 1] = 200.0
    energy = Energy(power=power, gpus=2, above_w=above_w, prompt_token_joule=0.01)
    idle, busy_s, end_s = power.fit.idle_watts, 0.22, 1.11
    asked_w = idle + (200.0 * 0.2 + 0.01 * 200) / busy_s
    working = asked_w * (1.0 + (asked_w / power.limit_watts) ** 4) ** -0.25
    expected = 2 * (working * busy_s + idle * (end_s - busy_s)) / end_s
    assert energy.watts(result.whole) == pytest.approx(expected)
    assert energy.joule_per_token(result.whole) == pytest.approx(expected * end_s / 22)


def test_all_metrics_are_of_the_window_from_the_first_request_behind_the_warm_up_to_the_last():
    """25 of 250 warm up. Shares of time are whole, and joules a token those watts over tokens a second."""
    lengths = Lengths(prompt_tokens=50, output_tokens=20, prompt_cv=0, output_cv=0)
    asked, table = open_loop(6.0, lengths, count=250, seed=1), constant_table(0.01)
    found = run(asked, table, limits(), Fixed(0))
    metrics = metrics_of(found, table, limits(), Slos())
    assert found.window_s == (found.arrival_s[25], found.arrival_s[-1])
    assert metrics["requests"] == 225
    came_per_s = 224 / (found.window_s[1] - found.window_s[0])
    assert metrics["tokens_per_s"] == pytest.approx(20 * came_per_s, rel=0.02)
    shares = sum(metrics[f"share_{of}"] for of in ("decoding", "drafting", "prompts", "idle"))
    assert shares == pytest.approx(1.0)
    power = load_gpu("h100-sxm").power
    energy = Energy(power=power, gpus=1, above_w=np.full((1, 257), 200.0), prompt_token_joule=0.01)
    joules_per_s = energy.joule_per_token(found.inside) * metrics["tokens_per_s"]
    assert joules_per_s == pytest.approx(energy.watts(found.inside))


def test_first_tokens_that_come_after_a_preemption_keep_their_first_time():
    found: RunResult = run(
        requests([0.0, 0.0], prompt=[15, 15], output=[20, 20]), constant_table(0.01), limits(kv_blocks=5),
        Fixed(0),
    )  # fmt: skip
    assert found.first_token_s.tolist() == pytest.approx([0.01, 0.01])
    assert found.whole.gaps.sum() == 38  # each token after the first ends a gap, that of the lost one too


def test_arrivals_begin_at_zero():
    whole = np.array([1, 2])
    asked = checked_requests(np.array([5.0, 7.0]), whole, whole)
    assert asked.arrival_s.tolist() == [0.0, 2.0]
    assert asked.rate_per_s == pytest.approx(0.5)


def test_a_step_grows_with_its_requests_as_a_line_through_a_fifth_around_them():
    """Steps grow from 20 requests on: the line from 16 to 24 has half that slope."""
    b = np.arange(257)
    step_s = (0.01 + 1e-4 * np.maximum(b - 20, 0))[None, :, None] * np.ones((1, 1, 2))
    asked = requests([0.0] * 20, prompt=[1] * 20, output=[501] * 20)
    found = measured_once(asked, constant_table(0.01, step_s=step_s))
    prompts = found["share_prompts"]
    assert found["queue_share"] == pytest.approx((1.0 - prompts) * 5e-5 * 20 / 0.01 + prompts, rel=0.01)


SCENARIO = Scenario(
    gpu="h100-sxm", model="llama-3.1-8b", runtime="vllm-0.11", drafter="eagle3", acceptance="0.8,0.6,0.4"
)


def test_watts_of_steps_are_joules_of_their_kernels_and_of_the_filter():
    length, batch = 700, 8
    test = load_test(SCENARIO, policies=("none", "2"), requests=30, seeds=1)
    energy = energy_of(SCENARIO, chains(SCENARIO, 2), batch, length, np.array([100]))
    assert energy is not None
    joules = price(SCENARIO, [batch], [length], chains(SCENARIO, 2)).by_count.server_steps.steps.joules
    engine, model = SCENARIO.runtime.engine, SCENARIO.model
    assert engine is not None
    for drafts in (0, 2):
        rows = np.array(batch * (1 + drafts))
        filter_s = 1e-6 * float(
            filter_us(engine, SCENARIO.gpu, rows, model.filtered_vocab, top_k=model.samples_top_k)
        )
        filtered, kernels = energy.power.fit.sampling_watts * filter_s, float(joules[0, 0, drafts])
        step_s = test.table.decoding_s(drafts, batch, length)
        assert energy.above_w[drafts, batch] == pytest.approx((kernels + filtered) / step_s, rel=0.01)
        assert filtered > 0.03 * kernels


def test_prompts_draw_by_their_lengths_and_what_a_loaded_drafter_reads_of_them():
    """Two of 1,000 and 8,000 tokens take more than two of the mean, since attention grows with the square."""
    options, prompts = chains(SCENARIO, 2), np.array([1000, 8000])
    energy, at_mean = (energy_of(SCENARIO, options, 8, 700, read) for read in (prompts, np.array([4500])))
    assert energy is not None
    assert at_mean is not None
    each = prompt_joules(energy.power, SCENARIO.setting, prompts)
    assert energy.prompt_token_joule == pytest.approx(each.sum() / 9000)
    assert energy.prompt_token_joule > 1.02 * at_mean.prompt_token_joule
    # one layer beside 32, and 3 x 4,096 features of a token fused to 4,096
    assert 0.025 < energy.drafter_token_joule / energy.prompt_token_joule < 0.06
    read = {"span_s": 1.0, "busy_s": 1.0, "prompt_tokens": 9000}
    drawn = [energy.watts(SimpleNamespace(steps_s=np.zeros((1 + drafts, 9)), **read)) for drafts in (0, 2)]
    plain, added = 9000 * energy.prompt_token_joule, 9000 * energy.drafter_token_joule
    for found, joules in zip(drawn, (plain, plain + added), strict=True):
        assert found == pytest.approx(float(watts(energy.power, np.asarray(joules), np.asarray(1e6))))


def test_prompts_draw_for_what_they_read_behind_what_the_cache_holds():
    """The last 1,000 of 8,000 tokens are what 8,000 draw beyond the 7,000 before, all attention with them."""
    options, prompts = chains(SCENARIO, 2), np.array([8000])
    whole, rest = (energy_of(SCENARIO, options, 8, 700, prompts, found) for found in (0, np.array([7000])))
    parts = prompt_joules(whole.power, SCENARIO.setting, np.array([8000, 7000]))
    assert rest.prompt_token_joule == pytest.approx(-np.diff(parts)[0] / 1000, rel=1e-3)
    assert rest.prompt_token_joule > 1.02 * whole.prompt_token_joule
    test = load_test(SCENARIO, policies=("none",), prompt_tokens=7000, requests=20, prefix_hit_rate=0.9)
    asked = test.sample.prompt_tokens
    alone = energy_of(SCENARIO, (), 8, 700, asked, np.rint(0.9 * asked).astype(int))
    assert test.energy.prompt_token_joule == pytest.approx(alone.prompt_token_joule)


def test_watts_of_steps_are_those_at_the_length_in_flight_whatever_traffic_a_scenario_has():
    served = SCENARIO.but(prompt_tokens=200, output_tokens=4000)
    alone, with_traffic = (
        energy_of(each, chains(each, 2), 64, 2200, np.array([200])) for each in (SCENARIO, served)
    )
    np.testing.assert_allclose(with_traffic.above_w, alone.above_w, rtol=1e-6)


def test_requests_left_out_are_those_of_the_first_seed():
    test = load_test(SCENARIO, policies=("none",), requests=30, seeds=2)
    asked, _ = test.requests(1.0, 0)
    test.requests = lambda rate_per_s, seed: (asked, 5 + seed)
    assert test.point(test.servers[0], 1.0).dropped == 5


def test_a_run_without_work_draws_what_idle_gpus_do():
    power = load_gpu("h100-sxm").power
    energy = Energy(power=power, gpus=4, above_w=np.zeros((1, 9)), prompt_token_joule=0.0)
    nothing = SimpleNamespace(steps_s=np.zeros((1, 9)), prompt_tokens=0, busy_s=0.0, span_s=1.0)
    assert energy.watts(nothing) == 4 * power.fit.idle_watts


def test_what_is_no_request_is_named_by_its_place():
    with pytest.raises(UsageError, match=r"request 2 has 0 output"):
        requests([0.0, 1.0, 2.0], prompt=[4, 4, 4], output=[3, 5, 0])


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [("think_s", 0.0, 1 / LEAST_RATE), ("burstiness", 0.01, 1e4), ("prompt_tokens", 1.0, 1e8),
     ("output_tokens", 1.0, 1e8), ("requests", 1, 20_000_000), ("length_cv", 0.0, 10.0)],
)  # fmt: skip
def test_sizes_of_a_load_are_refused_beyond_what_was_declared(name, least, most):
    for inside in (least, most):
        assert getattr(load_test(SCENARIO, **{name: inside}).asked, name) == inside
    for outside in (least - 0.001 if isinstance(least, float) else least - 1, most + 1):
        with pytest.raises(UsageError, match=name.replace("_", " ")):
            load_test(SCENARIO, **{name: outside})


def test_rates_of_drafts_are_what_each_adds_never_more_than_the_one_before_or_one():
    def rates(*tokens: float) -> list[float]:
        chains = [
            SimpleNamespace(depth=k, tokens=dict(enumerate(tokens, 2)).get) for k in range(1, len(tokens) + 1)
        ]
        return acceptance_rates(chains).tolist()

    assert rates(1.5, 1.55, 1.58) == pytest.approx([0.5, 0.05, 0.03])
    assert rates(1.5, 2.1, 2.05) == pytest.approx([0.5, 0.5, 0.0])
    assert rates(2.05, 3.0) == pytest.approx([1.0, 0.95])
    assert rates() == []


@pytest.mark.parametrize("burstiness", [0.01, 1.0, 1e4])
def test_the_last_of_several_arrivals_comes_when_the_rate_says(burstiness):
    """At 4 a second the second of two after 0.25 s, the ninth of nine after 2 s, however they come."""
    lengths = Lengths(prompt_tokens=10, output_tokens=2, prompt_cv=0, output_cv=0)
    for count, last_s in ((1, 0.0), (2, 0.25), (9, 2.0)):
        came = open_loop(4.0, lengths, count=count, burstiness=burstiness, seed=3).arrival_s
        assert (came[0], came[-1]) == (0.0, pytest.approx(last_s))


def test_times_of_a_table_are_as_sure_as_at_its_middle_length():
    """Of five lengths the third; a step is half as long at least and twice as long at most there."""
    step_us, half = np.full((2, 5, 3), 100.0), np.full((2, 5, 3), 0.1)
    half[:, 2] = np.log(2.0)
    steps = SimpleNamespace(
        steps=SimpleNamespace(time_us=step_us), bands=SimpleNamespace(step=Halves(half, half)), batch=None,
        candidates=None, tokens_per_step=None, spread=np.asarray,
    )  # fmt: skip
    idle = np.arange(5.0) * np.ones((2, 1))
    surface = SimpleNamespace(setting=None, idle_share=idle)
    cells = SimpleNamespace(by_count=steps, surface=surface, shape=step_us.shape)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_table, "sampled", lambda *given: SimpleNamespace(time_us=20.0))
        patch.setattr(step_table, "_drafting_share", lambda *given: None)
        piece = step_table._piece(cells, ())
    assert piece.step_s == pytest.approx(np.full((3, 2, 5), 120e-6))
    assert piece.down == pytest.approx(np.full((3, 2), np.log(2.0)))
    assert piece.up == pytest.approx(np.full((3, 2), np.log(2.0)))
    assert piece.idle_share.tolist() == [[2.0, 2.0]]


def test_a_server_of_one_request_has_no_line_to_grow_along():
    """Its queue grows with what its prompts take alone."""
    asked = requests([0.0], prompt=[1], output=[501])
    step_s = np.full((1, 2, 2), 0.01)
    table = replace(constant_table(0.01, step_s=np.full((1, 257, 2), 0.01)), step_s=step_s)
    metrics = {"requests_decoding": 1.0, "share_idle": 0.0, "share_prompts": 0.25, "ttft_mean_s": 0.1}
    result = SimpleNamespace(inside=SimpleNamespace(steps_s=np.ones((1, 2))), requests=asked)
    assert _sensitivity(result, table, metrics)["queue_share"] == pytest.approx(0.25)


def test_a_run_is_as_sure_as_the_steps_that_most_of_its_time_went_to():
    """3 of 4 s in steps of two drafts, whose band is the widest."""
    asked = requests([0.0], prompt=[1], output=[501])
    up = np.array([[0.1], [0.2], [0.3]]) * np.ones(257)
    table = constant_table(0.01, step_s=np.full((3, 257, 2), 0.01), halves=Halves(0.5 * up, up))
    metrics = {"requests_decoding": 1.0, "share_idle": 0.0, "share_prompts": 0.25, "ttft_mean_s": 0.1}
    steps_s = np.array([[0.25, 0.25], [0.25, 0.25], [1.5, 1.5]])
    result = SimpleNamespace(inside=SimpleNamespace(steps_s=steps_s), requests=asked)
    found = _sensitivity(result, table, metrics)
    assert (found["step_faster"], found["step_slower"]) == pytest.approx((0.15, 0.3))


def drifting(count: int, *, users: int | None = None, warm: int = 1) -> Any:
    """One arrives every second; each stays as long as it took to come, so that every other one is left."""
    arrival_s = np.arange(float(count))
    return SimpleNamespace(
        requests=SimpleNamespace(users=users, warm=warm), arrival_s=arrival_s, finish_s=2.0 * arrival_s
    )


def test_a_queue_grows_by_those_who_come_and_do_not_go():
    """Every other one goes; of ten that ended, two of the first three and one of the last kept the limits."""
    result, count = drifting(200), 200
    met = np.array([True, True, False, False, False, False, False, False, True, False])
    inside = np.arange(count) >= 100
    found = _growth(result, inside, met)
    times = np.arange(100, count)
    there = [np.sum(result.arrival_s < t) - np.sum(result.finish_s <= t) for t in times]
    assert found["queue_growth_per_s"] == pytest.approx(np.polyfit(times, there, 1)[0])
    assert found["queue_growth_per_s"] == pytest.approx(0.5, abs=0.01)
    assert (found["goodput_share_first"], found["goodput_share_last"]) == pytest.approx((2 / 3, 1 / 3))
    two = _growth(result, inside, np.array([True, False]))
    assert (two["goodput_share_first"], two["goodput_share_last"]) == (1.0, 0.0)
    none = _growth(result, inside, np.array([], dtype=bool))
    assert np.isnan([none["goodput_share_first"], none["goodput_share_last"]]).all()


@pytest.mark.parametrize(
    ("known", "inside", "more"),
    [(True, 100, {}), (False, 99, {}), (False, 100, {"users": 4}), (False, 100, {"warm": 0})],
)
def test_what_has_a_course_of_its_own_or_too_few_requests_has_no_drift(known, inside, more):
    found = _growth(drifting(200, **more), np.arange(200) < inside, np.ones(9, dtype=bool))
    assert np.isfinite([*found.values()]).tolist() == [known] * 3


def test_shares_of_the_time_are_those_of_drafts_prompts_and_nothing():
    """10 s: 2 idle, 1 of prompts alone, 0.5 of prompts in steps; a quarter of 2 s of drafting steps."""
    inside = SimpleNamespace(
        span_s=10.0, busy_s=8.0, accepted=30.0, speculated=40.0,
        steps_s=np.array([[1.0, 4.5], [0.0, 2.0]]), prompts_s=np.array([0.25, 0.25]),
    )  # fmt: skip
    table = SimpleNamespace(drafting_share=np.array([[0.0, 0.0], [0.25, 0.25]]))
    found = _shares(SimpleNamespace(inside=inside), table)  # type: ignore[arg-type]
    assert found == pytest.approx({
        "drafts": 2.0 / 6.5, "accepted_drafts": 0.75, "share_drafting": 0.05, "share_prompts": 0.15,
        "share_decoding": 0.6, "share_idle": 0.2,
    })  # fmt: skip
    inside.speculated = 0
    assert _shares(SimpleNamespace(inside=inside), table)["accepted_drafts"] == 0.0  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("decoding", "share"),
    [
        (100.0, 0.1 / 0.110), (1.0, 0.001 / 0.011), (0.25, 0.001 / 0.011), (256.0, 0.256 / 0.266),
        (500.0, 0.256 / 0.266),
    ],
)  # fmt: skip
def test_a_step_of_more_requests_is_longer_by_their_share_of_it(decoding, share):
    """10 ms and 1 ms a request, of at most 256: 100 are 91 % of 110 ms; of 0.9 at most something is said."""
    step_s = (0.010 + 0.001 * np.arange(257.0))[None, :, None] * np.ones((1, 1, 2))
    table = constant_table(0.01, step_s=step_s, client_s=0.02, sending_s=0.001)
    result = SimpleNamespace(
        inside=SimpleNamespace(steps_s=np.ones((1, 2))), requests=SimpleNamespace(users=None)
    )
    metrics = {"requests_decoding": decoding, "share_idle": 0.0, "share_prompts": 0.0, "ttft_mean_s": 1.0}
    found = _sensitivity(result, table, metrics)  # type: ignore[arg-type]
    assert found["queue_share"] == pytest.approx(min(share, 0.9))
    assert found["server_share"] == pytest.approx(0.02 + 0.001 * min(max(decoding, 1.0), 256.0))
    half = {**metrics, "share_idle": 0.5, "share_prompts": 0.25}  # half of what is busy are prompts
    assert _sensitivity(result, table, half)["queue_share"] == pytest.approx(min(0.5 * share + 0.5, 0.9))  # type: ignore[arg-type]
    result.requests.users = 4
    assert _sensitivity(result, table, metrics)["queue_share"] == 0.0  # type: ignore[arg-type]


def test_what_is_left_out_is_nothing_but_for_these():
    """Factors and counts are one, sizes those that most have."""
    assert numbers_left_out("load") == {
        "LoadArguments.requests": 1000,
        "LoadArguments.burstiness": 1.0,
        "LoadArguments.ramp": 1.0,
        "LoadArguments.prompt_tokens": 896.0,
        "LoadArguments.output_tokens": 256.0,
        "LoadArguments.length_cv": 0.4,
        "LoadArguments.share": 0.9,
        "LoadArguments.prompt_interval": 1,
        "LoadArguments.block_size": 16,
        "Lengths.prompt_tokens": 896.0,
        "Lengths.output_tokens": 256.0,
        "Lengths.prompt_cv": 0.4,
        "Lengths.output_cv": 0.4,
        "SchedulerLimits.max_requests": 256,
        "SchedulerLimits.token_budget": 8192,
        "SchedulerLimits.block_tokens": 16,
        "SchedulerLimits.prompt_interval": 1,
        "SchedulerLimits.schedulers": 1,
        "Adaptive.alpha": 0.2,
        "Adaptive.warmup": 10,
        "Adaptive.down": -0.25,
        "ThroughputAware.alpha": 0.2,
        "PromptTable.gpus": 1,
        "Slos.share": 0.9,
        "Accepted.match_rate": 1.0,
        "Accepted.match_runs": 1.0,
    }
