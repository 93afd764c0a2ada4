"""What an fp8 cache costs beside kernels in 16 bits: entries that can be met, and vLLM's own measurements.

These are fits `ms a token = slope length + intercept` for one request, vLLM 0.19.1 (vLLM blog, 2026-04-22,
fp8-kvcache).
"""

import numpy as np
import pytest

import medusa_sim as ms
from medusa_sim.engines.fp8_caches import FP8_CACHES, fp8_cache_of
from medusa_sim.gpus.gpu import load_gpu

LENGTHS = [256, 1024, 4096, 16384, 65536, 125000]


def steps_ms(kv_dtype, lengths=LENGTHS, **asked):
    """Plain steps of one request, by context."""
    table = ms.Scenario(kv_dtype=kv_dtype, **asked).sweep(1, lengths, candidates=[1])
    return table["decode_step_us"].to_numpy() / 1e3


def test_every_entry_can_be_met_on_a_card_that_exists():
    cards = ("a100-80gb-sxm", "l40s", "h100-sxm", "b200", "rtx-pro-6000")
    known = {load_gpu(name).architecture for name in cards}
    for cache in FP8_CACHES:
        assert set(cache.generations) <= known
        found = {
            fp8_cache_of(engine, generation, min(cache.widest, 256.0))
            for engine in cache.engines
            for generation in cache.generations
        }
        assert found == {cache}
    assert fp8_cache_of("trtllm", "hopper", 128.0) is None
    assert fp8_cache_of("", "hopper", 128.0) is None


@pytest.mark.parametrize(
    ("gpu", "model", "slope", "even_at"),
    [
        ("h100-sxm", "llama-3.1-8b", 0.54, 7010.0),
        # "roughly 4k"; its fits meet at 3,600
        ("b200", "llama-3.1-8b", 0.54, 3600.0),
        # with windowed layers in 16 bits 71 % and 7,659 tokens, with all in fp8 80 % and 22,109
        ("h100-sxm", "gpt-oss-20b", 0.71, 15000.0),
    ],
)
def test_an_fp8_cache_breaks_even_where_vllm_says_so(gpu, model, slope, even_at):
    """Slopes over context, fp8 over 16 bits, within a tenth; where they meet, within a factor of two."""
    asked = {"gpu": gpu, "model": model, "runtime": "vllm-0.18"}
    whole, half = (np.polyfit(LENGTHS, steps_ms(kv, **asked), 1) for kv in ("bf16", "fp8"))
    assert half[0] / whole[0] == pytest.approx(slope, rel=0.1)
    assert even_at / 2.0 < (half[1] - whole[1]) / (whole[0] - half[0]) < even_at * 2.0


def test_steps_of_one_request_are_those_of_vllm_s_page():
    """Llama-3.1-8B on an H100 and a B200, slopes and intercepts: within 7 %."""
    for gpu, kv_dtype, intercept, slope in (
        ("h100-sxm", "bf16", 6.44, 4.37e-5),
        ("h100-sxm", "fp8", 6.58, 2.37e-5),
        ("b200", "bf16", 3.93, 1.80e-5),
        ("b200", "fp8", 3.96, 9.72e-6),
    ):
        asked = {"gpu": gpu, "model": "llama-3.1-8b", "runtime": "vllm-0.18"}
        found = np.polyfit(LENGTHS, steps_ms(kv_dtype, **asked), 1)
        assert found == pytest.approx((slope, intercept), rel=0.07), (gpu, kv_dtype)


@pytest.mark.parametrize("gpu", ["h100-sxm", "b200", "l40s", "rtx-pro-6000"])
def test_sglang_s_fp8_cache_costs_launches_before_it_saves_bytes(gpu):
    asked = {"gpu": gpu, "model": "llama-3.1-8b", "runtime": "sglang"}
    whole, half = (steps_ms(kv, [64, 100_000], **asked) for kv in ("bf16", "fp8"))
    launch_us = fp8_cache_of("sglang", load_gpu(gpu).architecture, 128.0).launch_us
    assert (half - whole)[0] == pytest.approx(32 * launch_us / 1e3, rel=0.3)
    assert half[1] < whole[1]


def test_what_is_not_known_costs_nothing():
    """TensorRT-LLM's kernels quantise as they load."""
    asked = {"gpu": "h100-sxm", "model": "llama-3.1-8b", "runtime": "tensorrt-llm"}
    whole, half = (steps_ms(kv, [64], **asked) for kv in ("bf16", "fp8"))
    assert half == pytest.approx(whole, rel=0.005)
