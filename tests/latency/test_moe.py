"""Layers of experts: what their time must do, whatever the parameters, and which kernel is chosen."""

import dataclasses
import math
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from one_line import one_line

from medusa_sim.arrays import as_float
from medusa_sim.engines.runtime import load_runtime
from medusa_sim.errors import SpecError
from medusa_sim.gpus.fitted_experts import ExpertKernel, ExpertTile
from medusa_sim.gpus.gpu import Gpu, load_gpu
from medusa_sim.gpus.gpu_names import gpu_names
from medusa_sim.gpus.kernels import KernelSet
from medusa_sim.lab.calibrate.driver import UNFITTED
from medusa_sim.lab.calibrate.moe import TILES, rules_of
from medusa_sim.latency.calibrated import CalibratedLatency
from medusa_sim.latency.choice import Asked, choose
from medusa_sim.latency.moe import SPREAD_ERROR, _end_tokens, experts_time
from medusa_sim.latency.operator_time import Source
from medusa_sim.latency.roofline import roofline_time_us
from medusa_sim.operators.experts import Experts
from medusa_sim.operators.operator import Size
from medusa_sim.units import BYTES_PER_ELEMENT, format_of

GPU = load_gpu("h100-sxm")
KERNEL = ExpertKernel(
    ramp_us=20.0, expert_us=0.005, token_us=0.01, pair_us=0.001, bandwidth_fraction=0.9, peak_fraction=0.5,
    activation_ratio=0.8, load_ratio=4.0, tile_k=300.0, memory_norm=2.0, step_norm=8.0, wave_rounding=0.5,
    contention=0.1, throttle=0.2, throttle_us=500.0, tiles=TILES, fit=UNFITTED,
)  # fmt: skip
TOKENS = np.array([1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096])


def layer(tokens: Size = 8, *, hit: Size | None = None, **sizes: Size) -> Experts:
    """A layer of 128 experts, 8 a token; without overlap where no union is given."""
    rows = 8.0 * as_float(tokens)
    free = np.minimum(128.0, rows) if hit is None else hit
    given: dict[str, Size] = {"hidden": 2048, "inter": 768, "experts": 128, "topk": 8, "local_experts": 128}
    return Experts(name="moe", dtype="bf16", tokens=tokens, rows=rows, hit=free, **given | sizes)


def time_us(operator: Experts, kernel: ExpertKernel = KERNEL) -> np.ndarray:
    return experts_time(GPU, kernel, operator).time_us


def by_hand_us(gpu: Gpu, kernel: ExpertKernel, tile: ExpertTile, operator: Experts, *, cold: bool) -> float:
    """The equations of the module's docstring, of one layer, number by number."""
    tokens, rows, hit, hidden, inter, experts = (
        float(getattr(operator, name)) for name in ("tokens", "rows", "hit", "hidden", "inter", "experts")
    )
    x_bytes, w_bytes = BYTES_PER_ELEMENT[operator.dtype], BYTES_PER_ELEMENT[operator.stored_dtype]
    bandwidth, peak = gpu.bandwidth_bytes_per_s / 1e6, gpu.peak(operator.dtype) / 1e6
    first = inter * (2 if operator.gated or kernel.gates_all else 1)

    def longer(one: float, other: float, norm: float) -> float:
        return max(one, other) * (1 + (min(one, other) / max(one, other)) ** norm) ** (1 / norm)

    byte_us = 1 / (kernel.bandwidth_fraction * bandwidth)
    if not cold:
        woken = w_bytes * hit * hidden * (first + inter)
        share = 1 / (1 + (woken / (kernel.l2_fill * gpu.l2_bytes)) ** kernel.l2_sharpness)
        byte_us *= 1 - share + share / kernel.l2_ratio
    y = 2 * rows * hidden * (first + inter) / peak
    arithmetic = 2 * tile.rows * tile.columns * gpu.sms / (kernel.peak_fraction * peak)
    loads = (tile.rows * x_bytes + tile.columns * w_bytes) * gpu.sms / (kernel.load_ratio * bandwidth)
    step = longer(arithmetic, loads, kernel.step_norm)
    step *= 1 + kernel.throttle * y / (y + kernel.throttle_us)
    time = kernel.ramp_us + kernel.expert_us * experts + kernel.token_us * tokens + kernel.pair_us * rows
    time += (
        2
        * (2 * tokens * hidden + rows * (hidden + first + inter + hidden))
        / (kernel.activation_ratio * bandwidth)
    )
    for n, k, is_second in ((first, hidden, False), (hidden, inter, True)):
        slower = tile.slower * (kernel.unaligned_ratio if is_second and inter % 16 else 1)
        x = float(operator.padded_rows(tile.rows)) / tile.rows * math.ceil(n / tile.columns) / gpu.sms
        waves = 1 - kernel.contention * (1 - x)
        if x > 1:
            waves = kernel.wave_rounding * math.ceil(x) + (1 - kernel.wave_rounding) * x
        tiles = slower * waves * (k + kernel.tile_k) * step
        time += longer(slower * hit * n * k * w_bytes * byte_us, tiles, kernel.memory_norm)
    return max(time, float(roofline_time_us(gpu, operator))) if cold else time


