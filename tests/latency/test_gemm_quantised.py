"""Quantised linear layers: bytes with their scales, physics, who lends what, and what is refused."""

import os
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pytest
from common.kernel_rows import recorded_rows
from one_line import one_line

from medusa_sim.arrays import FloatArray
from medusa_sim.doubts.of_scenario import scenario_doubts
from medusa_sim.engines.runtime import load_runtime
from medusa_sim.errors import SpecError
from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.gpus.inheritance import TRANSFER_ERROR_LIBRARY
from medusa_sim.gpus.kernels import GemmKernel, GemmTile
from medusa_sim.grid.axes import Grid
from medusa_sim.grid.sweep import sweep
from medusa_sim.lab.calibrate.fitted_kernels import fitted_kernels
from medusa_sim.lab.calibrate.gemm import gemm_start, unscored_gemm
from medusa_sim.lab.calibrate.rows import Rows
from medusa_sim.latency.calibrated import CalibratedLatency
from medusa_sim.latency.gemm import gemm_choice, gemm_time
from medusa_sim.latency.operator_time import Bound, Source
from medusa_sim.operators.gemm import Gemm
from medusa_sim.operators.table import check_rows
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.step.rows import predicted_rows
from medusa_sim.units import format_of

ROWS = Path(os.environ.get("MEDUSA_SIM_DATA", Path(__file__).resolve().parents[2] / "shared/data"))
FITTED = {
    # gpu, set, format: mean error of the fit in percent at m <= 512, and of all rows
    ("a100-80gb-sxm", "trtllm", "int4"): (9.5, 8.4),
    ("h100-sxm", "sglang", "fp8_block"): (6.7, 6.6),
    ("h200-sxm", "sglang", "fp8_block"): (7.8, 8.1),
    ("b200", "sglang", "bf16"): (8.2, 7.5),
    ("b200", "sglang", "fp8"): (8.1, 7.9),
    ("b200", "sglang", "fp8_block"): (7.6, 7.8),
    ("b200", "sglang", "nvfp4"): (7.7, 8.3),
    ("gb200", "sglang", "nvfp4"): (6.6, 7.5),
    ("l40s", "trtllm", "fp8_block"): (6.8, 6.3),
    ("rtx-pro-6000", "sglang", "nvfp4"): (5.7, 4.9),
}
RECORDED = {
    "a100-80gb-sxm": "a100_sxm", "h100-sxm": "h100_sxm", "h200-sxm": "h200_sxm", "b200": "b200_sxm",
    "gb200": "gb200", "l40s": "l40s", "rtx-pro-6000": "rtx_pro_6000_server",
}  # fmt: skip


def layer(m: object, n: object, k: object, name: str) -> Gemm:
    form = format_of(name)
    return Gemm(name="layer", m=m, n=n, k=k, dtype=form.dtype, weight_dtype=form.weight_dtype)


def kernel_of(gpu: str, kernels: str, form: str) -> GemmKernel:
    return load_gpu(gpu).kernels[kernels].gemm[form]


def time_us(gpu: str, form: str, m: object, n: object = 8192, k: object = 8192) -> FloatArray:
    card = load_gpu(gpu)
    return gemm_time(card, card.kernels["sglang"].gemm[form], layer(m, n, k, form), form=form).time_us


def test_weights_are_read_with_their_scales():
    n, k = 4096, 4096
    one = {name: float(layer(1, n, k, name).weight_bytes) / (n * k) for name in ("fp8", "fp8_block", "nvfp4")}
    assert one["fp8"] == 1.0
    assert one["fp8_block"] == 1.0 + 4 / 128**2  # one fp32 for 128 x 128
    assert one["nvfp4"] == 0.5 + 1 / 16  # one byte for 16
    assert float(layer(1, n, k, "mxfp4").weight_bytes) / (n * k) == 0.5 + 1 / 32
    assert layer(64, n, k, "int4").activation_bytes == layer(64, n, k, "bf16").activation_bytes


