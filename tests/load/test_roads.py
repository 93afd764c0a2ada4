"""A closed loop of users has one time per token and one to the first token, in a sweep and in a load test."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from msgspec.structs import replace as with_fields

from medusa_sim.doubts.of_scenario import equal_requests
from medusa_sim.engines.runtime import Runtime, load_runtime, runtime_names
from medusa_sim.grid.cells import price
from medusa_sim.load.load_test import LoadTest, load_test
from medusa_sim.load.requests import Requests
from medusa_sim.load.step_table import chains
from medusa_sim.scenario.draft_options import DraftOption
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.serving.first_tokens import REQUESTS_A_CLIENT
from medusa_sim.serving.server import FullServer
from medusa_sim.units import US_PER_S

PROMPT, OUTPUT = 1000.0, 250.0
SERVERS = ("cuda-graph", *(name for name in runtime_names() if load_runtime(name).engine is not None))
NEWEST = ("vllm", "sglang", "tensorrt-llm")


def asked(runtime: str | Runtime, **given: object) -> Scenario:
    common = {"gpu": "h100-sxm", "model": "llama-3.1-8b", "prompt_tokens": PROMPT, "output_tokens": OUTPUT}
    return Scenario(**common | {"runtime": runtime} | given)


def swept(scenario: Scenario, users: int, options: Sequence[DraftOption] = ()) -> FullServer:
    return price(scenario, np.array([users]), [scenario.length], options).server


def loaded(scenario: Scenario, users: int, policy: str = "none", **given: object) -> LoadTest:
    return load_test(
        scenario, users=users, requests=14 * users, prompt_tokens=PROMPT, output_tokens=OUTPUT,
        policies=(policy,), seeds=2, **given,
    )  # fmt: skip


def mean_s(test: LoadTest, name: str) -> float:
    (point,) = test.points([None])
    return float(np.mean([run[f"{name}_mean_s"] for run in point.values]))


def seconds(time_us: np.ndarray) -> float:
    """Of the last configuration."""
    return float(np.ravel(time_us)[-1]) / US_PER_S


def waiting(name: str, steps: int) -> Runtime:
    """An engine whose prompts wait for each other."""
    runtime = load_runtime(name)
    return replace(runtime, engine=with_fields(runtime.engine, prompt_wait_steps=steps))


@pytest.mark.parametrize("users", [1, 24])
@pytest.mark.parametrize("runtime", SERVERS)
def test_both_roads_give_the_same_times(runtime, users):
    scenario = asked(runtime)
    seen, test = swept(scenario, users), loaded(scenario, users)
    assert seconds(seen.tpot_us) == pytest.approx(mean_s(test, "tpot"), rel=0.01)
    assert seconds(seen.first_token_us) == pytest.approx(mean_s(test, "ttft"), rel=0.06)


@pytest.mark.parametrize(
    ("runtime", "users", "prompt", "output"),
    [
        ("sglang", 32, 60.0, 24.0),  # passes of prompts are half of what a client waits for
        ("vllm", 256, 1000.0, 60.0),  # tokens are sent for longer than a step takes
    ],
)
def test_both_roads_give_the_same_times_of_short_requests(runtime, users, prompt, output):
    scenario = asked(runtime, prompt_tokens=prompt, output_tokens=output)
    test = load_test(
        scenario, users=users, requests=20 * users, prompt_tokens=prompt, output_tokens=output,
        policies=("none",), seeds=1, max_num_seqs=users,
    )  # fmt: skip
    seen = swept(scenario, users)
    assert seconds(seen.tpot_us) == pytest.approx(mean_s(test, "tpot"), rel=0.05)
    assert seconds(seen.first_token_us) == pytest.approx(mean_s(test, "ttft"), rel=0.1)


@pytest.mark.parametrize("runtime", NEWEST)
def test_both_roads_give_the_same_times_with_drafts(runtime):
    scenario = asked(runtime, drafter="eagle3")
    drafts = 2
    seen, test = swept(scenario, 16, [chains(scenario)[drafts - 1]]), loaded(scenario, 16, str(drafts))
    assert seconds(seen.tpot_us) == pytest.approx(mean_s(test, "tpot"), rel=0.02)
    assert seconds(seen.first_token_us) == pytest.approx(mean_s(test, "ttft"), rel=0.04)


def test_both_roads_give_the_same_times_where_prompts_wait_for_each_other():
    plain, held = asked("tensorrt-llm"), asked(waiting("tensorrt-llm", 20))
    seen, test = swept(held, 24), loaded(held, 24)
    assert seconds(seen.tpot_us) == pytest.approx(mean_s(test, "tpot"), rel=0.03)
    assert seconds(seen.first_token_us) == pytest.approx(mean_s(test, "ttft"), rel=0.06)
    by_option = loaded(plain, 24, prompt_wait=20)
    assert mean_s(by_option, "ttft") == mean_s(test, "ttft")
    assert mean_s(test, "ttft") > 2.0 * mean_s(loaded(held, 24, prompt_wait=0), "ttft")


@pytest.mark.parametrize("users", [4, 48])
@pytest.mark.parametrize("runtime", [*NEWEST, waiting("tensorrt-llm", 20)], ids=str)
def test_first_tokens_of_a_load_test_are_those_of_the_simulator(runtime, users):
    """(N19): clients begin at once, and ask again when their outputs end, of 80 to 100 % of a length."""
    scenario, draw = asked(runtime, length_cv=0.064), np.random.default_rng(7)
    requests = REQUESTS_A_CLIENT * users
    lengths = [
        draw.integers(round(0.8 * mean / 0.9), round(mean / 0.9) + 1, requests) for mean in (PROMPT, OUTPUT)
    ]
    asked_at_once = Requests(
        arrival_s=np.zeros(users), prompt_tokens=lengths[0], output_tokens=lengths[1], users=users
    )
    result = loaded(scenario, users).servers[0].run(asked_at_once, 0)
    later_s = scenario.setting.runtime.engine.load_test_us.value / US_PER_S
    predicted_s = seconds(swept(scenario, users).benchmark_first_token_us) - later_s
    assert predicted_s == pytest.approx(float((result.first_token_s - result.arrival_s).mean()), rel=0.1)


@pytest.mark.parametrize("policy", ["none", "2"])
def test_steps_between_prompts_keep_time_per_token_low_and_first_tokens_late(policy):
    scenario = asked("sglang", drafter="eagle3")
    tests = [loaded(scenario, 24, policy, prompt_interval=steps) for steps in (1, 40)]
    often, seldom = ({name: mean_s(test, name) for name in ("tpot", "ttft")} for test in tests)
    assert seldom["tpot"] < often["tpot"]
    assert seldom["ttft"] > 1.5 * often["ttft"]


@pytest.mark.parametrize("runtime", NEWEST)
def test_requests_of_equal_lengths_stay_together_as_their_doubt_says(runtime):
    scenario = asked(runtime, length_cv=0.0)
    assert any(equal_requests(scenario))
    assert not any(equal_requests(asked(runtime)))
    seen, test = swept(scenario, 24), loaded(scenario, 24, length_cv=0.0)
    assert mean_s(test, "ttft") > 3.0 * seconds(seen.first_token_us)
    assert 0.85 < mean_s(test, "tpot") / seconds(seen.tpot_us) < 0.97


@pytest.mark.parametrize(("output", "expected"), [(2, 0.90), (8, 1.35), (16, 1.59), (32, 1.80)])
def test_one_user_gains_from_short_outputs_what_the_simulator_gives(output, expected):
    """The last step emits more than is left, and takes as long as any. 200 requests leave 1 % to chance."""
    given = {"drafter": "eagle3", "acceptance": "eagle3-llama-3.1-8b", "max_drafts": 3, "length_cv": 0.0}
    scenario = asked("vllm", output_tokens=output, **given)
    speedup = float(price(scenario, [1], [scenario.length], [chains(scenario)[-1]]).speedup[0, 0, -1])
    tests = load_test(
        scenario, users=1, requests=200, prompt_tokens=PROMPT, output_tokens=output, length_cv=0.0,
        policies=("none", "3"), seeds=1,
    )  # fmt: skip
    none, three = (point.values[0]["tokens_per_s"] for point in tests.points([None]))
    assert speedup == pytest.approx(three / none, rel=0.015)
    assert speedup == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(
    ("given", "users", "drafts"),
    [
        ({"drafter": "eagle3"}, 128, 5),  # 77 of them run
        ({"drafter": "ngram", "prompt_tokens": 64.0}, 512, 5),  # a look-up verifies few of its drafts
        ({"prompt_tokens": 2000.0}, 96, 0),
    ],
)
def test_both_roads_give_the_same_times_where_the_tokens_of_a_step_keep_requests_waiting(
    given, users, drafts
):
    """2,048 tokens a step: each request that decodes takes some of them, and each prompt."""
    scenario = asked("vllm", gpu="a100-80gb-sxm", **{"prompt_tokens": 512.0, "output_tokens": 64.0} | given)
    seen = swept(scenario, users, chains(scenario)[drafts - 1 : drafts] if drafts else ())
    prompt, output = scenario.traffic.prompt_tokens, scenario.traffic.output_tokens
    test = load_test(
        scenario, users=users, requests=8 * users, prompt_tokens=prompt, output_tokens=output,
        policies=(str(drafts or "none"),), seeds=1, max_num_seqs=users,
    )  # fmt: skip
    assert seen._cycle.running[-1] < 0.97 * users
    assert seconds(seen.tpot_us) == pytest.approx(mean_s(test, "tpot"), rel=0.06)
    assert seconds(seen.first_token_us) == pytest.approx(mean_s(test, "ttft"), rel=0.12)