@pytest.mark.parametrize("cold", [True, False])
def test_the_time_with_each_tile_is_that_of_the_equations(cold):
    """Of shipped kernels with rows of their own, a tile at a time, of a half-width gate and odd widths."""
    of_own = [
        (gpu, kernel, format_of(form.partition("@")[0]))
        for gpu in map(load_gpu, gpu_names())
        for kernels in gpu.kernels.values()
        for form, kernel in kernels.moe.items()
        if not kernel.fit.inherited_from
    ]
    every = msgspec.structs.replace(KERNEL, unaligned_ratio=1.5, l2_ratio=3.0)
    layers = [layer(8, inter=88), layer(300, hit=100, gated=False), layer(4000, hidden=4096, inter=1408)]
    for gpu, kernel, form in [*of_own, (GPU, every, format_of("bf16"))]:
        for tile in {each.rows: each for each in (*kernel.tiles, *kernel.default_tiles)}.values():
            alone = msgspec.structs.replace(kernel, tiles=(tile,), default_tiles=(), tuned=())
            for made in layers:
                one = dataclasses.replace(made, dtype=form.dtype, weight_dtype=form.weight_dtype)
                told = by_hand_us(gpu, kernel, tile, one, cold=cold) * kernel.fit.slower
                found = float(experts_time(gpu, alone, one, cold=cold).time_us)
                assert found == pytest.approx(told, rel=1e-9), (gpu.name, form, tile)


def test_time_grows_with_the_union_and_never_beats_the_roofline():
    hit = np.arange(8, 129)
    grown = time_us(layer(16, hit=hit))
    assert np.all(np.diff(grown) > 0.0)
    assert np.all(grown >= roofline_time_us(GPU, layer(16, hit=hit)))


@pytest.mark.parametrize("changed", [{}, {"wave_rounding": 0.01}, {"memory_norm": 8.0}])
def test_more_tokens_are_never_faster(changed):
    kernel = msgspec.structs.replace(KERNEL, **changed)
    assert np.all(np.diff(time_us(layer(TOKENS), kernel)) > 0.0)


def test_a_rule_holds_where_nothing_was_tuned():
    rule = rules_of("bf16", GPU)[1]
    ruled = msgspec.structs.replace(KERNEL, default_tiles=rule.default_tiles, tuned=rule.tuned)
    untuned = layer(TOKENS, inter=1024)
    assert np.all(time_us(untuned, ruled) >= time_us(untuned) - 1e-6)
    step = time_us(layer(129, inter=1024), ruled) / time_us(layer(128, inter=1024), ruled)
    assert step > 1.03  # beyond one token an expert the library takes larger tiles
    np.testing.assert_allclose(time_us(layer(TOKENS, inter=768), ruled), time_us(layer(TOKENS, inter=768)))


