"""Kernels of local engines: what their time must do, whatever the constants."""

import msgspec
import numpy as np
import pytest

from medusa_sim.errors import SpecError
from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.gpus.local import LocalLaw, MatrixLaw, TypeLaw
from medusa_sim.latency.local import LocalLatency, clock_under
from medusa_sim.operators.attention import Attention
from medusa_sim.operators.elementwise import Elementwise
from medusa_sim.operators.experts import Experts
from medusa_sim.operators.gemm import Gemm
from medusa_sim.step.expert_union import union

COLUMNS = np.arange(1, 33)
PLACES = [
    ("rtx-3090", "cuda"), ("rtx-5090", "cuda"), ("v100", "cuda"), ("agx-orin", "cuda"), ("m5-max", "metal"),
    ("radeon-8060s", "rocm"), ("radeon-8060s", "vulkan"), ("m1-pro", "metal"), ("m4-max", "metal"),
    ("m4-pro", "mlx"), ("m2-max", "mlx"), ("cpu-ryzen-7950x", "cpu"),
]  # fmt: skip
TYPES = ("q4_k_m", "q8_0", "q2_k", "f16")


def linear(m, stored="q4_k_m", name="up_proj", n=14336, k=4096):
    return Gemm(name=name, m=m, n=n, k=k, dtype="fp16", weight_dtype=stored)


def times(place, backend, operator):
    return LocalLatency(load_gpu(place), backend).time(operator).time_us


@pytest.mark.parametrize(("place", "backend"), PLACES)
@pytest.mark.parametrize("stored", TYPES)
def test_no_product_is_faster_than_its_bytes(place, backend, stored):
    stored = stored if backend != "mlx" else "mlx-4bit"
    operator = linear(COLUMNS, stored)
    gpu = load_gpu(place)
    read_us = operator.n * operator.k * (0.3 if stored == "q2_k" else 0.5) / gpu.bandwidth_bytes_per_s * 1e6
    assert (times(place, backend, operator) > read_us).all()


@pytest.mark.parametrize(("place", "backend"), PLACES)
def test_up_to_the_switch_more_columns_take_longer_or_as_long(place, backend):
    stored = "mlx-4bit" if backend == "mlx" else "q4_0"
    law = LocalLatency(load_gpu(place), backend).law
    own = "affine4" if backend == "mlx" else "q4_0"
    until = min(law.columns(own, load_gpu(place).local.target), 8)
    time_us = times(place, backend, linear(np.arange(1, until + 1), stored))
    assert (np.diff(time_us) >= -1e-9).all()


def test_behind_the_switch_time_is_flat_within_a_tile():
    time_us = times("rtx-4090", "cuda", linear(np.arange(9, 17), "q4_0"))
    assert time_us.max() == pytest.approx(time_us.min(), rel=1e-9)
    metal = times("m3-max", "metal", linear(np.arange(9, 33), "q8_0"))
    assert metal.max() == pytest.approx(metal.min(), rel=1e-9)


def test_apple_chips_before_m5_pay_for_columns_where_gb10_does_not():
    apple, spark = (
        times("m2-ultra", "metal", linear(np.array([1, 5]))),
        times("gb10", "cuda", linear(np.array([1, 5]))),
    )
    assert spark[1] / spark[0] < 1.25
    assert apple[1] / apple[0] > 2.0


def test_a_file_of_several_types_lies_between_them():
    for m in (1, 2, 4):
        low, mid, high = (
            times("gb10", "cuda", linear(m, of, "down_proj")) for of in ("q4_k_s", "q4_k_m", "q6_k")
        )
        assert low < mid < high


def experts(tokens, stored="q4_k_m"):
    return Experts(
        name="experts", dtype="fp16", weight_dtype=stored, tokens=tokens, hidden=2048, inter=768, experts=128,
        topk=8, local_experts=128, hit=union(128, 8, 1, tokens), rows=np.asarray(tokens) * 8.0,
    )  # fmt: skip


def test_pairs_of_token_and_expert_are_paid_one_by_one_before_the_switch():
    tokens = np.arange(1, 9)
    time_us = times("radeon-8060s", "vulkan", experts(tokens))
    assert (np.diff(time_us) > 0.5 * (time_us[0] - 15.0)).all()


def test_behind_the_switch_time_follows_the_experts_that_are_woken():
    time_us = times("radeon-8060s", "vulkan", experts(np.array([9, 512, 4096])))
    hit = union(128, 8, 1, np.array([9, 512, 4096]))
    assert time_us[1] / time_us[0] < 2.0 * hit[1] / hit[0]


@pytest.mark.parametrize(
    ("gpu", "backend"), [("m4-max", "metal"), ("rtx-3090", "cuda"), ("radeon-8060s", "rocm")]
)
def test_experts_that_fill_their_tiles_in_the_mean_fill_them_unevenly(gpu, backend):
    """512 tokens of 8 among 128 experts are 32 each, a tile of Metal: one token more took 59 % longer."""
    tokens = np.arange(400, 700)
    time_us = times(gpu, backend, experts(tokens))
    assert (np.diff(time_us) >= 0.0).all()
    assert (time_us[1:] <= 1.002 * time_us[:-1]).all()  # a token more of 400 is 0.25 %