@pytest.mark.parametrize("gpu", ["b200", "gb200", "rtx-pro-6000"])
def test_fewer_bits_decode_faster_and_wait_for_weights(gpu):
    m = np.array([1, 8, 32])
    four, eight, sixteen = (time_us(gpu, form, m, 65536) for form in ("nvfp4", "fp8_block", "bf16"))
    assert (four < 0.8 * eight).all()
    assert (eight < 0.75 * sixteen).all()
    card = load_gpu(gpu)
    found = gemm_time(card, card.kernels["sglang"].gemm["nvfp4"], layer(m, 65536, 8192, "nvfp4"))
    assert (found.bound == Bound.MEMORY).all()


@pytest.mark.parametrize("gpu", ["h100-sxm", "h200-sxm", "b200", "gb200"])
def test_block_scales_do_not_cost_more_than_sixteen_bits(gpu):
    m = np.array([1, 64, 2048, 4096])
    assert (time_us(gpu, "fp8_block", m, 16384) < time_us(gpu, "bf16", m, 16384)).all()


def test_a_kernel_that_counts_waves_takes_the_fewest():
    gpu, kernel = load_gpu("h100-sxm"), kernel_of("h100-sxm", "sglang", "fp8_block")
    assert kernel.fewest_waves
    m, n = np.array([64, 128, 256, 1024, 4096])[:, None], np.array([1024, 4096, 16384])
    chosen = gemm_choice(gpu, kernel, layer(m, n, 8192, "fp8_block"))
    tiles = np.array([(tile.m, tile.n) for tile in kernel.tiles])

    def waves(tile_m: FloatArray, tile_n: FloatArray) -> FloatArray:
        return np.asarray(np.ceil(np.ceil(m / tile_m) * np.ceil(n / tile_n) / gpu.sms))

    taken = waves(*np.moveaxis(tiles[chosen], -1, 0))
    for tile in kernel.tiles:
        usable = m >= tile.m_min
        assert (taken <= np.where(usable, waves(tile.m, tile.n), np.inf)).all()


def test_a_whole_wave_of_wide_tiles_is_slow_on_hopper():
    # 512 x 8192 fills one wave with 128 x 256 tiles; twice the tokens, in two waves, take hardly longer
    one, two = time_us("h100-sxm", "fp8_block", np.array([512, 1024]), 8192, 8192)
    assert one > 0.9 * two


def test_int4_of_the_a100_is_measured_and_lent_with_a_wide_band():
    at = {"m": 8, "n": 16384, "k": 8192}
    for gpu, source in (
        ("a100-80gb-sxm", Source.CALIBRATED),
        ("a100-40gb", Source.BORROWED),
        ("l4", Source.BORROWED),
    ):
        card = load_gpu(gpu)
        packed = CalibratedLatency(card, "sglang").time(layer(**at, name="int4"))
        plain = CalibratedLatency(card, "sglang").time(layer(**at, name="bf16"))
        assert packed.source.item() == source
        assert 0.24 < packed.time_us / plain.time_us < 0.5
        assert packed.high_us / packed.low_us > 1.2


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"gpu": "h100-sxm", "dtype": "nvfp4"}, "h100-sxm.*'nvfp4'.*it has: .*fp8_block"),
        ({"gpu": "a100-80gb-sxm", "dtype": "fp8_block"}, "a100-80gb-sxm has no fp8 arithmetic, only fp16"),
        ({"gpu": "b200", "dtype": "int8"}, "b200.*'int8'.*it has: .*nvfp4"),
    ],
)
def test_a_format_without_kernels_is_refused_in_one_line(given, words):
    with one_line(SpecError, match=words):
        next(sweep([Scenario(model="llama-3.1-8b", **given)], Grid.of([1], [512], [1, 4])))