def test_a_rule_by_rows_of_an_expert_steps_where_its_tiles_end():
    rule = next(each for each in rules_of("fp8_block", GPU) if len(each.default_tiles) == 5)
    tiles = tuple(
        msgspec.structs.replace(tile, slower=1.0 if place == 0 else 1.3)
        for place, tile in enumerate(rule.default_tiles)
    )
    ruled = msgspec.structs.replace(KERNEL, default_tiles=tiles)
    at = {tokens: float(time_us(layer(tokens, inter=1024), ruled)) for tokens in (64, 128, 129)}
    assert at[128] / at[64] < 1.05  # eight rows an expert and fewer: one tile
    assert at[129] / at[128] > 1.15


def test_widths_that_are_no_multiple_of_16_and_gates_that_are_not_there():
    slow = msgspec.structs.replace(KERNEL, unaligned_ratio=3.0)
    assert time_us(layer(64, inter=88), slow) > 1.3 * time_us(layer(64, inter=88))
    assert time_us(layer(64, inter=96), slow) == time_us(layer(64, inter=96))
    plain = layer(64, gated=False)
    everything = msgspec.structs.replace(KERNEL, gates_all=True)
    assert time_us(plain) < time_us(plain, everything) == time_us(layer(64))


def test_a_kernel_that_counts_problems_takes_less_where_a_gpu_holds_fewer_experts():
    """Kimi-K2 in blocks of fp8 on an H100, one token: 50 us with 48 of 384 experts, 153 with parts of all."""
    held = msgspec.structs.replace(KERNEL, counts_held=True)
    few = layer(1, hit=1, local_experts=16)
    assert time_us(few) - time_us(few, held) == pytest.approx(112 * KERNEL.expert_us)
    assert time_us(layer(1)) == time_us(layer(1), held)
    kernel = load_gpu("h100-sxm").kernels["trtllm"].moe["fp8_block"]
    sizes = {"hidden": 7168, "experts": 384, "inter": 2048, "local_experts": 48}
    one = dataclasses.replace(layer(1, hit=1, **sizes), dtype="fp8_block", rows=1.0)
    assert experts_time(GPU, kernel, one, cold=False).time_us == pytest.approx(50.0, rel=0.15)


def test_a_kernel_that_walks_over_all_pairs_pays_for_those_of_other_gpus():
    """Sorting and passes as of the whole layer, products as of the pairs that a GPU has."""
    walks = msgspec.structs.replace(KERNEL, walks_all=True)
    whole = layer(4096)
    own = dataclasses.replace(layer(4096, local_experts=16, hit=16), rows=4096.0)
    dropped = 4096.0 * 7.0
    passed_us = 2.0 * dropped * (2 * 2048 + 3 * 768) / (0.8 * GPU.bandwidth_bytes_per_s / 1e6)
    assert time_us(own, walks) - time_us(own) == pytest.approx(0.001 * dropped + passed_us)
    assert time_us(whole, walks) == time_us(whole)
    assert time_us(own, walks) < time_us(whole)


def gpu_with(**sets: KernelSet) -> Gpu:
    return dataclasses.replace(GPU, kernels=sets)


def named(name: str, ramp_us: float) -> ExpertKernel:
    return msgspec.structs.replace(KERNEL, name=name, ramp_us=ramp_us)


def test_a_row_chooses_the_kernel_of_its_engine_and_name_else_the_nearest_which_is_stated():
    gpu = gpu_with(
        sglang=KernelSet(moe={"bf16": named("triton", 10.0), "bf16@cutlass": named("cutlass", 20.0)}),
        vllm=KernelSet(moe={"bf16": named("triton", 30.0)}),
    )

    def place(engine: str, kernel: str) -> tuple[str, bool]:
        found = CalibratedLatency(gpu, "sglang", engine=engine, kernel=kernel).time(layer())
        return found.place, bool(found.source == Source.CALIBRATED)

    assert place("", "") == ("sglang:bf16", True)
    assert place("vllm", "") == ("vllm:bf16", True)
    assert place("sglang", "cutlass") == ("sglang:bf16@cutlass", True)
    assert place("sglang", "new") == ("sglang:bf16", False)
    assert place("trtllm", "cutlass") == ("sglang:bf16@cutlass", False)
    asked = CalibratedLatency(gpu, "sglang", engine="vllm").time(layer())
    nearest = CalibratedLatency(gpu, "sglang", engine="vllm", kernel="other").time(layer())
    assert nearest.time_us == asked.time_us
    assert nearest.high_us > asked.high_us
    assert nearest.low_us < asked.low_us


