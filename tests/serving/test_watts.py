"""Watts of a GPU: limits and directions that any load must keep."""

import shutil
from collections.abc import Iterable

import numpy as np
import power_fit
import pytest
from hypothesis import given
from hypothesis import strategies as st
from one_line import one_line

from medusa_sim import data
from medusa_sim.api import Scenario
from medusa_sim.errors import SpecError
from medusa_sim.gpus.gpu import Gpu, load_gpu
from medusa_sim.gpus.gpu_names import gpu_names
from medusa_sim.gpus.power import Power
from medusa_sim.grid.cells import price
from medusa_sim.operators.attention import Attention
from medusa_sim.serving.watts import (
    joule_per_flop,
    launch_joules,
    prompt_joules,
    sampling_joules,
    under_limit,
    watts,
)
from medusa_sim.step.launch import Launch
from medusa_sim.step.network import model_launches
from medusa_sim.step.sampling import filter_us
from medusa_sim.step.step import decode_step
from medusa_sim.step.timed_kernels import TimedKernels
from medusa_sim.step.workload import prefill

H100 = load_gpu("h100-sxm")
EAGLE = {"model": "llama-3.1-8b", "drafter": "eagle3", "acceptance": "0.8,0.6,0.4"}


def power_of(gpu: Gpu) -> Power:
    assert gpu.power is not None
    return gpu.power


def launched(passes: Iterable[TimedKernels]) -> list[Launch]:
    return [launch for kernels in passes for launch in kernels.work.launches]


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
        sum(launch.count * float(getattr(launch.operator, count)) for launch in launched(step.passes))
        for count in ("bytes", "flops")
    )
    assert moved == pytest.approx(scenario.model.weight_bytes, rel=0.1)  # weights are nearly all of it
    cached = sum(
        launch.count * float(launch.operator.bytes)
        for launch in launched(step.passes)
        if isinstance(launch.operator, Attention)
    )
    assert cached == pytest.approx(1024 * scenario.model.kv_bytes_per_token, rel=0.01)
    joules = float(launch_joules(H100, power, launched(step.passes)))
    expected = fit.joule_per_byte * (moved - cached) + fit.joule_per_cache_byte * cached
    assert joules == pytest.approx(expected + fit.joule_per_flop * computed)
    load = fit.idle_watts + joules / float(step.time_us) * 1e6
    drawn = float(watts(power, np.asarray(joules), step.time_us))
    assert drawn == pytest.approx(load / (1.0 + (load / 700.0) ** 4) ** 0.25)


def test_a_prompt_draws_for_its_products_and_choosing_tokens_for_its_time():
    """Two GPUs share a prompt of 1,000 tokens: two operations a weight and token, and attention."""
    scenario = Scenario(gpu="h100-sxm", model="llama-3.1-8b", runtime="vllm-0.11", tp=2, drafter="ngram",
                        acceptance=0.6)  # fmt: skip
    power, of = power_of(H100), scenario.setting
    launches = model_launches(of.shard, prefill(1, 1000), of.runtime)
    computed = sum(launch.count * float(launch.operator.flops) for launch in launches)
    weights = 32 * (4096 * (4096 + 2 * 1024) + 4096 * 4096 + 3 * 4096 * 14336)  # (q, k, v), o, MLP
    attention = 32 * 4 * 4096 * 1000 * 1001 / 2  # two products over half of all pairs
    head = 2 * 4096 * 128256  # of the last token alone
    assert computed == pytest.approx((2 * 1000 * weights + attention + head) / 2, rel=0.01)
    joules = float(prompt_joules(power, of, 1000))
    assert joules == pytest.approx(computed * power.fit.joule_per_flop, rel=1e-3)
    engine, model = of.runtime.engine, of.model
    took_us = filter_us(engine, H100, 48, model.filtered_vocab, top_k=model.samples_top_k)
    drawn = float(sampling_joules(power, of, 48))
    assert drawn == pytest.approx(power.fit.sampling_watts * float(took_us) / 1e6 / 2)
    assert float(sampling_joules(power, scenario.but(runtime="cuda-graph").setting, 48)) == 0.0


def test_gpus_that_attend_to_their_own_requests_share_the_joules_of_prompts():
    """Eight GPUs with a prompt each compute what all of them do for eight prompts, but for what latent
    attention repeats on each GPU that shares a prompt."""
    asked = {"gpu": "h200-sxm", "model": "deepseek-v3", "tp": 8, "runtime": "sglang-0.5", "drafter": "mtp"}
    shared, own = (
        float(prompt_joules(power_of(H100), Scenario(**asked, dp_attention=split).setting, 4096))
        for split in (False, True)
    )
    assert own == pytest.approx(shared, rel=0.2)


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
    cells = price(Scenario(gpu="h100-sxm", **EAGLE), [8], [1024])
    joules = cells.by_count.steps.joules[0, 0]
    assert joules[-1] > float(
        np.max(launch_joules(H100, power_of(H100), launched(cells.surface.verify.passes)))
    )
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
    assert power.fit.idle_watts == power_fit.IDLE_WATTS
    for name in power_fit.TERMS:
        assert getattr(power.fit, name) == pytest.approx(getattr(again, name), rel=0.05)
    for name in ("error", "fit_error", "heldout_error"):
        assert getattr(power.fit, name) == pytest.approx(getattr(again, name), abs=0.02)
    size = found.predicted.abs()
    errors = size.groupby(found.model).mean()
    assert errors.mean() < 0.08  # leave one model out
    assert errors.max() < 0.11
    assert (size <= power.fit.error).mean() == pytest.approx(0.8, abs=0.08)
