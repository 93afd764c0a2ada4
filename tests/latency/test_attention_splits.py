"""Attention that is split among blocks or is not: waves, turns, and kernels that walk over all keys."""

import heapq
import math
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from attention_by_hand import by_hand_us, kernels, shape
from made_up import FIT, PATH

from medusa_sim.gpus.fitted_attention import AttentionKernel
from medusa_sim.gpus.gpu import Gpu, load_gpu
from medusa_sim.latency.attention import NEVER, attention_time
from medusa_sim.latency.calibrated import CalibratedLatency
from medusa_sim.latency.latent import latent_time
from medusa_sim.latency.operator_time import Source
from medusa_sim.latency.verify_attention import (
    called_attention_time,
    whole_attention_time,
)
from medusa_sim.latency.waves import turns_unplanned
from medusa_sim.operators.latent import LatentAttention


@pytest.mark.parametrize(
    ("card", "kernels_of", "cache"),
    [("h200-sxm", "sglang", "bf16"), ("h200-sxm", "trtllm", "bf16_fp8"), ("h100-sxm", "trtllm", "bf16")],
)
@pytest.mark.parametrize("heads", [8, 16, 128])
def test_a_step_has_no_waves_where_lengths_differ(card, kernels_of, cache, heads):
    """(A9): one request more never takes a wave more, as it does in a benchmark of equal lengths (A4)."""
    gpu = load_gpu(card)
    kernel = gpu.kernel_set(kernels_of).mla[f"decode_{cache}"]
    requests = np.arange(48, 520)
    operator = LatentAttention(
        name="", kind="mla_decode", dtype="bf16", batch=requests, q_len=1, kv_len=1536, heads=heads
    )
    step_us, rows_us = (latent_time(gpu, kernel, operator, cold=cold).time_us for cold in (True, False))
    more = np.diff(step_us) / step_us[:-1]
    assert more.min() > -0.002
    assert (more * requests[:-1]).max() < 1.6  # never much more than in proportion to the requests
    assert (np.diff(rows_us) / rows_us[:-1]).max() > 0.15
    whole = (requests * np.maximum(heads // kernel.wide.tile_rows, 1)) % gpu.sms == 0
    assert step_us[whole] == pytest.approx(rows_us[whole], rel=0.03)


def last_end(requests: int, blocks_each: int, slots: int, rng: np.random.Generator) -> float:
    """When the last of blocks ends that start as they come, lengths even on 0.4 to 1.6."""
    free = [0.0] * slots
    for length in np.repeat(rng.uniform(0.4, 1.6, requests), blocks_each):
        heapq.heapreplace(free, free[0] + length)
    return max(free)


@pytest.mark.parametrize(("requests", "heads"), [(1, 32), (2, 32), (24, 8), (28, 8), (6, 32), (64, 8)])
def test_what_nobody_plans_ends_as_draws_of_it_do(requests, heads):
    """(A10): 28 requests of 8 heads on 108 SMs take 2.8 turns where a plan takes 2.1."""
    rng = np.random.default_rng(0)
    drawn = np.mean([last_end(requests, heads, 108, rng) for _ in range(40)])
    told = float(turns_unplanned(np.array(requests * heads / 108), np.array(float(requests)), 0.6))
    assert told == pytest.approx(drawn, rel=0.15)


def test_only_what_is_not_split_waits_for_the_longest():
    """(A10): splits of the keys are equal and end together; 64 requests of 8 heads are not split.

    Of 12, 96 blocks on 108 SMs, some are from 1,408 tokens on: no leap there.
    """
    gpu, decode, _ = kernels(("a100-80gb-sxm", "sglang"))
    operator = shape("decode_attention", np.array([1, 4, 64]), 1, 2048, (32, 8))
    planned, taken = (attention_time(gpu, decode, operator, plans=plans).time_us for plans in (True, False))
    assert taken[:2] == pytest.approx(planned[:2], rel=1e-12)
    assert taken[2] > 1.02 * planned[2]
    longer = shape("decode_attention", 12, 1, np.arange(512, 4096, 64), (32, 8))
    assert np.diff(attention_time(gpu, decode, longer, plans=False).time_us).min() > 0


def _of_rtx_3090(kernel: str, q_len: int, kv_len: int, group: tuple[int, int], head_dim: int) -> float:
    model = CalibratedLatency(load_gpu("rtx-3090"), "torch", kernel=kernel)
    operator = replace(shape("verify_attention", 1, q_len, kv_len, group), head_dim=head_dim)
    return float(model.time(operator).time_us)


@pytest.mark.parametrize(
    ("kv_len", "group", "head_dim", "measured"),
    [(4096, (12, 2), 256, 375.0), (32768, (12, 2), 256, 2939.0), (32768, (32, 8), 128, 1336.0)],
)
def test_flash_attention_2_without_splits_is_met_on_the_card_that_measured_it(
    kv_len, group, head_dim, measured
):
    """vllm-project/flash-attention pull request 193; with split keys predicted up to 16 times too fast."""
    found = _of_rtx_3090("varlen paged, num_splits forced to 1", 8, kv_len, group, head_dim)
    assert measured / 1.15 < found < 1.15 * measured
    assert _of_rtx_3090("varlen paged, split-KV restored", 8, kv_len, group, head_dim) < 0.6 * found


@pytest.mark.parametrize("requests", [4, 10])
@pytest.mark.parametrize(
    ("card", "flops_per_clock", "sharing"), [("a100-80gb-sxm", 2048, 0.45), ("rtx-3090", 512, None)]
)
def test_flash_attention_2_without_splits_takes_a_tile_of_products_and_its_softmax_a_key(
    card, flops_per_clock, sharing, requests
):
    """(A6): no packing, two blocks of 64 rows an SM; as patched, all SMs share the keys, a tenth to spare."""
    gpu = load_gpu(card)
    decode = AttentionKernel(wide=PATH, fit=FIT)
    operator = replace(shape("verify_attention", requests, 6, 8192, (32, 8)), dtype="fp16")
    products = 256 / flops_per_clock
    fraction = products / math.hypot(products, 0.273)
    path = msgspec.structs.replace(
        PATH, ramp_us=11.9, cta_us=0.0, row_us=0.0, packs_gqa=False, ctas_per_sm=2, whole_fraction=fraction,
        sharing=sharing or 2 * fraction - 1, split_above=NEVER,
    )  # fmt: skip
    found = whole_attention_time(gpu, decode, operator, cold=False)
    assert float(found.time_us) == pytest.approx(by_hand_us(gpu, path, operator, cold=False))
    assert found.source == Source.BORROWED
    half = 0.5 * np.log(float(found.high_us / found.low_us))
    assert half == pytest.approx(np.hypot(0.5 * np.log(1.1 / 0.9), 0.15))
    key_us = 4 * 128 * 64 / (fraction * gpu.peak("fp16") / gpu.sms) * 1e6
    walk_us = 1.1 * requests * 32 * 8192 * key_us / gpu.sms
    moved = float(operator.bytes)
    left = 1 / (1 + (moved / (0.8 * gpu.l2_bytes)) ** 8)
    memory_us = moved * (1 - left + left / 2) / (0.9 * gpu.bandwidth_bytes_per_s) * 1e6
    patched = whole_attention_time(gpu, decode, operator, splits=True, cold=False)
    assert float(patched.time_us) == pytest.approx(11.9 + 2.0 + math.hypot(walk_us, memory_us))


@pytest.mark.parametrize("splits", [True, False])
def test_a_call_from_python_reads_the_keys_for_each_query_or_walks_over_them(splits):
    """(A7), of half of the keys that a script draws up to."""
    gpu = load_gpu("b200")
    operator = shape("verify_attention", 64, 3, 4096, (32, 8))
    half = 2 * 2 * 64 * 8 * 2048 * 128
    told, band = 31.0 + 3 * half / gpu.bandwidth_bytes_per_s * 1e6, 0.1
    if not splits:
        told, band = 26.2 + math.ceil(64 * 32 / gpu.sms) * (4.0 + 11.9 * 4), 0.3
    found = called_attention_time(gpu, AttentionKernel(wide=PATH, fit=FIT), operator, splits=splits)
    assert float(found.time_us) == pytest.approx(told)
    assert (
        float(found.high_us / found.time_us)
        == float(found.time_us / found.low_us)
        == pytest.approx(np.exp(band))
    )


def test_an_engine_on_ampere_walks_over_all_keys_in_one_block_and_kernels_alone_do_not():
    a100, h100 = load_gpu("a100-80gb-sxm"), load_gpu("h100-sxm")
    lengths = np.array([1024, 32768])

    def growth(gpu: Gpu, serves: str, kv_dtype: str | None = None) -> float:
        model = CalibratedLatency(gpu, "torch", serves=serves)
        operator = replace(shape("verify_attention", 1, 6, lengths, (32, 8)), dtype="fp16", kv_dtype=kv_dtype)
        short, long = model.time(operator).time_us.tolist()
        return float(long / short)

    assert growth(a100, "vllm") > 3 * growth(a100, "")
    assert growth(a100, "vllm", "fp8") < 0.5 * growth(a100, "vllm")
    assert growth(h100, "vllm") == growth(h100, "")
    one = replace(shape("verify_attention", 4, 1, lengths, (32, 8)), dtype="fp16")
    engine, alone = (CalibratedLatency(a100, "torch", serves=name).time(one).time_us for name in ("vllm", ""))
    np.testing.assert_allclose(engine, alone)


@pytest.mark.parametrize(
    ("turns", "requests", "spread", "taken"),
    [
        # L(4) = 1 + 0.6 x 3 / 5; of two turns L(2) = 1.2, and (1 + 0.36 / 3) / 2 is left of a block
        (1.0, 4.0, 0.6, 1.36), (0.2, 4.0, 0.6, 1.36), (2.0, 4.0, 0.6, 2.0 - 0.56 + 1.2),
        (2.0, 4.0, 0.0, 2.5),
        (4.0, 9.0, 0.6, 4.0 - 0.56 + 1.0 + 0.6 * (9 * 0.75 - 1) / (9 * 0.75 + 1)),
    ],
)  # fmt: skip
def test_turns_that_nobody_plans_end_with_the_longest_of_the_late(turns, requests, spread, taken):
    assert float(turns_unplanned(np.array(turns), np.array(requests), spread)) == pytest.approx(taken)