def test_attention_reads_the_cache_once_for_all_columns():
    def attention(q):
        kind = "decode_attention" if q == 1 else "verify_attention"
        return Attention(
            name=kind,
            kind=kind,
            dtype="fp16",
            batch=1,
            q_len=q,
            kv_len=32768 + q,
            heads=32,
            kv_heads=8,
            head_dim=128,
        )

    one, four = (times("rtx-3090", "cuda", attention(q)) for q in (1, 4))
    assert four < 1.2 * one


def test_bands_hold_the_time():
    time = LocalLatency(load_gpu("m3-max"), "metal").time(linear(COLUMNS))
    assert (time.low_us < time.time_us).all()
    assert (time.time_us < time.high_us).all()


def test_a_curve_of_ones_own_scales_products_beside_barriers_and_no_attention():
    """Its logarithms, between sizes on a line."""
    gpu = load_gpu("rtx-3090")
    bare = LocalLatency(gpu, "cuda")
    own = LocalLatency(gpu, "cuda", msgspec.structs.replace(bare.law, curve=((1.0, 0.1), (5.0, 0.5))))
    product = linear(np.array([1, 3, 5, 9]))
    found, plain = (each.time(product).time_us - bare.barrier_us for each in (own, bare))
    assert found / plain == pytest.approx(np.exp([0.1, 0.3, 0.5, 0.5]))
    sizes = {"batch": 3, "q_len": 1, "kv_len": 500, "heads": 32, "kv_heads": 8, "head_dim": 128}
    seen = Attention(name="attention", kind="decode_attention", dtype="fp16", **sizes)
    assert own.time(seen).time_us == bare.time(seen).time_us


GPU = load_gpu("h100-sxm")
LAW = LocalLaw(
    name="made up", backend="cuda", targets=("sm",), source="made up for tests", overlap=2.0, launch_us=3.0,
    pass_us=2.0, step_us=50.0, barrier_us=1.0, limit=8, group=4, pairs=4, pair_share=0.5, routing_us=7.0,
    sorted_us=9.0, attention_share=0.6, attention_us=4.0, attention_ops=0.5, attention_step=96,
    attention_left_ops=2.0, row_us_per_million=800.0, band=0.1,
    types={
        "q8_0": TypeLaw(share=0.8, unpack=2.0, column=3.0, single=4.0, separate=2),
        "f16": TypeLaw(share=0.9, column=1.0, blocks=((4, 6.0), (1, 2.0))),
    },
    matrix=MatrixLaw(tile=16, share=0.7, unpack=5.0, column=0.5, peak=0.4),
    grouped=MatrixLaw(tile=8, share=0.6, unpack=6.0, column=0.25),
)  # fmt: skip
CLOCK = 0.8
MADE_UP = LocalLatency(GPU, "cuda", LAW, CLOCK)
BYTES_PER_US = GPU.bandwidth_bytes_per_s * GPU.local.bandwidth_share.value / 1e6
OPS_PER_US = CLOCK * GPU.local.vector_ops_per_s.value / 1e6
PEAK_PER_US = CLOCK * GPU.peak("fp16") / 1e6


@pytest.mark.parametrize(
    ("stored", "m", "share", "reads", "ops", "columns"),
    [
        ("q8_0", 1, 0.8, 1, 4, 0),
        ("q8_0", 2, 0.8, 2, 2 * 4, 0),  # each column by itself
        ("q8_0", 3, 0.8, 1, 2 + 3 * 3, 0),
        ("q8_0", 5, 0.8, 1, 2 * (2 + 3 * 3), 0),  # two passes of three columns, one of them empty
        ("q8_0", 8, 0.8, 1, 2 * (2 + 4 * 3), 0),  # two passes of four columns
        ("q8_0", 9, 0.7, 1, 5, 16),  # a whole tile
        ("q8_0", 40, 0.7, 1, 5 + 32 * 0.5, 48),  # three
        ("f16", 1, 0.9, 1, 2, 0),
        ("f16", 7, 0.9, 1, 6 + 3 * 2, 0),  # a block of four columns and three of one
        ("f16", 9, 0.7, 1, 5, 16),
        ("bf16", 1, 0.9, 1, 2, 0),
        ("fp16", 7, 0.9, 1, 6 + 3 * 2, 0),
        ("fp8", 9, 0.7, 1, 5, 16),  # a type that no local engine has is read in 16 bits
    ],
)
def test_a_product_is_that_of_the_equations(stored, m, share, reads, ops, columns):
    """(local 1) and (local 2): reads of the matrix, operations a weight, columns of whole tiles."""
    weights = 14336 * 4096
    memory = reads * weights * (34 / 32 if stored == "q8_0" else 2.0) / (share * BYTES_PER_US)
    work = weights * ops / OPS_PER_US + 2 * weights * columns / (0.4 * PEAK_PER_US)
    found = MADE_UP.time(linear(m, stored))
    told = 1 + 3 + np.hypot(memory, work)
    assert float(found.time_us) == pytest.approx(told)
    half = np.hypot(0.1, 0.3 * (1 - memory / told))  # beside reading three times as unsure
    assert float(found.low_us) == pytest.approx(told * np.exp(-half))
    assert float(found.high_us) == pytest.approx(told * np.exp(half))
    wide = LocalLatency(GPU, "cuda", msgspec.structs.replace(LAW, band=0.2), CLOCK).time(linear(m, stored))
    half = np.hypot(0.2, 0.45 * (1 - memory / told))
    assert float(wide.high_us / wide.time_us) == pytest.approx(np.exp(half))
    assert wide.device_half == pytest.approx(0.9 * 0.2)


