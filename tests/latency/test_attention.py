"""Fused attention: physics as properties, the fit as recovery, measured rows where the data is there."""

import dataclasses
import math
import timeit

import msgspec
import numpy as np
import pytest
from attention_by_hand import by_hand_us, heads, kernels, shape
from hypothesis import given
from hypothesis import strategies as st
from made_up import FIT, PATH

from medusa_sim.errors import DataError
from medusa_sim.gpus.fitted_attention import AttentionKernel, AttentionPath
from medusa_sim.gpus.gpu import Gpu, load_gpu
from medusa_sim.lab.calibrate.attention import BY_TOKEN, fit_attention
from medusa_sim.lab.calibrate.rows import Rows
from medusa_sim.latency.attention import NEVER, attention_time
from medusa_sim.latency.calibrated import CalibratedLatency
from medusa_sim.latency.operator_time import Bound, OperatorTime
from medusa_sim.latency.roofline import roofline_time_us
from medusa_sim.latency.verify_attention import verify_attention_time, whole_attention_time
from medusa_sim.operators.attention import Attention

SETS = [
    ("a100-80gb-pcie", "torch"), ("a100-80gb-sxm", "sglang"), ("h100-sxm", "sglang"), ("h200-sxm", "sglang"),
    ("l40s", "sglang"), ("a40", "torch"), ("rtx-a6000", "torch"), ("h100-sxm", "torch"),
]  # fmt: skip
gpu_and_set = st.sampled_from(SETS)
kv_lens = st.integers(2, 100_000)
batches = st.integers(1, 512)


def verify(where: tuple[str, str], operator: Attention, *, cold: bool = True) -> OperatorTime:
    gpu, decode, prefill = kernels(where)
    return verify_attention_time(gpu, decode, prefill, operator, cold=cold)


def faster_by_hand_us(gpu: Gpu, path: AttentionPath, operator: Attention, *, cold: bool) -> float:
    """Of few keys the faster of one walk and of split keys."""
    told = by_hand_us(gpu, path, operator, cold=cold)
    if operator.is_causal or path.split_above >= NEVER or float(operator.kv_len) > path.split_above:
        return told
    return min(told, by_hand_us(gpu, msgspec.structs.replace(path, split_above=0), operator, cold=cold))


@given(
    st.one_of(gpu_and_set, st.none()), heads, st.integers(1, 300), st.integers(1, 64),
    kv_lens, st.sampled_from(["decode_attention", "prefill_attention"]), st.booleans(),
)  # fmt: skip
def test_the_time_is_that_of_the_equations(where, group, batch, q_len, kv_len, kind, cold):
    """Of the shipped kernels and of one with every term."""
    gpu, decode, prefill = kernels(where or SETS[2])
    kernel = decode if kind == "decode_attention" else prefill
    if where is None:
        every = {"append_ratio": 0.8, "store_passes": 1.5, "ctas_per_sm": 2, "packs_gqa": False}
        kernel = AttentionKernel(wide=msgspec.structs.replace(PATH, **every), fit=FIT)
    operator = shape(kind, batch, 1 if kind == "decode_attention" else min(q_len, kv_len), kv_len, group)
    rows = operator.q_len * group[0] / group[1]
    path = kernel.narrow if kernel.narrow is not None and rows <= kernel.narrow_rows else kernel.wide
    floor = cold * batch * float(roofline_time_us(gpu, operator.with_columns(batch=1)))
    told = max(faster_by_hand_us(gpu, path, operator, cold=cold), floor)
    assert float(attention_time(gpu, kernel, operator, cold=cold).time_us) == pytest.approx(told, rel=1e-9)


@given(
    st.sampled_from(["decode_attention", "prefill_attention", "verify_attention"]), heads, batches,
    st.integers(2, 512), kv_lens,
)  # fmt: skip
def test_no_kernel_of_a_step_appends_keys_in_its_blocks(kind, group, batch, q_len, kv_len):
    """An engine writes K and V apart, for prompts and composed verification alike; measured rows do not."""
    gpu, queries = load_gpu("a100-80gb-pcie"), 1 if kind == "decode_attention" else q_len
    operator = shape(kind, batch, queries, kv_len + queries, group)
    for engine, appends in (("", False), ("torch", True)):
        measured, without = (CalibratedLatency(gpu, "torch", engine=engine) for _ in range(2))
        prefill = measured.kernel_set.attention["prefill_attention"]
        path = msgspec.structs.replace(prefill.wide, append_ratio=0.0)
        own = {"prefill_attention": msgspec.structs.replace(prefill, wide=path)}
        without.kernel_set = msgspec.structs.replace(
            without.kernel_set, attention=measured.kernel_set.attention | own
        )
        longer = float(measured.time(operator).time_us / without.time(operator).time_us)
        assert longer == 1.0 or (appends and kind != "decode_attention" and longer > 1.0)
        assert not appends or kind != "prefill_attention" or longer > 1.0