def test_another_format_is_extrapolated_and_a_gpu_without_kernels_refuses():
    gpu = gpu_with(sglang=KernelSet(moe={"bf16": KERNEL}))
    packed = dataclasses.replace(layer(64), weight_dtype="int4")
    latency = CalibratedLatency(gpu, "sglang")
    assert latency.time(packed).source == Source.EXTRAPOLATED
    assert latency.time(packed).time_us < latency.time(layer(64)).time_us
    assert latency.time(dataclasses.replace(layer(64), dtype="fp16")).source == Source.CALIBRATED
    with one_line(SpecError, match=r"no moe kernel for 'bf16' \(it has: none\)"):
        CalibratedLatency(gpu_with(sglang=KernelSet()), "sglang").time(layer())


def test_an_engine_takes_its_own_kernels_of_experts_from_a_relative_before_anothers_of_the_gpu():
    """Blocks of fp8 at 16 tokens: 4 % off between an H100 and an H200, 46 between libraries."""
    own = KernelSet(moe={"bf16": named("triton", 30.0)})
    others = KernelSet(moe={"bf16": named("triton", 10.0)})
    measured = CalibratedLatency(gpu_with(sglang=others, vllm=own), "sglang", library="vllm").time(layer())
    assert measured.place == "vllm:bf16"
    assert measured.source == Source.CALIBRATED
    lent = msgspec.structs.replace(KERNEL.fit, inherited_from="h200-sxm:vllm")
    borrowed = KernelSet(moe={"bf16": msgspec.structs.replace(named("triton", 30.0), fit=lent)})
    found = CalibratedLatency(gpu_with(sglang=others, vllm=borrowed), "sglang", library="vllm").time(layer())
    assert found.place == "vllm:bf16"
    assert found.source == Source.BORROWED
    lent_too = KernelSet(moe={"bf16": msgspec.structs.replace(named("triton", 10.0), fit=lent)})
    nothing = CalibratedLatency(gpu_with(sglang=lent_too, vllm=borrowed), "sglang", library="vllm")
    assert nothing.time(layer()).place == "vllm:bf16"  # where all is borrowed, as on the GPU that lends
    other_format = KernelSet(moe={"mxfp4": borrowed.moe["bf16"]})
    packed = dataclasses.replace(layer(), weight_dtype="mxfp4")
    of_format = CalibratedLatency(gpu_with(sglang=others, vllm=other_format), "sglang", library="vllm")
    assert of_format.time(packed).place == "vllm:mxfp4"  # the format goes before the GPU
    assert of_format.time(layer()).place == "sglang:bf16"


CARDS = [name for name in gpu_names() if load_gpu(name).kernels.get("sglang", KernelSet()).moe]
WEIGHTS = ("bf16", "fp8", "fp8_block", "int4", "mxfp4", "mxfp4_fp8", "nvfp4")


def in_format(form: str, tokens: Size = 8, **sizes: Size) -> Experts:
    """The layer with weights and arithmetic of a format."""
    made = format_of(form)
    stored = made.weight_dtype if made.weight_dtype != made.dtype else None
    return dataclasses.replace(layer(tokens, **sizes), dtype=made.dtype, weight_dtype=stored)


