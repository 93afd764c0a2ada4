"""Chances and pieces of a server's steps by hand."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from left_out import numbers_left_out
from servers import CHAT, full, served, setting

from medusa_sim.engines.runtime import load_runtime
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.serving import first_tokens
from medusa_sim.serving.chance import log_normal, normal_values
from medusa_sim.serving.mixed_steps import mixed_step_law
from medusa_sim.serving.request_cycle import _steps_ahead
from medusa_sim.serving.server import FullServer
from medusa_sim.step.graphs import step_rows
from medusa_sim.step.prompt_kernels import expert_sharing_us
from medusa_sim.step.prompts import prompt_terms
from medusa_sim.step.step import decode_step, prefill_step


def test_clients_that_begin_at_once_are_normal_around_their_next_requests(monkeypatch):
    """Of one more request each, whose outputs of 300 steps differ by 2 %: a deviation of 6 steps.

    On a step x off the middle begin exp(-x^2 / 2 s^2) / (s sqrt(2 pi)), with s^2 wider by one step's own.
    """
    cycle = SimpleNamespace(
        requests=np.array([12.0]), prompts_in_room=np.array([1.0]), decode_steps=np.array([300.0]),
        steps=np.array([312.0]), running=np.array([12.0]),
    )  # fmt: skip
    spread = np.sqrt(12.0**2 / 12.0 + 6.0**2)
    width = np.sqrt(spread**2 + 1.0 / (2.0 * np.pi))
    chances = np.sort(np.exp(-((spread * normal_values() / width) ** 2) / 2) / (np.sqrt(2 * np.pi) * width))
    halves = chances.reshape(2, -1).mean(axis=1)
    monkeypatch.setattr(first_tokens, "TESTED_CV", 0.02)
    monkeypatch.setattr(first_tokens, "REQUESTS_A_CLIENT", 2)
    np.testing.assert_allclose(first_tokens.gathered_chances(cycle), [halves], rtol=1e-12)


@pytest.mark.parametrize("verified", [1, 4])
def test_a_law_of_mixed_steps_knows_every_number_of_rows_that_its_cells_have(verified):
    """One and 64 requests whose prompts take what room is left: no row beyond the last that was timed."""
    scenario = Scenario(
        gpu="h100-sxm", model="llama-3.1-8b", drafter="eagle3", acceptance=0.7, runtime="vllm",
        prompt_tokens=512, output_tokens=256,
    )  # fmt: skip
    setting, batch = scenario.setting, np.array([1.0, 64.0])
    step = decode_step(setting, batch, 640)
    found = served(
        setting, step.time_us, batch, verified, np.ones(2), scenario.traffic,
        attention_us=step.parts_us["attention"],
    )  # fmt: skip
    assert isinstance(found, FullServer)
    cycle = found._cycle
    law = mixed_step_law(setting, scenario.traffic, None, cycle)
    assert law.rows[-1] >= 64.0 * verified + cycle.room_tokens.max()
    assert np.all(np.diff(law.rows) > 0)


@pytest.mark.parametrize("model", ["llama-3.1-8b", "qwen3-30b-a3b"])
def test_kernels_of_those_that_run_are_interpolated_as_their_step_was(model):
    """Of 100 requests 80 run: 0.8 of the way from 0 to 100; at every number by itself as they are priced."""
    of = setting(model=model)
    cycle = replace(full(of, np.asarray([100.0]), CHAT)._cycle, running=np.array([80.0]))

    def decode_us(requests: float) -> float:
        asked = replace(cycle, running=np.array([requests]))
        return float(mixed_step_law(of, CHAT, None, asked).full_decode_us[0])

    def interpolated_us(*sizes: float) -> float:
        return float(mixed_step_law(of, CHAT, None, cycle, sizes=np.array(sizes)).full_decode_us[0])

    assert interpolated_us(1.0, 80.0, 100.0) == pytest.approx(decode_us(80.0))
    between_us = decode_us(50.0) + 0.6 * (decode_us(100.0) - decode_us(50.0))
    assert interpolated_us(1.0, 50.0, 100.0) == pytest.approx(between_us)
    above_us = decode_us(50.0) + 0.5 * (decode_us(150.0) - decode_us(50.0))
    below_us = decode_us(50.0) + 0.3 * (decode_us(150.0) - decode_us(50.0))
    assert interpolated_us(1.0, 50.0, 150.0) == pytest.approx(decode_us(100.0) * below_us / above_us)


def test_requests_that_verify_tokens_share_experts_as_those_of_a_plain_step():
    """Of so many tokens that choose by themselves: as many as all requests verify."""
    of = setting(model="qwen3-30b-a3b")
    cycle = full(of, np.asarray([4.0, 64.0]), CHAT)._cycle
    four = np.full(2, 4.0)
    law = mixed_step_law(of, CHAT, None, replace(cycle, verified_tokens=four, candidates=four))
    rows = step_rows(of.runtime, cycle.running, 4.0, 4.0)
    shared_us = expert_sharing_us(of, cycle.running, np.full(2, 4.0), rows, 4.0 * cycle.running)
    assert law.sharing_us == pytest.approx(shared_us)
    assert np.all(shared_us != 0.0)


def test_outputs_of_a_load_test_are_drawn_from_80_to_100_per_cent_of_their_length():
    drawn = np.linspace(0.8, 1.0, 100_001)
    assert pytest.approx(drawn.std() / drawn.mean(), rel=1e-4) == first_tokens.TESTED_CV


def test_a_step_with_prompts_takes_no_less_than_their_tokens_alone():
    """All 512 requests of a server begin at once; its linear layers are told to take longer than its step."""
    scenario = Scenario(gpu="a10g", model="mistral-7b", runtime="vllm", prompt_tokens=896, output_tokens=256)
    found = served(
        scenario.setting, np.asarray(250_000.0), 512, 1, np.ones(()), scenario.traffic,
        attention_us=np.asarray(140_000.0),
    )  # fmt: skip
    assert isinstance(found, FullServer)
    law = replace(found._law, full_decode_us=np.array([150_000.0]))
    time_us = law.steps(np.array([0]), np.array([512.0])).time_us
    assert np.all(time_us > prompt_terms(law.setting).share * law.linear_us[0])


def test_a_step_without_prompts_lacks_those_that_are_absent():
    """(N8): of 64 requests some are away; of linear layers of 3,000 us a mean of 2,900 is left."""
    found = full(setting(), np.asarray(64), CHAT)
    cycle = found._cycle
    law = replace(found._law, full_decode_us=np.array([3000.0]), mean_decode_us=np.array([2900.0]))
    absent = cycle.running * cycle.absent_steps / (cycle.decode_steps + cycle.absent_steps)
    expected = cycle.step_us - absent * cycle.request_attention_us - 100.0
    assert float(absent[0]) > 0.1
    assert law.decode_only_us == pytest.approx(expected)


def test_steps_that_chunks_fill_count_with_the_step_that_ends_a_prompt():
    """Of prompts of several steps: each full step by what it takes beyond one without prompts."""
    law = full(setting(), np.asarray(8), replace(CHAT, prompt_tokens=20_000.0))._law
    some = 1.0 - (1.0 - law.cycle.begin_chance) ** law.cycle.running
    steps = law.steps(np.zeros(1, dtype=int), law.cycle.running * law.cycle.begin_chance / some)
    alone_us = float(law.decode_only_us[0])
    expected_us = (steps.time_us + steps.full_steps * (steps.full_step_us - alone_us)).mean()
    assert float(steps.full_steps.mean()) > 1.0
    assert law.step_times.carrying_us == pytest.approx(expected_us)
    assert law.step_times.alone_us == pytest.approx(alone_us)


@pytest.mark.parametrize("prompts", [1, 8])
def test_gpus_that_attend_to_their_own_prompts_wait_for_the_one_that_reads(prompts):
    """A pass of one prompt, or of eight on eight GPUs, takes what such a prompt takes that comes alone."""
    scenario = Scenario(
        gpu="h200-sxm", model="deepseek-v3", drafter="mtp", acceptance=0.7, runtime="sglang", tp=8,
        dp_attention=True, prompt_tokens=512, output_tokens=256, length_cv=0.0,
    )  # fmt: skip
    found = served(scenario.setting, np.asarray(9_000.0), 64, 1, np.ones(()), scenario.traffic)
    assert isinstance(found, FullServer)
    steps = found._law.steps(np.array([0]), np.array([float(prompts)]))
    read_us = float(steps.time_us.mean() - found._law.decode_only_us[0])
    assert read_us == pytest.approx(float(prefill_step(scenario.setting, prompts, 512).time_us), rel=0.03)


def test_a_pass_of_a_short_prompt_is_a_prefill():
    """Of 64 tokens, of which the LM head reads as many weights as two layers do."""
    scenario = Scenario(
        gpu="h100-sxm", model="llama-3.1-8b", drafter="ngram", acceptance=0.5, runtime="sglang",
        prompt_tokens=64, output_tokens=256, length_cv=0.0,
    )  # fmt: skip
    found = served(scenario.setting, np.asarray(9_000.0), 64, 1, np.ones(()), scenario.traffic)
    assert isinstance(found, FullServer)
    read_us = float(found._law.steps(np.array([0]), np.ones(1)).time_us.mean() - found._law.decode_only_us[0])
    alone = prefill_step(scenario.setting, 1, 64)
    step_us = alone.cost.exposed_us - prompt_terms(scenario.setting).extra_us  # in the step already
    assert read_us == pytest.approx(float(alone.time_us - step_us), rel=1e-3)


@pytest.mark.parametrize("requests", [1, 64, 256])
def test_a_step_carries_a_prompt_unless_no_request_begins_one(requests):
    """1 - (1 - chance)^running by how many cohorts there are; few prompts of 512 tokens fill no step."""
    scenario = Scenario(
        gpu="h100-sxm", model="llama-3.1-8b", drafter="eagle3", acceptance=0.7, runtime="vllm",
        prompt_tokens=512, output_tokens=256,
    )  # fmt: skip
    found = served(scenario.setting, np.asarray(9_000.0), requests, 1, np.ones(()), scenario.traffic)
    assert isinstance(found, FullServer)
    cycle = found._cycle
    none = cycle.cohort_chances[0] @ (1.0 - cycle.begin_chances[0]) ** cycle.running[0]
    assert float(found.carrying_share) == pytest.approx(1.0 - none, abs=1e-6)


def test_further_steps_of_a_long_prompt_carry_too():
    """(N7): a request begins a prompt every 1 / pi steps and reads it in R of them."""
    scenario = Scenario(
        gpu="h100-sxm", model="llama-3.1-8b", drafter="eagle3", acceptance=0.7, runtime="vllm",
        prompt_tokens=100_000, output_tokens=1000,
    )  # fmt: skip
    found = served(scenario.setting, np.asarray(9_000.0), 1, 1, np.ones(()), scenario.traffic)
    assert isinstance(found, FullServer)
    lengths = 100_000 * log_normal(np.full(1, scenario.traffic.prompt_cv))[0]
    read_steps = 1.0 + np.floor(lengths / found._cycle.room_tokens[0]).mean()
    assert read_steps > 2.0
    assert float(found.carrying_share) == pytest.approx(read_steps * found._cycle.begin_chance[0], rel=1e-6)


def test_an_engine_waits_for_drafts_that_a_host_looks_up():
    """vLLM schedules one step ahead of the running one, but not where n-grams draft."""
    drafts = np.array([False, True])
    for runtime, drafter, steps in (
        ("vllm-0.24", "ngram", [1.0, 0.0]),
        ("vllm-0.24", "eagle3", [1.0, 1.0]),
        ("cuda-graph", "ngram", [0.0]),
    ):
        given = SimpleNamespace(runtime=load_runtime(runtime), drafter_name=drafter)
        assert np.atleast_1d(_steps_ahead(given, is_drafting=drafts)).tolist() == steps


def test_what_is_left_out_is_nothing():
    assert numbers_left_out("serving") == {}