def test_a_card_unpacks_whole_tiles_in_a_time_of_its_own():
    """Of the GPUs that the law names alone: 0.35 of its share of 1.25, for products and experts alike."""
    types = {"q8_0": msgspec.structs.replace(LAW.types["q8_0"], tiles=1.25)}

    def work_us(target):
        law = msgspec.structs.replace(LAW, types=types, matrix_of={target: 0.35})
        return float(LocalLatency(GPU, "cuda", law, CLOCK).time(linear(9, "q8_0")).time_us)

    memory = 14336 * 4096 * 34 / 32 / (0.7 * BYTES_PER_US)
    for target, share in ((GPU.local.target, 0.35), ("another", 1.0)):
        work = 14336 * 4096 * (1.25 * share * 5 / OPS_PER_US + 2 * 16 / (0.4 * PEAK_PER_US))
        assert work_us(target) == pytest.approx(1 + 3 + np.hypot(memory, work))


def more_columns(tokens_each):
    """Of tiles of 8 behind the first, in the mean over experts with a geometric number of tokens."""
    return 8 * sum((1 - 1 / tokens_each) ** (8 * tile) for tile in range(1, 400))


@pytest.mark.parametrize(
    ("tokens", "hit", "share", "reads", "ops", "sorts"),
    [
        (2, 12, 0.8 * 0.5, (16 + 12) / 2, 16 * 4, 0),  # 16 pairs, the second reader finds half in a cache
        (64, 100, 0.6, 100, 100 * (6 + more_columns(5.12) * 0.25), 9),
        (200, 128, 0.6, 128, 128 * (6 + more_columns(12.5) * 0.25), 9),
    ],
)
def test_experts_are_those_of_the_equation(tokens, hit, share, reads, ops, sorts):
    """(local 3): gate and up, then down."""
    told = 1 + 3 * 3 + 7 + sorts
    for weights in (2048 * 2 * 768, 2048 * 768):
        told += np.hypot(reads * weights * 34 / 32 / (share * BYTES_PER_US), ops * weights / OPS_PER_US)
    made = Experts(
        name="experts", dtype="fp16", weight_dtype="q8_0", tokens=tokens, hidden=2048, inter=768, experts=128,
        topk=8, local_experts=128, hit=hit, rows=tokens * 8,
    )  # fmt: skip
    assert float(MADE_UP.time(made).time_us) == pytest.approx(told)


def test_attention_and_passes_are_those_of_the_equations():
    """(local 4), a head of 128 whose last 32 elements are taken one by one, and (local 5)."""
    sizes = {"batch": 3, "q_len": 1, "kv_len": 500, "heads": 32, "kv_heads": 8, "head_dim": 128}
    seen = Attention(name="attention", kind="decode_attention", dtype="fp16", **sizes)
    moved = 2 * (2 * 3 * 8 * 500 * 128 + 2 * 3 * 32 * 128)
    work = 3 * 32 * 500 * 2 * (0.5 * 96 + 2.0 * 32) / OPS_PER_US
    told = 1 + 4 + np.hypot(moved / (0.6 * BYTES_PER_US), work)
    assert float(MADE_UP.time(seen).time_us) == pytest.approx(told)
    added = Elementwise(name="residual", kind="residual", m=4, n=4096, dtype="fp16")
    assert float(MADE_UP.time(added).time_us) == pytest.approx(1 + 2 + float(added.bytes) / BYTES_PER_US)
    rows = Elementwise(name="next_token", kind="next_token", m=4, n=128_000, dtype="fp16")
    assert float(MADE_UP.time(rows).time_us) == pytest.approx(1 + 50 + 4 * 0.128 * 800)


def test_a_clock_under_a_power_limit_is_the_cube_root_of_what_is_left_for_it():
    """(local 7): a quarter of 700 W does not follow the clock."""
    assert [clock_under(watts, GPU) for watts in (None, 700.0, 900.0)] == [1.0, 1.0, 1.0]
    assert clock_under(350.0, GPU) == pytest.approx(((0.5 - 0.25) / 0.75) ** (1 / 3))
    assert clock_under(280.0, GPU) == pytest.approx(0.2 ** (1 / 3))
    with pytest.raises(SpecError):
        clock_under(279.0, GPU)
