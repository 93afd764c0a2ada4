"""Requests: first token, whole answer, growing context."""

import pytest

from medusa_sim.errors import UsageError
from medusa_sim.plan.recommendation import request_latency
from medusa_sim.plan.scenario import Scenario
from medusa_sim.step.drafter.base import Medusa
from medusa_sim.step.step import decode_step, prefill_step

SCENARIO = Scenario(latency="roofline")
SETTING = SCENARIO.setting
OPTION = SCENARIO.but(drafter="ngram", acceptance=0.7).options()[2]


def test_without_speculation_it_is_prefill_and_decode_steps():
    r = request_latency(SETTING, None, 1, batch=2, prompt_tokens=500, output_tokens=101)
    first = float(prefill_step(SETTING, 2, 500).time_us)
    steps = sum(float(decode_step(SETTING, 2, 500 + i).time_us) for i in range(1, 101))
    assert r.first_token_us == r.plain_first_token_us == first
    assert r.total_us == r.plain_total_us == pytest.approx(first + steps, rel=1e-3)
    assert r.speedup == 1.0


def test_speculation_divides_the_steps_and_delays_the_first_token():
    heads = SCENARIO.but(acceptance=0.6).options()[2]
    assert isinstance(heads.drafter, Medusa)
    r = request_latency(SETTING, heads, 4, batch=1, prompt_tokens=300, output_tokens=200)
    assert r.tokens_per_step == pytest.approx(1 + 0.6 + 0.36 + 0.216)
    assert r.first_token_us > r.plain_first_token_us
    assert r.total_us < r.plain_total_us
    assert r.speedup < r.plain_per_token_us / r.per_token_us  # the prompt is not accelerated


def test_one_output_token_is_the_prefill_and_the_context_grows():
    r = request_latency(SETTING, OPTION, 4, batch=1, prompt_tokens=10, output_tokens=1)
    assert r.total_us == r.first_token_us
    short = request_latency(SETTING, None, 1, batch=8, prompt_tokens=500, output_tokens=100)
    long = request_latency(SETTING, None, 1, batch=8, prompt_tokens=500, output_tokens=1500)
    assert long.plain_per_token_us > short.plain_per_token_us * 1.05


@pytest.mark.parametrize("name", ["batch", "prompt_tokens", "output_tokens"])
def test_nothing_is_no_request(name):
    sizes = {"batch": 1, "prompt_tokens": 1, "output_tokens": 1, name: 0}
    with pytest.raises(UsageError, match="from 1"):
        request_latency(SETTING, None, 1, **sizes)