def test_lenders_are_those_of_the_kernels_that_a_model_uses():
    assert Scenario(gpu="a100-80gb-pcie", model="llama-7b").kernel_fits.lenders == ()
    packed = Scenario(gpu="a100-80gb-pcie", model="llama-7b", weight_dtype="int4")
    assert packed.kernel_fits.lenders == ("a100-80gb-sxm:sglang:int4",)
    assert packed.kernel_fits.linear is packed.kernel_fits.by_key["gemm.int4"]
    own = Scenario(gpu="b200", model="llama-3.1-8b", dtype="nvfp4")
    assert not any(name.split(":")[2:] for name in own.kernel_fits.lenders)  # linear layers are its own


def test_what_a_kernel_unpacks_unmeasured_is_stated():
    packed = Scenario(gpu="l4", model="qwen2.5-14b", weight_dtype="int8", kv_dtype="fp8")
    assert packed.kernel_fits.unpacks == ("int8 weights", "a KV cache in fp8")
    assert packed.model.numbers == "bf16, int8 weights, fp8 KV cache"
    assert any(
        "unpacking of int8 weights and a KV cache in fp8 on l4" in line for line in scenario_doubts(packed)
    )
    lent = Scenario(gpu="l4", model="qwen2.5-14b", weight_dtype="int4")
    assert lent.kernel_fits.unpacks == ()
    assert any("a100-80gb-sxm:sglang" in line for line in scenario_doubts(lent))
    block = Scenario(gpu="h100-sxm", model="llama-3.1-8b", dtype="fp8_block")
    assert block.kernel_fits.unpacks == ()


def test_what_is_known_of_a_library_is_where_a_fit_begins():
    deep = gemm_start("sglang", "fp8_block", load_gpu("h200-sxm"))
    assert {(tile.m, tile.n) for tile in deep.tiles if tile.pace_alone > 1} == {
        (128, 192),
        (128, 256),
        (256, 96),
    }
    assert all(tile.m <= 128 or tile.n <= 128 for tile in deep.tiles)
    assert GemmTile(m=128, n=208, m_min=65) not in deep.tiles  # two scale groups that do not divide
    assert {tile.m for tile in gemm_start("sglang", "nvfp4", load_gpu("b200")).tiles} == {128, 256}
    assert gemm_start("mine", "nvfp4", load_gpu("b200")).quantise_ratio == 0.0


@pytest.mark.skipif(not (ROWS / "moe_tp").is_dir(), reason=f"no measured data at {ROWS}; set MEDUSA_SIM_DATA")
@pytest.mark.parametrize(("gpu", "kernels", "form"), FITTED)
def test_measured_rows_are_met(gpu, kernels, form):
    rows = recorded_rows(ROWS / "moe_tp" / "quant_gemm.parquet")
    names = [name for name in rows["dtype"].unique() if format_of(name).key == form]
    kept = rows[(rows["gpu"] == RECORDED[gpu]) & (rows["engine"] == kernels) & rows["dtype"].isin(names)]
    told = predicted_rows(kept.reset_index(drop=True), load_gpu(gpu), load_runtime("kernel"), cold=False)
    assert set(told["kernels"]) == {f"{kernels}:{form}"}
    error = 100.0 * np.abs(told["predicted_us"] / told["time_us"] - 1.0)
    small, every = FITTED[gpu, kernels, form]
    assert error[told["m"] <= 512].mean() <= small
    assert error.mean() <= every


