"""A step seen through a server: limits and directions that any traffic must keep; watts of a card."""

import shutil
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import power_fit
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from one_line import one_line

from medusa_sim import data
from medusa_sim.api import Scenario
from medusa_sim.errors import SpecError
from medusa_sim.latency.by_name import cached, latency_model
from medusa_sim.plan.surface import price
from medusa_sim.specs.costs import Power
from medusa_sim.specs.gpu import Gpu, gpu_names, load_gpu
from medusa_sim.specs.models import load_model
from medusa_sim.specs.parallel import Parallel
from medusa_sim.specs.runtime import load_runtime
from medusa_sim.step.compose import PassWork
from medusa_sim.step.drafter import DRAFTERS
from medusa_sim.step.drafter.base import FreeDrafter
from medusa_sim.step.server import (
    Served,
    Traffic,
    carried_prompts,
    carrying,
    joule_per_flop,
    launch_joules,
    prompt_host_us,
    served,
    served_length,
    typical_share,
    under_limit,
    watts,
)
from medusa_sim.step.step import Setting, decode_step
from medusa_sim.step.workload import Launch

LATENCY = cached(latency_model(load_gpu("h100-sxm"), "calibrated", "sglang"))


def setting(runtime: str = "vllm-0.11", model: str = "llama-3.1-8b", **more: object) -> Setting:
    given = {"latency": LATENCY, "model": load_model(model), "runtime": load_runtime(runtime)}
    return Setting(**given | more, scope="model", drafter=FreeDrafter())


def plain(of: Setting, batch: float, traffic: Traffic | None) -> tuple[float, Served]:
    length = served_length(of, 512, traffic)
    step = decode_step(of, np.asarray(batch), np.asarray(length)).time_us
    return float(step), served(of, step, batch, 1, np.ones(()), traffic)


def test_kernels_alone_without_traffic_are_the_step():
    for runtime in ("cuda-graph", "hf-eager"):
        step, seen = plain(setting(runtime), 16, None)
        assert float(seen.itl_us) == float(seen.tpot_us) == step


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
    of, long = setting("sglang-0.5", method="eagle3"), Traffic(prompt_tokens=16_384.0, output_tokens=256.0)

    def carried_us(traffic: Traffic) -> list[float]:
        given = np.asarray(8.0), np.asarray(32.0), np.asarray(2.0), traffic
        return [float(carried_prompts(of, *given, drafted=drafted)[1]) for drafted in (False, True)]

    plain_us, drafted_us = carried_us(replace(long, prompt_tokens=16.0))
    launching_us = prompt_host_us(of)
    assert plain_us < launching_us <= drafted_us < plain_us + launching_us
    assert prompt_host_us(setting()) == 0.0
    for name, kind in DRAFTERS.items():
        assert prompt_host_us(replace(of, method=name)) == (0.0 if kind.looks_up else launching_us)
    hidden = carried_us(long)
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
    def added_us(of: Setting, batch: int) -> float:
        step, seen = plain(of, batch, None)
        return float(seen.itl_us) - step

    assert 0.0 < added_us(setting(), 1) < added_us(setting(), 64)
    # a model whose generation_config names a top-k as well pays a fifth more a logit
    qwen, llama = (added_us(of, 64) / of.model.vocab for of in (setting(model="qwen3-8b"), setting()))
    assert qwen == pytest.approx(1.2 * llama)


def test_speculation_emits_more_tokens_a_gap():
    of, traffic = setting(), Traffic(prompt_tokens=256.0, output_tokens=256.0)
    step = np.asarray(9_000.0)
    seen = served(of, step, 16, 4, np.asarray(2.5), traffic)
    assert float(seen.tpot_us) < float(seen.itl_us)
    assert float(seen.tpot_us) * 2.5 > float(step)


H100 = load_gpu("h100-sxm")
EAGLE = {"model": "llama-3.1-8b", "drafter": "eagle3", "acceptance": "0.8,0.6,0.4"}


def power_of(gpu: Gpu) -> Power:
    assert gpu.power is not None
    return gpu.power


def launched(works: Iterable[PassWork]) -> list[Launch]:
    return [launch for work in works for launch in work.launches]


@given(st.floats(1.0, 1e5), st.floats(10.0, 2000.0))
def test_a_card_stays_under_its_limit_and_draws_what_a_small_load_asks(load, limit):
    drawn = float(under_limit(np.asarray(load), limit))
    assert drawn < limit * (1.0 + 1e-12)
    assert drawn <= load
    assert float(under_limit(np.asarray(1.01 * load), limit)) >= drawn * (1.0 - 1e-12)
    if load < 0.2 * limit:
        assert drawn == pytest.approx(load, rel=1e-3)


