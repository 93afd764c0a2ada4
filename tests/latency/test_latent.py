"""Latent attention: kernels of decoding over compressed keys, and modules with their projections."""

import math
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up import FIT, PATH, latent

from medusa_sim.gpus.fitted_attention import LatentKernel, Projections
from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.lab.calibrate.latent import fit_latent
from medusa_sim.lab.calibrate.rows import Rows
from medusa_sim.latency.calibrated import CalibratedLatency
from medusa_sim.latency.latent import latent_time
from medusa_sim.latency.operator_time import Source
from medusa_sim.latency.roofline import memory_time_us
from medusa_sim.operators.latent import LatentAttention

GPU = load_gpu("h100-sxm")
KERNEL = LatentKernel(wide=PATH, fit=FIT)
TOKENWISE = msgspec.structs.replace(PATH, by_token=True, tile_keys=128, split_above=0)
FEW = msgspec.structs.replace(TOKENWISE, tile_rows=16)
BY_TOKEN = LatentKernel(wide=TOKENWISE, narrow=FEW, narrow_rows=32, fit=FIT)
MODULE = LatentKernel(
    wide=PATH,
    projections=Projections(
        launch_us=20.0, token_us=0.05, head_us=1e-3, bandwidth_fraction=0.8, peak_fraction=0.7
    ),
    fit=FIT,
)


def time_us(operator: LatentAttention, kernel: LatentKernel = KERNEL, *, cold: bool = True) -> float:
    return float(latent_time(GPU, kernel, operator, cold=cold).time_us)


@given(
    kernel=st.sampled_from([KERNEL, BY_TOKEN]), heads=st.sampled_from([1, 2, 16, 64, 128]),
    batch=st.sampled_from([1, 4, 64]), step=st.integers(0, 10),
)  # fmt: skip
def test_time_does_not_fall_with_longer_caches_and_never_below_memory(kernel, heads, batch, step):
    keys = 128 * 2**step
    shorter, longer = (latent(heads=heads, batch=batch, kv_len=length) for length in (keys, 2 * keys))
    assert time_us(longer, kernel) >= time_us(shorter, kernel)
    assert time_us(longer, kernel) >= float(memory_time_us(GPU, longer))


@given(
    heads=st.sampled_from([1, 8, 16, 32]), queries=st.sampled_from([2, 4]), keys=st.sampled_from([512, 8192])
)
def test_candidates_take_as_long_as_so_many_heads(heads, queries, keys):
    several = latent_time(GPU, KERNEL, latent(heads=heads, q_len=queries, kv_len=keys))
    wide = latent_time(GPU, KERNEL, latent(heads=heads * queries, kv_len=keys))
    assert float(several.time_us) == pytest.approx(float(wide.time_us))
    assert float(several.high_us / several.low_us) > float(wide.high_us / wide.low_us)
    assert several.source == Source.EXTRAPOLATED
    assert wide.source == Source.CALIBRATED


def test_several_queries_stand_beside_public_rows():
    """FlashMLA on an H100 (github.com/ai-bot-pro/achatbot/pull/123); FlashAttention-3 (vLLM PR 27363)."""
    kernel = GPU.kernels["sglang"].mla["decode_bf16"]
    for heads, measured_us in ((16, 218.0), (32, 223.0)):
        pair = latent(heads=heads, batch=128, q_len=2, kv_len=4096)
        assert time_us(pair, kernel, cold=False) == pytest.approx(measured_us, rel=0.05)
    rows = [latent(heads=128, batch=64, q_len=queries) for queries in (1, 2, 8, 32)]
    grows = np.array([time_us(row, kernel, cold=False) for row in rows])
    band = latent_time(GPU, kernel, rows[-1], cold=False)
    assert grows / grows[0] == pytest.approx(np.array([59.0, 103.0, 355.0, 1301.0]) / 59.0, rel=0.2)
    assert float(band.low_us) <= 1301.0 / 59.0 * grows[0] <= float(band.high_us)


def test_rows_that_name_a_kernel_of_vllm_take_it():
    """Whole calls of FLASHMLA and FLASH_ATTN_MLA (vLLM PR 27363): 485 and 355 us with 64 requests of 8."""
    row = latent(heads=128, batch=64, q_len=8)
    named = {
        name: CalibratedLatency(GPU, "sglang", kernel=name).time(row)
        for name in ("FLASHMLA", "FLASH_ATTN_MLA (FA3)", "")
    }
    assert float(named["FLASHMLA"].time_us) == pytest.approx(485.0, rel=0.1)
    assert float(named["FLASH_ATTN_MLA (FA3)"].time_us) == pytest.approx(355.0, rel=0.2)
    assert named["FLASHMLA"].place == "vllm:decode_bf16@FLASHMLA"
    # what no library takes by itself serves only who asks for it
    for library in ("", "vllm"):
        step = CalibratedLatency(GPU, "sglang", library=library).time(row)
        assert step.place == "sglang:decode_bf16"
        assert float(step.time_us) == float(named[""].time_us)