def test_rows_of_a_format_are_fitted_under_its_name():
    gpu, kernel = load_gpu("a100-80gb-sxm"), kernel_of("a100-80gb-sxm", "sglang", "int4")
    m, n = (size.ravel().astype(float) for size in np.meshgrid([1, 16, 64, 256, 1024], [2048, 4096, 8192]))
    operator = layer(m, n, np.full(m.shape, 4096.0), "int4")
    measured_us = gemm_time(gpu, kernel, operator, form="int4").time_us
    told = pd.DataFrame({"dtype": "int4_wo", "m": m, "n": n, "k": 4096, "time_us": measured_us})
    twice = pd.concat([told, told.assign(k=8192, time_us=2.0 * measured_us)], ignore_index=True)
    (found,) = fitted_kernels(check_rows(twice, "made"), gpu, "made", kernel_set="trtllm")
    assert (found.section, found.key) == ("gemm", "int4")
    assert isinstance(found.kernel, GemmKernel)
    assert found.kernel.unpack_rows > 0.0
    assert found.kernel.fit.fit_error < 0.2


def test_a_pinned_parameter_stays():
    gpu = load_gpu("a100-80gb-sxm")
    kernel = kernel_of("a100-80gb-sxm", "sglang", "int4")
    m, n = (size.ravel().astype(float) for size in np.meshgrid([1, 64, 1024], [2048, 4096, 8192]))
    operator = layer(m, n, np.full(m.shape, 4096.0), "int4")
    rows = Rows(operator, gemm_time(gpu, kernel, operator, form="int4").time_us)
    start = msgspec.structs.replace(gemm_start("sglang", "int4", gpu), ramp_us=9.0)
    assert unscored_gemm(rows, gpu, start, pinned=("ramp_us",)).ramp_us == 9.0
    assert unscored_gemm(rows, gpu, start).ramp_us != 9.0


@pytest.mark.parametrize("name", ["h100-sxm", "h200-sxm"])
def test_the_clusters_of_one_library_are_lent_with_their_doubt(name):
    """SGLang's fp8 layers on Hopper compute 512 rows for 257; nobody measured whether another's do."""
    gpu, made = (
        load_gpu(name),
        Gemm(name="x", kind="gemm", dtype="fp8", m=np.array([256, 257]), n=25600, k=5120),
    )
    own, lent = (CalibratedLatency(gpu, "sglang", library=each).time(made) for each in ("sglang", "vllm"))
    assert own.time_us[1] > 1.3 * own.time_us[0]
    np.testing.assert_array_equal(own.time_us, lent.time_us)
    own_half, half = (0.5 * np.log(each.high_us / each.low_us)[0] for each in (own, lent))
    assert half == pytest.approx(np.hypot(own_half, TRANSFER_ERROR_LIBRARY), rel=1e-9)
    assert lent.low_us[1] / lent.time_us[1] < 0.85 * lent.low_us[0] / lent.time_us[0]
    assert (lent.source == Source.BORROWED).all()
    kept, other = (CalibratedLatency(gpu, "sglang", library=each).whose(made) for each in ("sglang", "vllm"))
    assert kept != other


@pytest.mark.parametrize("name", ["mi300x", "mi325x", "mi355x"])
def test_other_vendors_have_neither_clusters_nor_rules_for_tiles(name):
    for held in load_gpu(name).kernels.values():
        for kernel in held.gemm.values():
            assert not kernel.fewest_waves
            assert {(tile.cluster, tile.m_min, tile.m_max) for tile in kernel.tiles} == {(1, 1, 0)}


@pytest.mark.parametrize("name", ["h100-sxm", "h200-sxm"])
@pytest.mark.parametrize("n", [24576, 25600, 28672, 32768])
def test_a_row_of_tiles_that_no_row_measured_takes_no_factor_of_two(name, n):
    """SGLang's blocks on Hopper, gate and up of an 8B: 1.5 ms at 64 rows, 3.2 at 80 and 1.9 at 192."""
    gpu = load_gpu(name)
    made = Gemm(name="x", kind="gemm", dtype="fp8", weight_dtype="fp8_block",
                m=np.array([64, 80, 128, 192, 256]), n=n, k=4096)  # fmt: skip
    time_us = CalibratedLatency(gpu, "sglang").time(made).time_us
    assert (time_us[1:3] < 1.75 * time_us[0]).all()
    assert (time_us[3:] > 0.97 * time_us[1]).all()