@pytest.mark.parametrize("library", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("name", CARDS)
def test_a_format_is_borrowed_from_the_relative_before_another_format_of_the_card(name, library):
    """As vLLM on an H200 takes the H100's mxfp4."""
    gpu = load_gpu(name)
    relatives = [each for each in map(load_gpu, CARDS) if each.architecture == gpu.architecture]
    for form in WEIGHTS:
        measured = any(
            not kernel.fit.inherited_from
            for each in relatives
            for held in each.kernels.values()
            for key, kernel in held.moe.items()
            if key.partition("@")[0] == form
        )
        if measured:
            asked = Asked(set_name="sglang", library=library)
            assert choose(gpu, in_format(form), asked).form == form, form


@pytest.mark.parametrize("library", ["vllm", "sglang", "trtllm"])
@pytest.mark.parametrize("name", CARDS)
def test_no_rule_for_tiles_makes_a_cliff_in_a_format_that_it_was_not_made_for(name, library):
    """On an A100 gpt-oss-120b took 1.8 times as long for 129 requests as for 128."""
    gpu = load_gpu(name)
    latency = CalibratedLatency(gpu, "sglang", library=library)
    tokens = np.arange(1, 513)
    hit = 128.0 * -np.expm1(tokens * np.log1p(-4 / 128))
    for form in (*WEIGHTS, "fp8_wo"):
        made = in_format(form, tokens, hit=hit, inter=2880, hidden=2880)
        try:
            chosen = choose(gpu, made, latency.asked)
            time = latency.time(made).time_us
        except SpecError:
            continue
        if chosen.form != made.form:
            assert (time[1:] / time[:-1])[63:].max() < 1.03, form
            assert (time[1:] / time[:-1]).min() > 1.0 - 1e-9, form


@pytest.mark.parametrize(
    ("runtime", "library"),
    [("vllm", "vllm"), ("sglang", "sglang"), ("tensorrt-llm", "trtllm"), ("kernel", "")],
)
def test_engines_name_their_library(runtime, library):
    assert load_runtime(runtime).library == library


@pytest.mark.parametrize(
    ("gpu", "kernels", "form"), [("h100-sxm", "sglang", "bf16"), ("b200", "sglang", "nvfp4")]
)
def test_experts_spread_over_gpus_are_less_certain(gpu, kernels, form):
    card = load_gpu(gpu)
    kernel = card.kernels[kernels].moe[form]
    dtype = {"dtype": form}
    whole, own = layer(TOKENS), layer(TOKENS, local_experts=16)
    whole, own = (dataclasses.replace(each, **dtype) for each in (whole, own))
    found, spread = (experts_time(card, kernel, each, form=form) for each in (whole, own))
    assert np.all(found.source == Source.CALIBRATED)
    assert np.all(spread.source == Source.EXTRAPOLATED)
    half, wider = (np.log(each.high_us / each.low_us) / 2.0 for each in (found, spread))
    assert wider == pytest.approx(np.hypot(half, SPREAD_ERROR))
    assert np.all((spread.low_us < spread.time_us) & (spread.time_us < spread.high_us))


def test_experts_of_one_library_take_no_less_on_an_h200_than_its_memory_explains():
    """One chip: TensorRT-LLM's experts took SGLang's time on an H200, half of its own on an H100."""
    one = in_format("fp8_block", 4, inter=2048, hidden=7168)
    times = [
        float(CalibratedLatency(load_gpu(name), "sglang", library="trtllm").time(one).time_us)
        for name in ("h100-sxm", "h200-sxm")
    ]
    faster = load_gpu("h200-sxm").bandwidth_bytes_per_s / load_gpu("h100-sxm").bandwidth_bytes_per_s
    assert 1.0 <= times[0] / times[1] <= faster


@pytest.mark.parametrize(
    ("limits", "end"),
    [
        ({}, math.inf), ({"tokens_max": 64}, 64.0), ({"tokens_per_expert_max": 4}, 4 * 128.0),
        ({"rows_per_expert_max": 4}, 4 * 128 / 8.0), ({"tokens_max": 64, "tokens_per_expert_max": 4}, 64.0),
        ({"tokens_max": 600, "tokens_per_expert_max": 4, "rows_per_expert_max": 2}, 2 * 128 / 8.0),
        ({"tokens_max": 20, "tokens_per_expert_max": 4, "rows_per_expert_max": 2}, 20.0),
    ],
)  # fmt: skip
def test_a_tile_ends_at_the_first_of_its_limits(limits, end):
    """Of 128 experts, of which a token takes 8."""
    operator = SimpleNamespace(local_experts=128.0, rows=80.0, tokens=10.0)
    given = {"tokens_max": None, "tokens_per_expert_max": None, "rows_per_expert_max": None, **limits}
    assert _end_tokens(SimpleNamespace(**given), operator, (2,)).tolist() == [end, end]
