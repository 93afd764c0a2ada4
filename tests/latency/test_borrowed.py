"""No constant that belongs to a lender's host or to a fallback enters a step."""

from dataclasses import replace

import numpy as np
import pytest

from medusa_sim.errors import MedusaSimError, SpecError
from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.gpus.gpu_names import gpu_names
from medusa_sim.gpus.kernels import StreamKernel
from medusa_sim.latency.calibrated import CalibratedLatency
from medusa_sim.latency.roofline import roofline_time_us
from medusa_sim.operators.gemm import Gemm
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.step.kernels import decomposed, kernel_time
from medusa_sim.step.network import model_launches
from medusa_sim.step.setting import Setting
from medusa_sim.step.step import decode_step
from medusa_sim.step.workload import Workload, decode, prefill, verify

CARDS = [name for name in gpu_names() if load_gpu(name).architecture != "cpu"]
MODELS = ("llama-3.1-8b", "deepseek-v3", "deepseek-v3.2", "glm-5", "qwen3.5-27b", "kimi-k3", "minimax-m3",
          "gpt-oss-120b", "nemotron-3-nano-30b-a3b", "deepseek-v4-flash", "mimo-v2-flash",
          "kimi-linear-48b-a3b")  # fmt: skip
RUNTIMES = ("vllm", "sglang", "tensorrt-llm")
GPUS = 8
LAUNCH_US = 20.0
"""Beside the roofline: modules launch some ten kernels."""
GENERATED, READ = 27.0, 45.0
"""Times as long as roofline and launches that a part of a step may take, as kernels that never split keys and
prompts of few tokens do. Constants of hosts and fallbacks were 50 to 3,400 times as long."""
REQUESTS, PROMPTS = np.array([1, 8, 64, 256]), np.array([16, 256, 1024, 4096])


def longest(of: Setting, workload: Workload) -> tuple[float, str]:
    """The part of a step that is the most times its roofline, and which."""
    found = (0.0, "")
    try:
        launches = tuple(decomposed(of.latency, model_launches(of.shard, workload, of.runtime)))
    except SpecError:  # no kernel at all
        return found
    for launch in launches:
        try:
            time = kernel_time(of.latency, of.runtime, launch)
        except SpecError:
            continue
        floor_us = roofline_time_us(of.latency.gpu, launch.operator)
        share = float(np.max(time.time_us / (floor_us + LAUNCH_US)))
        found = max(found, (share, f"{launch.operator.kind} {time.place}"))
    return found


@pytest.mark.parametrize("gpu", CARDS)
@pytest.mark.parametrize(
    "turn", [0, *(pytest.param(turn, marks=pytest.mark.nightly) for turn in range(1, len(RUNTIMES)))]
)
def test_a_part_of_a_step_is_at_most_some_times_its_roofline(gpu, turn):
    """1.4 ms a convolution of prompts on a GB300 was a lender's host, 176 ms a module a fallback.

    Every model on every GPU, in one engine before a change and in all of them nightly.
    """
    for place, model in enumerate(MODELS):
        runtime = RUNTIMES[(place + CARDS.index(gpu) + turn) % len(RUNTIMES)]
        try:
            named = {"gpu": gpu, "model": model, "tp": GPUS, "runtime": runtime}
            of = Scenario(**named, drafter="ngram", acceptance="0.5").setting
        except MedusaSimError:
            continue
        for workload in (decode(REQUESTS, 4096), verify(REQUESTS, 4096, 4)):
            share, what = longest(of, workload)
            assert share < GENERATED, (model, what)
        share, what = longest(of, prefill(1, PROMPTS))
        assert share < READ, (model, what)


def test_a_fallback_serves_rows_that_name_it_and_no_step():
    gpu = load_gpu("rtx-pro-6000")
    fallbacks = [key for key, each in gpu.kernels["sglang"].sparse.items() if each.fallback]
    assert fallbacks
    assert all(isinstance(gpu.kernels["sglang"].sparse[key], StreamKernel) for key in fallbacks)
    named = {"gpu": "rtx-pro-6000", "model": "deepseek-v4-flash", "tp": GPUS, "runtime": "sglang"}
    of = Scenario(**named, drafter="ngram", acceptance="0.5").setting
    modules = [
        each.operator
        for each in decomposed(of.latency, model_launches(of.shard, decode(64, 4096), of.runtime))
        if each.operator.kind in ("csa", "hca")
    ]
    assert modules
    rows = CalibratedLatency(gpu, "sglang", cold=False, engine="sglang")
    for module in modules:
        assert of.latency.time(module).place.startswith("vllm:")
        assert float(rows.time(module).time_us) > 20.0 * float(of.latency.time(module).time_us)


@pytest.mark.parametrize("gpu", ["h100-sxm", "h200-sxm", "b200"])
@pytest.mark.parametrize("runtime", ["vllm", "sglang", "tensorrt-llm"])
def test_a_cache_of_fewer_bytes_is_never_slower(gpu, runtime):
    """SGLang's rows of an fp8 cache on Hopper convert it first, and took six times the bf16 cache's."""
    named = {"gpu": gpu, "model": "deepseek-r1", "tp": GPUS, "runtime": runtime, "drafter": "mtp"}
    half, fp8 = (
        decode_step(Scenario(**named, kv_dtype=each).setting, REQUESTS, 4096).time_us
        for each in (None, "fp8")
    )
    assert (fp8 <= 1.01 * half).all()