@given(gpu_and_set, heads, st.integers(1, 300), st.integers(1, 64), kv_lens)
def test_verification_is_composed_of_both_kernels(where, group, batch, q_len, kv_len):
    """(A5): decoding at one row, and what the arithmetic of prefill takes beyond it, by its share."""
    gpu, decode, prefill = kernels(where)
    operator = shape("verify_attention", batch, q_len, kv_len, group)
    memory = {name: getattr(decode.wide, name) for name in ("bandwidth_fraction", "l2_ratio", "l2_fill")}
    many = faster_by_hand_us(gpu, msgspec.structs.replace(prefill.wide, **memory), operator, cold=True)
    one = float(attention_time(gpu, decode, shape("decode_attention", batch, 1, kv_len, group)).time_us)
    floor = batch * float(roofline_time_us(gpu, operator.with_columns(batch=1)))
    told = max(one + (1 - 1 / q_len) * max(many - one, 0.0), floor)
    assert float(verify(where, operator).time_us) == pytest.approx(told, rel=1e-9)


@given(gpu_and_set, heads, batches, kv_lens)
def test_a_verification_step_of_one_row_is_a_decode_step(where, group, batch, kv_len):
    gpu, decode, _ = kernels(where)
    alone = attention_time(gpu, decode, shape("decode_attention", batch, 1, kv_len, group))
    step = verify(where, shape("verify_attention", batch, 1, kv_len, group))
    assert step.time_us == pytest.approx(alone.time_us, rel=1e-12)


@pytest.mark.parametrize("where", SETS)
@pytest.mark.parametrize("group", [(32, 32), (32, 8)])
def test_kv_is_read_once_for_all_candidates(where, group):
    """16 sequences of 4096 tokens: others charge K and V once per candidate, 9 to 30 times too much."""
    counts = np.array([1, 8, 16, 32])
    cost = verify(where, shape("verify_attention", 16, counts, 4096, group)).time_us
    # One memory pass plus the tiles' arithmetic. GQA 4 fills a row tile at 16 to 32 candidates; the
    # widest step of any GPU here is 2.5.
    assert cost[-1] < 2.6 * cost[0]
    assert cost[1] < 1.6 * cost[0]


@pytest.mark.parametrize("where", SETS)
def test_gqa_reads_kv_by_kv_heads(where):
    """32 query heads over 8 K/V heads move a quarter of the bytes of 32 over 32."""
    gpu, decode, _ = kernels(where)
    wide = attention_time(gpu, decode, shape("decode_attention", 64, 1, 8192, (32, 32))).time_us
    narrow = attention_time(gpu, decode, shape("decode_attention", 64, 1, 8192, (32, 8))).time_us
    assert wide / narrow == pytest.approx(4.0, rel=0.2)


@pytest.mark.parametrize("where", [("h100-sxm", "sglang"), ("l40s", "sglang"), ("a100-80gb-pcie", "torch")])
def test_memory_bound_attention_above_the_ramp_follows_the_bandwidth(where):
    gpu, decode, _ = kernels(where)
    operator = shape("decode_attention", 256, 1, 32768, (8, 8))
    wide = only_memory(decode)
    twice = dataclasses.replace(gpu, bandwidth_bytes_per_s=2 * gpu.bandwidth_bytes_per_s)
    one = attention_time(gpu, wide, operator)
    two = attention_time(twice, wide, operator)
    assert one.bound == Bound.MEMORY
    path = wide.wide
    fixed = path.ramp_us + path.split_us
    # Doubling the bandwidth halves what is above the launch, but for the smooth maximum with what is left
    # of the arithmetic (1e-3 of it here).
    assert (one.time_us - fixed) / (two.time_us - fixed) == pytest.approx(2.0, rel=0.01)