def test_a_verification_step_is_free_while_its_rows_fit_a_tile():
    one, four, many = (time_us(latent(batch=64, kv_len=8192, q_len=queries)) for queries in (1, 4, 64))
    assert four == pytest.approx(one, rel=0.05)
    assert many > 1.5 * one


def test_a_module_is_its_kernel_and_its_projections():
    alone, module = latent(heads=128, batch=8), replace(latent(heads=128, batch=8), scope="module")
    around = sum(float(memory_time_us(GPU, each)) for each in module.projections)
    assert time_us(module, MODULE) > time_us(alone) + 20.0 + around
    small = replace(module, gemm_dtype="fp8_block")
    assert time_us(small, MODULE) < time_us(module, MODULE)


def test_projections_of_a_module_are_those_of_the_equations():
    """(U3), (U4): rows padded to 64 and columns to 128, on every multiprocessor at least."""
    alone = latent(heads=128, batch=100)
    module = replace(alone, scope="module")
    told = time_us(alone) + 20.0 + 100 * (0.05 + 1e-3 * 128)
    for each in module.projections:
        tiles = max(math.ceil(float(each.m) / 64) * math.ceil(float(each.n) / 128), GPU.sms)
        memory_us = float(each.bytes) / (0.8 * GPU.bandwidth_bytes_per_s) * 1e6
        told += math.hypot(
            memory_us, 2 * 64 * 128 * float(each.k) * tiles / (0.7 * GPU.peak(each.dtype)) * 1e6
        )
    assert time_us(module, MODULE) == pytest.approx(told)


@pytest.mark.parametrize(
    ("shape", "rows", "tile", "splits", "blocks", "waves"),
    [
        ((8, 1, 16), 16, 16, 16, 128, 1), ((8, 1, 32), 16, 16, 8, 128, 1), ((8, 4, 16), 16, 16, 4, 128, 1),
        ((8, 1, 128), 64, 64, 8, 128, 1), ((1, 1, 8), 8, 16, 16, 16, 1), ((64, 1, 32), 16, 16, 1, 128, 1),
        ((64, 2, 32), 16, 16, 1, 256, 2), ((100, 1, 128), 64, 64, 1, 200, 2),
    ],
)  # fmt: skip
def test_blocks_by_token_wait_for_the_longest_sequence(shape, rows, tile, splits, blocks, waves):
    """(U5), number by number: 4,096 keys on 132 SMs, requests of unequal lengths."""
    batch, queries, heads = shape
    row = latent(batch=batch, q_len=queries, heads=heads, kv_len=4096)
    key_us = 4 * row.head_dim * tile / (0.7 * GPU.peak("bf16") / GPU.sms) * 1e6
    first_us = 128 * key_us * 0.7 / 0.6
    block_us = 3.0 + 0.01 * rows + first_us + (4096 / splits - 128) * key_us
    walk_us = (waves + 0.6 * waves**0.5 * (batch - 1) / (batch + 1)) * block_us
    memory_us = float(row.bytes) / (0.9 * GPU.bandwidth_bytes_per_s) * 1e6
    combine_us = 2.0 + 0.4 * math.log2(splits) if splits > 1 else 0.0
    assert blocks == batch * queries * math.ceil(heads / tile) * splits
    assert time_us(row, BY_TOKEN) == pytest.approx(7.0 + combine_us + math.hypot(walk_us, memory_us))


def test_a_fit_on_blackwell_has_tiles_of_few_and_of_many_heads():
    card = load_gpu("b200")
    grid = np.meshgrid([1.0, 8.0, 64.0, 256.0], [512.0, 4096.0, 32768.0], [1.0, 8.0, 16.0, 32.0, 128.0])
    batch, keys, heads = (axis.ravel() for axis in grid)
    operator = latent(batch=batch, kv_len=keys, heads=heads, q_len=np.ones_like(batch))
    rows = Rows(operator, latent_time(card, BY_TOKEN, operator, cold=False).time_us)
    found = fit_latent(rows, card, source="made up")
    assert (found.narrow_rows, found.narrow.tile_rows, found.wide.tile_rows) == (32, 16, 64)
    assert found.wide.by_token
    assert found.narrow.by_token
    assert found.fit.fit_error < 0.02
    assert found.fit.heldout_error < 0.05


def test_a_fit_finds_the_kernel_that_made_the_rows():
    grid = np.meshgrid([1.0, 8.0, 64.0], [64.0, 512.0, 4096.0, 32768.0], [1.0, 8.0, 32.0, 128.0])
    batch, keys, heads = (axis.ravel() for axis in grid)
    operator = latent(batch=batch, kv_len=keys, heads=heads, q_len=np.ones_like(batch))
    rows = Rows(operator, latent_time(GPU, KERNEL, operator, cold=False).time_us)
    found = fit_latent(replace(rows, kernel="flash"), GPU, source="made up")
    assert found.name == "flash"
    assert found.fit.fit_error < 0.02
    between = latent(batch=16, kv_len=8192, heads=64)
    assert time_us(between, found, cold=False) == pytest.approx(time_us(between, cold=False), rel=0.1)