@pytest.mark.parametrize("gpu", ["h200-sxm", "b200"])
@pytest.mark.parametrize("model", ["deepseek-v3", "deepseek-v3.2"])
def test_fp8_by_tensor_takes_about_as_long_as_by_block(gpu, model):
    """A module in a format of its own was the host's 235 us a layer, its cache in 16 bits for 8."""
    for runtime in RUNTIMES:
        named = {"gpu": gpu, "model": model, "tp": GPUS, "runtime": runtime, "drafter": "mtp"}
        blocks, fp8 = (
            decode_step(Scenario(**named, dtype=each).setting, REQUESTS, 8192).time_us
            for each in (None, "fp8")
        )
        assert (fp8 <= 1.3 * blocks).all(), (runtime, fp8 / blocks)


@pytest.mark.parametrize(
    ("runtime", "gpu", "rows_of"),
    [
        ("tensorrt-llm", "h200-sxm", "bf16"), ("tensorrt-llm", "b200", "bf16"), ("vllm", "b200", "bf16"),
        ("vllm", "h200-sxm", "fp8"), ("sglang", "b200", "fp8"),
    ],
)  # fmt: skip
def test_linear_layers_take_the_rows_of_the_library_that_an_engine_calls(runtime, gpu, rows_of):
    """cuBLAS is there in 16 bits: half the bytes at its bandwidth, and the arithmetic of fp8."""
    latency = Scenario(
        gpu=gpu, model="llama-3.1-70b", runtime=runtime, drafter="ngram", acceptance="0.5"
    ).latency
    halves, eighths = (Gemm(name="mlp", dtype=form, m=4, n=57_344, k=8192) for form in ("bf16", "fp8"))
    assert latency.time(eighths).place == f"sglang:{rows_of}"
    wide_us, us = (float(latency.time(each).time_us) for each in (halves, eighths))
    if rows_of == "bf16":
        assert 0.49 * wide_us < us < 0.56 * wide_us
        many_us, fp8 = float(latency.time(replace(eighths, m=8192)).time_us), load_gpu(gpu)
        at_peak_us = 2.0 * 8192 * 57_344 * 8192 / fp8.peak("fp8") * 1e6
        assert 1.1 * at_peak_us < many_us < 2.5 * at_peak_us


@pytest.mark.parametrize("gpu", ["h100-sxm", "h200-sxm"])
def test_fp8_layers_of_vllm_take_its_own_tiles_on_hopper(gpu):
    """Its tiles have 16 rows up to 16 and 64 up to 64; beyond they are those of SGLang's rows."""
    rows = np.array([1, 16, 17, 64, 65, 128, 1024])
    layer = Gemm(name="mlp", dtype="fp8", m=rows, n=14_336, k=8192)
    vllm, sglang = (
        Scenario(gpu=gpu, model="llama-3.1-70b", runtime=runtime, drafter="ngram", acceptance="0.5")
        .latency.time(layer).time_us
        for runtime in ("vllm", "sglang")
    )  # fmt: skip
    assert np.array_equal(vllm[4:], sglang[4:])
    step = vllm[2] / vllm[1]  # memory hides most of a tile that takes four times the rows
    assert 1.03 < step < 1.2
    assert sglang[2] / sglang[1] < 1.01
    assert vllm[1] / vllm[0] < 1.02


@pytest.mark.parametrize("gpu", ["a100-80gb-sxm", "a100-80gb-pcie", "a100-40gb", "l40s", "h100-sxm"])
@pytest.mark.parametrize("runtime", ["vllm-0.15", "sglang-0.5"])
@pytest.mark.parametrize("cache", [None, "fp8"])
def test_latent_attention_of_one_request_splits_its_keys(gpu, runtime, cache):
    """TensorRT-LLM's kernel of the A100 does not: 2 ms a layer at 16,384 tokens."""
    of = Scenario(gpu=gpu, model="deepseek-v2-lite", runtime=runtime, kv_dtype=cache).setting
    short, long = (decode_step(of, 1, length).time_us for length in (1024, 16384))
    assert long < 1.3 * short


@pytest.mark.parametrize("gpu", ["a100-80gb-sxm", "a100-40gb"])
@pytest.mark.parametrize("runtime", ["vllm-0.15", "sglang-0.5"])
def test_prompts_are_attended_to_as_fast_by_one_library_as_by_another(gpu, runtime):
    """Rows of FlashAttention-2 append K and V in every block, which no engine does: 3.2 times as slow."""
    of = Scenario(gpu=gpu, model="llama-3.1-8b", runtime=runtime).setting
    launches = model_launches(of.shard, prefill(1, np.array([1024, 2048, 4096, 8192, 16384])), of.runtime)
    prompts = next(each.operator for each in launches if each.operator.kind == "prefill_attention")
    measured = CalibratedLatency(load_gpu("a100-80gb-sxm"), "sglang").time(prompts).time_us
    assert of.latency.time(prompts).time_us == pytest.approx(measured, rel=0.25)


@pytest.mark.parametrize("gpu", ["h100-sxm", "h200-sxm"])
def test_experts_of_four_bits_on_hopper_multiply_as_the_kernel_that_vllm_runs(gpu):
    """Marlin: few tokens wait for weights alike, prompts for its 0.37 of the peak. Rows stay Triton's."""
    of = Scenario(gpu=gpu, model="gpt-oss-120b", runtime="vllm").setting
    launches = model_launches(of.shard, decode(np.array([1.0, 8192.0]), 1), of.runtime)
    experts = next(each.operator for each in launches if each.operator.kind == "moe")
    rows = CalibratedLatency(load_gpu(gpu), "vllm").time(experts).time_us
    few, many = of.latency.time(experts).time_us / rows
    assert 1.0 <= few < 1.1
    assert 1.5 < many < 1 / 0.366