def only_memory(kernel: AttentionKernel) -> AttentionKernel:
    """The kernel with arithmetic a thousand times faster than it is: only the memory is left."""
    path = msgspec.structs.replace(
        kernel.wide,
        split_fraction=1e3 * kernel.wide.split_fraction,
        cta_us=1e-3,
        row_us=0.0,
        split_step_us=0.0,
    )
    return msgspec.structs.replace(kernel, wide=path, narrow=None, narrow_rows=0)


@given(gpu_and_set, heads, st.integers(1, 64), st.integers(64, 8192))
def test_more_keys_in_the_same_tiles_never_cost_less(where, group, batch, kv_len):
    """Eight times the keys keep or raise the time, but for a twentieth where they fill the SMs better."""
    gpu, decode, _ = kernels(where)
    lengths = np.array([kv_len, 8 * kv_len])
    cost = attention_time(gpu, decode, shape("decode_attention", batch, 1, lengths, group)).time_us
    assert cost[1] >= 0.95 * cost[0]


@given(st.sampled_from(["rtx-3090", "a40", "l4", "l40s"]), heads, st.integers(1, 8), st.integers(64, 2048))
def test_a_chip_with_less_arithmetic_splits_few_keys_sooner(gpu, group, batch, kv_len):
    """An RTX 3090 took 48 us for 384 keys, which the kernel of an A100 does not split, and 19 for 512."""
    table = load_gpu(gpu).kernel_set("torch").attention
    lengths = np.array([kv_len, kv_len + kv_len // 3])
    operator = shape("decode_attention", batch, 1, lengths, group)
    cost = attention_time(load_gpu(gpu), table["decode_attention"], operator).time_us
    assert cost[1] >= 0.9 * cost[0]
    assert not attention_time(
        load_gpu(gpu), table["decode_attention"], operator.with_columns(kv_len=lengths[:0])
    ).time_us.size


@pytest.mark.parametrize("where", SETS)
def test_verification_is_less_certain(where):
    gpu, decode, _ = kernels(where)
    step = verify(where, shape("verify_attention", 8, np.array([1, 32, 64]), 4096, (32, 8)))
    alone = attention_time(gpu, decode, shape("decode_attention", 8, 1, 4096, (32, 8)))
    assert np.all(step.high_us / step.low_us > float(alone.high_us / alone.low_us))


def test_half_a_million_points_are_no_loop_over_points():
    """A grid takes a small share of what its points would take one by one."""
    q_len = np.arange(1, 129)
    operator = shape(
        "verify_attention",
        np.arange(1, 65)[:, None, None],
        q_len,
        128 * np.arange(1, 62)[:, None] + q_len,
        (32, 8),
    )
    one = shape("verify_attention", 8, 4, 1028, (32, 8))
    points = 64 * 61 * 128
    assert verify(("h100-sxm", "sglang"), operator).time_us.size == points
    whole_s, one_s = (
        min(timeit.repeat(lambda rows=rows: verify(("h100-sxm", "sglang"), rows), number=1, repeat=3))
        for rows in (operator, one)
    )
    assert whole_s < 0.05 * points * one_s


@pytest.mark.parametrize(
    ("batch", "group", "width", "splits", "waves"),
    [
        (1, (8, 1), 128, 16, 1), (8, (8, 1), 128, 16, 1), (64, (8, 1), 128, 2, 1), (64, (8, 1), 256, 2, 1),
        (16, (64, 8), 128, 1, 1), (40, (64, 8), 64, 1, 3), (64, (32, 1), 128, 1, 1),
    ],
)  # fmt: skip
def test_one_query_on_blackwell_waits_for_the_longest_sequence(batch, group, width, splits, waves):
    """(U5), number by number: 4,096 keys, 16 splits of 256 at most, tiles of 16 heads, on 132 SMs."""
    gpu, path = load_gpu("h100-sxm"), msgspec.structs.replace(PATH, **BY_TOKEN)
    one = shape("decode_attention", batch, 1, 4096, group).with_columns(head_dim=width)
    key_us = 4 * width * 16 / (0.7 * gpu.peak("bf16") / gpu.sms) * 1e6
    first_us = 128 * key_us * 0.7 / 0.6
    block_us = 3.0 + 0.01 * min(group[0] / group[1], 16) + first_us + (4096 / splits - 128) * key_us
    walk_us = (waves + 0.6 * waves**0.5 * (batch - 1) / (batch + 1)) * block_us
    memory_us = float(one.bytes) / (0.9 * gpu.bandwidth_bytes_per_s) * 1e6
    combine_us = 2.0 + 0.4 * math.log2(splits) if splits > 1 else 0.0
    told = 7.0 + combine_us + math.hypot(walk_us, memory_us)
    found = attention_time(gpu, AttentionKernel(wide=path, fit=FIT), one)
    assert float(found.time_us) == pytest.approx(told)


def test_a_fit_on_blackwell_has_blocks_by_token():
    gpu, path = load_gpu("b200"), msgspec.structs.replace(PATH, **BY_TOKEN)
    grid = np.meshgrid([1.0, 8.0, 64.0, 256.0], [256.0, 1024.0, 4096.0, 32768.0], [1.0, 4.0, 8.0])
    batch, keys, kv_heads = (axis.ravel() for axis in grid)
    every = shape("decode_attention", 1, 1, 1, (8, 1)).with_columns(
        batch=batch, kv_len=keys, heads=8 * kv_heads, kv_heads=kv_heads, q_len=np.ones_like(batch),
        head_dim=np.full_like(batch, 128.0),
    )  # fmt: skip
    kernel = AttentionKernel(wide=path, fit=FIT)
    rows = Rows(every, attention_time(gpu, kernel, every, cold=False).time_us)
    found = fit_attention(rows, gpu, source="made up")
    assert (found.wide.by_token, found.wide.tile_rows, found.narrow) == (True, 16, None)
    assert found.fit.fit_error < 0.02
    assert found.fit.heldout_error < 0.05


def test_a_kernel_without_splits_has_no_blocks_by_token():
    gpu = load_gpu("b200")
    decode = gpu.kernels["sglang"].attention["decode_attention"]
    plain = msgspec.structs.replace(decode, wide=msgspec.structs.replace(decode.wide, by_token=False))
    several = shape("verify_attention", 8, 4, 4096, (32, 8))
    found, told = (whole_attention_time(gpu, kernel, several) for kernel in (decode, plain))
    assert float(found.time_us) == float(told.time_us)


def test_a_fit_recovers_what_made_the_rows():
    """Rows made by a kernel of the same family: the fit predicts other heads within 3 %, with no noise."""
    gpu, decode, _ = kernels(("h100-sxm", "sglang"))
    rng = np.random.default_rng(0)
    kv_heads = rng.choice([1, 4, 8, 16, 32], 400)
    rows = Attention(
        name="d", kind="decode_attention", batch=2 ** rng.integers(0, 9, 400), q_len=np.ones(400),
        kv_len=2 ** rng.integers(4, 16, 400), heads=4 * kv_heads, kv_heads=kv_heads,
        head_dim=np.full(400, 128), dtype="bf16",
    )  # fmt: skip
    times = attention_time(gpu, decode, rows, cold=False).time_us
    fitted = fit_attention(Rows(rows, times), gpu, source="made up")
    assert fitted.fit.heldout_error < 0.03
    assert fitted.wide.bandwidth_fraction == pytest.approx(decode.wide.bandwidth_fraction, rel=0.05)


def test_a_fit_of_few_rows_of_one_shape_has_a_band():
    count = 20
    gpu, decode, _ = kernels(("h100-sxm", "sglang"))
    rows = shape(
        "decode_attention", np.full(count, 8), np.ones(count), 100 * np.arange(1, count + 1), (32, 8)
    )
    full = np.ones(count)
    rows = dataclasses.replace(rows, heads=32 * full, kv_heads=8 * full, head_dim=128 * full)
    times = attention_time(gpu, decode, rows, cold=False).time_us
    fitted = fit_attention(Rows(rows, times), gpu, source="made up")
    assert len(fitted.fit.residuals) == 1
    assert fitted.fit.residuals[0].low <= 1.05
    assert fitted.fit.residuals[0].high >= 0.95


def test_products_are_no_fused_kernel():
    rows = Rows(shape("qk", np.ones(3), np.ones(3), np.full(3, 64.0), (8, 8)), np.ones(3))
    with pytest.raises(DataError, match=r"x\.csv: qk is not a fused kernel"):
        fit_attention(rows, load_gpu("h100-sxm"), source="x.csv")
