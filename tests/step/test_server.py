"""A step seen through a server: limits and directions that any traffic must keep."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from medusa_sim.latency.by_name import cached, latency_model
from medusa_sim.specs.gpu import load_gpu
from medusa_sim.specs.models import load_model
from medusa_sim.specs.parallel import Parallel
from medusa_sim.specs.runtime import load_runtime
from medusa_sim.step.drafter.base import FreeDrafter
from medusa_sim.step.server import (
    Served,
    Traffic,
    carried_prompts,
    carrying,
    prompt_host_us,
    served,
    served_length,
    typical_share,
)
from medusa_sim.step.step import Setting, decode_step

LATENCY = cached(latency_model(load_gpu("h100-sxm"), "calibrated", "sglang"))


def setting(runtime: str = "vllm-0.11", model: str = "llama-3.1-8b") -> Setting:
    return Setting(
        latency=LATENCY,
        model=load_model(model),
        runtime=load_runtime(runtime),
        scope="model",
        drafter=FreeDrafter(),
    )


def plain(of: Setting, batch: float, traffic: Traffic | None) -> tuple[float, Served]:
    length = served_length(of, 512, traffic)
    step = decode_step(of, np.asarray(batch), np.asarray(length)).time_us
    return float(step), served(of, step, batch, 1, np.ones(()), traffic)


@pytest.mark.parametrize("runtime", ["cuda-graph", "hf-eager"])
def test_kernels_alone_without_traffic_are_the_step(runtime):
    step, seen = plain(setting(runtime), 16, None)
    assert float(seen.itl_us) == step
    assert float(seen.tpot_us) == step


@settings(max_examples=20)
@given(batch=st.integers(1, 256), prompt=st.floats(16, 4096), output=st.floats(32, 4096))
def test_a_server_never_makes_a_token_faster(batch, prompt, output):
    of = setting()
    step, seen = plain(of, batch, Traffic(prompt_tokens=prompt, output_tokens=output))
    assert float(seen.itl_us) >= step
    assert float(seen.tpot_us) >= step
    longer = plain(of, batch, Traffic(prompt_tokens=2 * prompt, output_tokens=output))[1]
    assert float(longer.tpot_us) >= float(seen.tpot_us) * (1 - 1e-9)


def test_the_median_gap_sees_prompts_on_most_steps_and_every_prompt_is_carried_once():
    share = np.array([0.0, 0.05, 0.5, 0.95, 1.0])
    typical = typical_share(share)
    assert typical.tolist() == sorted(typical.tolist())
    assert typical[[0, 2, 4]].tolist() == [0.0, 0.5, 1.0]
    assert typical[1] < share[1]
    assert typical[3] > share[3]
    # prompts a step x share of steps = requests finished a step
    of, traffic = setting(), Traffic(prompt_tokens=256.0, output_tokens=400.0)
    for batch in (1.0, 40.0, 4000.0):
        share, carried = carried_prompts(of, np.asarray(batch), np.asarray(batch), np.ones(()), traffic)
        assert float(carried) > 0.0
        assert float(share) == pytest.approx(-np.expm1(-batch / 400.0))
    alone = carried_prompts(of, np.ones(()), np.ones(()), np.ones(()), traffic)[1]
    # a prompt that rides on a running step costs less than a step of its own, which reads the weights again
    assert float(alone) < float(decode_step(of, np.asarray(256.0), np.asarray(1.0)).time_us)


def test_prompts_of_a_server_that_drafts_are_launched_one_by_one():
    # SGLang with EAGLE: the graphs of prompts hold no hidden states; look-ups need none
    of, short = setting("sglang-0.5"), Traffic(prompt_tokens=16.0, output_tokens=256.0)
    of = replace(of, method="eagle3")
    given = np.asarray(8.0), np.asarray(32.0), np.asarray(2.0), short
    plain_us, drafted_us = (float(carried_prompts(of, *given, drafted=each)[1]) for each in (False, True))
    launching_us = prompt_host_us(of)
    assert plain_us < launching_us <= drafted_us < plain_us + launching_us
    assert prompt_host_us(replace(of, method="ngram")) == 0.0
    assert prompt_host_us(setting()) == 0.0
    long = Traffic(prompt_tokens=16_384.0, output_tokens=256.0)
    hidden = [float(carried_prompts(of, *given[:3], long, drafted=each)[1]) for each in (False, True)]
    assert hidden[1] < 1.05 * hidden[0]


def test_steps_of_tensorrt_llm_that_carry_prompts_are_launched_one_by_one():
    # its graphs hold generation alone: the whole step is launched, whatever drafts
    of, short = setting("tensorrt-llm"), Traffic(prompt_tokens=16.0, output_tokens=256.0)
    given, launching_us = (np.asarray(8.0), np.asarray(8.0), np.ones(()), short), prompt_host_us(of)
    assert prompt_host_us(replace(of, method="ngram")) == launching_us
    carried = [float(carried_prompts(of, *given, step_us=step)[1]) for step in (0.0, launching_us, 1e6)]
    assert carried == sorted(carried, reverse=True)
    assert launching_us <= carried[0] < 1.01 * launching_us
    graphs = replace(of, runtime=load_runtime("vllm"))
    assert carried[2] == pytest.approx(float(carried_prompts(graphs, *given)[1]), rel=0.05)
    eight = replace(of, model=load_model("deepseek-r1"), parallel=Parallel(tp=8, dp_attention=True))
    share, _ = carrying(eight, *given[1:])  # prompts of eight GPUs wait for each other
    assert float(share) == pytest.approx(-np.expm1(-8.0 / 256.0 / 8.0))


def test_filters_cost_by_vocabulary_and_request_and_only_in_a_server():
    few, many = (
        float(plain(setting(), batch, None)[1].itl_us) - plain(setting(), batch, None)[0] for batch in (1, 64)
    )
    assert 0.0 < few < many
    # a model whose generation_config names a top-k as well pays a fifth more a logit
    qwen, llama = setting(model="qwen3-8b"), setting()
    added = [
        (float(plain(of, 64, None)[1].itl_us) - plain(of, 64, None)[0]) / of.model.vocab
        for of in (qwen, llama)
    ]
    assert added[0] == pytest.approx(1.2 * added[1])


def test_speculation_emits_more_tokens_a_gap():
    of, traffic = setting(), Traffic(prompt_tokens=256.0, output_tokens=256.0)
    step = np.asarray(9_000.0)
    seen = served(of, step, 16, 4, np.asarray(2.5), traffic)
    assert float(seen.tpot_us) < float(seen.itl_us)
    assert float(seen.tpot_us) * 2.5 > float(step)