def test_a_plain_step_by_hand():
    asked = {"gpu": "h100-sxm", "runtime": "cuda-graph", "model": "llama-3.1-8b", "drafter": "ngram"}
    scenario = Scenario(**asked, acceptance=0.6)
    step = decode_step(scenario.setting, 1, 1024)
    power, fit = power_of(H100), power_of(H100).fit
    moved, computed = (
        sum(launch.count * float(getattr(launch.operator, count)) for launch in launched(step.works))
        for count in ("bytes", "flops")
    )
    assert moved == pytest.approx(scenario.model.weight_bytes, rel=0.1)  # weights are nearly all of it
    joules = float(launch_joules(H100, power, launched(step.works)))
    assert joules == pytest.approx(fit.joule_per_byte * moved + fit.joule_per_flop * computed)
    load = fit.idle_watts + joules / float(step.time_us) * 1e6
    drawn = float(watts(power, np.asarray(joules), step.time_us))
    assert drawn == pytest.approx(load / (1.0 + (load / 700.0) ** 4) ** 0.25)


@pytest.mark.parametrize("name", [name for name in gpu_names() if not name.startswith("cpu-")])
def test_the_same_shares_draw_the_same_share_of_the_limit(name):
    gpu = load_gpu(name)
    power, own = power_of(gpu), power_of(H100)
    assert "power.limit_watts" in gpu.sources

    def share(card: Gpu, drawn: Power, bandwidth: float, peak: float) -> float:
        fit = drawn.fit
        moved = fit.joule_per_byte * bandwidth * card.bandwidth_bytes_per_s
        computed = fit.joule_per_flop * peak * card.peak(fit.dtype)
        joules = np.asarray(moved + computed)
        return float(watts(drawn, joules, np.asarray(1e6))) / drawn.limit_watts

    for shares in ((0.0, 0.0), (0.7, 0.05), (0.3, 0.5)):
        assert share(gpu, power, *shares) == pytest.approx(share(H100, own, *shares))
    if name != "h100-sxm":
        assert power.lender == "h100-sxm"
        assert power.fit.error >= 0.3


def test_another_dtype_draws_the_same_at_the_same_share_of_its_peak():
    power = power_of(H100)
    ratio = joule_per_flop(H100, power, "fp8") / joule_per_flop(H100, power, "bf16")
    assert ratio == pytest.approx(H100.peak("bf16") / H100.peak("fp8"))
    assert joule_per_flop(H100, power, "fp64") == power.fit.joule_per_flop  # no peak is given


def test_a_server_draws_more_for_its_prompts_and_a_cpu_or_block_has_no_watts():
    alone = Scenario(gpu="h100-sxm", runtime="vllm-0.11", **EAGLE)
    busy = alone.but(prompt_tokens=125.0, output_tokens=400.0)
    spent = [item.sweep(batch=[64], candidates=[1]).joule_per_token[0] for item in (alone, busy)]
    assert spent[1] > spent[0]
    cpu = Scenario(gpu="cpu-emerald-rapids-50m", runtime="cuda-graph", latency="roofline", dtype="fp32")
    assert cpu.sweep().watts.isna().all()
    block = Scenario(gpu="h100-sxm", scope="block", runtime="cuda-graph")
    assert block.sweep().joule_per_token.isna().all()


def test_the_best_of_a_surface_counts_the_drafter():
    surface = price(Scenario(gpu="h100-sxm", **EAGLE), [8], [1024])
    joules = surface.joules[0, 0]
    assert joules[-1] > float(np.max(launch_joules(H100, power_of(H100), launched(surface.verify.works))))
    assert (np.diff(joules) > 0).all()


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('inherit = "h100-sxm"', 'inherit = "a40"', "no \\[power.fit\\] of its own"),
        ('inherit = "h100-sxm"', "", "give either"),
        ('inherit = "h100-sxm"', 'inherit = "nothing"', "unknown GPU"),
        ("value = 350", "value = -350", "watts"),
    ],
)
def test_a_power_that_says_nothing_is_refused(old, new, told, tmp_path):
    folder = tmp_path / "hardware"
    folder.mkdir()
    shutil.copy(data.shipped_dir() / "hardware" / "l40s.toml", folder)
    path = folder / "l40s.toml"
    path.write_text(path.read_text().replace(old, new))
    with one_line(SpecError, match=told):
        load_gpu("l40s", tmp_path)


def test_the_stored_parameters_are_those_of_the_rows(shared_data):
    power = power_of(H100)
    found = power_fit.scored(power_fit.served_rows(), power.limit_watts)
    again = power_fit.power_fit(found, power.limit_watts)
    for name in ("idle_watts", "joule_per_byte", "joule_per_flop", "sampling_watts"):
        assert getattr(power.fit, name) == pytest.approx(getattr(again, name), rel=0.05)
    for name in ("error", "fit_error", "heldout_error"):
        assert getattr(power.fit, name) == pytest.approx(getattr(again, name), abs=0.02)
    size = found.predicted.abs()
    errors = size.groupby(found.model).mean()
    assert errors.mean() < 0.08  # leave one model out
    assert errors.max() < 0.11
    assert (size <= power.fit.error).mean() == pytest.approx(0.8, abs=0.08)
