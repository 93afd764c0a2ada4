"""Fused attention: physics as properties, the fit as recovery, measured rows where the data is there."""

import dataclasses
import heapq
import math
import timeit
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up import FIT, PATH

from medusa_sim.errors import DataError
from medusa_sim.lab.calibrate.attention import fit_attention
from medusa_sim.lab.calibrate.fit import Rows
from medusa_sim.latency.attention import NEVER, attention_time
from medusa_sim.latency.calibrated import CalibratedLatency
from medusa_sim.latency.latent import latent_time
from medusa_sim.latency.operator_time import Bound, OperatorTime, Source
from medusa_sim.latency.roofline import roofline_time_us
from medusa_sim.latency.verify_attention import (
    called_attention_time,
    verify_attention_time,
    whole_attention_time,
)
from medusa_sim.latency.waves import turns_unplanned
from medusa_sim.operators.attention import Attention, AttentionKind
from medusa_sim.operators.latent import LatentAttention
from medusa_sim.operators.operator import Size
from medusa_sim.specs.fitted import AttentionKernel, AttentionPath
from medusa_sim.specs.gpu import Gpu, load_gpu

SETS = [
    ("a100-80gb-pcie", "torch"), ("a100-80gb-sxm", "sglang"), ("h100-sxm", "sglang"), ("h200-sxm", "sglang"),
    ("l40s", "sglang"), ("a40", "torch"), ("rtx-a6000", "torch"), ("h100-sxm", "torch"),
]  # fmt: skip
gpu_and_set = st.sampled_from(SETS)
heads = st.sampled_from([(1, 1), (8, 4), (12, 12), (32, 8), (32, 32), (40, 40), (64, 8), (64, 1)])
kv_lens = st.integers(2, 100_000)
batches = st.integers(1, 512)


def shape(kind: AttentionKind, batch: Size, q_len: Size, kv_len: Size, group: tuple[int, int]) -> Attention:
    return Attention(
        name=kind, kind=kind, batch=batch, q_len=q_len, kv_len=kv_len, heads=group[0], kv_heads=group[1],
        head_dim=128, dtype="bf16",
    )  # fmt: skip


def kernels(where: tuple[str, str]) -> tuple[Gpu, AttentionKernel, AttentionKernel]:
    gpu = load_gpu(where[0])
    table = gpu.kernel_set(where[1]).attention
    return gpu, table["decode_attention"], table["prefill_attention"]


def verify(where: tuple[str, str], operator: Attention, *, cold: bool = True) -> OperatorTime:
    gpu, decode, prefill = kernels(where)
    return verify_attention_time(gpu, decode, prefill, operator, cold=cold)


def mean_ceil(x: float, spread: float = 0.6) -> float:
    """E ceil(u x), u even on 1 +- spread: the sum over whole numbers of the chance to lie above each (A8)."""
    above = ((1 + spread - k / x) / (2 * spread) for k in range(math.ceil(2 * x) + 2))
    return sum(min(max(share, 0.0), 1.0) for share in above)


def faster_by_hand_us(gpu: Gpu, path: AttentionPath, operator: Attention, *, cold: bool) -> float:
    """Of few keys the faster of one walk and of split keys."""
    told = by_hand_us(gpu, path, operator, cold=cold)
    if operator.is_causal or path.split_above >= NEVER or float(operator.kv_len) > path.split_above:
        return told
    return min(told, by_hand_us(gpu, msgspec.structs.replace(path, split_above=0), operator, cold=cold))


def by_hand_us(gpu: Gpu, path: AttentionPath, operator: Attention, *, cold: bool) -> float:
    """(A1) to (A4), (A8) and (A9), of one shape, number by number as the module's docstring has them."""
    b, q, keys, heads, kv_heads, d = (
        int(getattr(operator, name)) for name in ("batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim")
    )
    group = heads // kv_heads if path.packs_gqa or q == 1 else 1
    rows = q * group
    tiles = b * (heads // group) * math.ceil(rows / path.tile_rows)
    blocks = math.ceil(keys / path.tile_keys)
    may_split = keys > path.split_above
    even = 1.1 * blocks * tiles / gpu.sms
    splits = 1.0
    if may_split:
        splits = (
            blocks / min(mean_ceil(even), blocks)
            if cold
            else math.ceil(blocks / min(math.ceil(even), blocks))
        )
    load = tiles * splits / gpu.sms
    fraction = path.split_fraction if may_split else path.whole_fraction
    key_us = 4 * d * path.tile_rows / (fraction * gpu.peak(operator.dtype) / gpu.sms) * 1e6
    start_us = path.cta_us + path.row_us * min(rows, path.tile_rows)
    own_blocks = blocks / splits if cold else math.ceil(blocks / splits)
    chunk = min(own_blocks * path.tile_keys, max(keys, path.tile_keys))
    chunk_us = (chunk - path.tile_keys + path.append_ratio * q) * key_us
    tail_us = 0.0
    if operator.is_causal and rows > path.tile_rows:  # waves of the mean tile, then what the longest has more
        new = 0.5 * (q + min(q, path.tile_rows / group) + path.tile_keys)
        mean = keys - q + new * (1 + path.append_ratio)
        mean_us = max(mean - path.tile_keys, 0.0) / splits * key_us
        tail_us, chunk_us = max(chunk_us - mean_us, 0.0), mean_us
    byte_us = 1e6 / (path.bandwidth_fraction * gpu.bandwidth_bytes_per_s)
    moved = 2 * (2 * b * kv_heads * keys * d + 2 * b * heads * q * d)
    if not cold:
        hit = 1 / (1 + (moved / (path.l2_fill * gpu.l2_bytes)) ** path.l2_sharpness)
        byte_us *= 1 - hit + hit / path.l2_ratio
    memory_us = moved * byte_us

    def walk_us(at_once: float) -> float:
        return start_us + chunk_us * (1 + path.sharing * (at_once - 1))

    c = path.ctas_per_sm
    full = math.floor(load / c + 1e-9)
    rest = load - full * c
    waves_us = full * math.hypot(walk_us(c), memory_us * c / load)
    if cold and not operator.is_causal:
        waves_us = math.hypot(max(load / c, 1) * walk_us(min(max(load, 1), c)), memory_us)
    elif rest > 1e-9:
        waves_us += math.hypot(walk_us(math.ceil(rest - 1e-9)), memory_us * rest / load)
    stored_us = path.store_passes * 2 * 2 * b * kv_heads * q * d * byte_us
    combined_us = path.split_us + path.split_step_us * math.log2(splits) if may_split else 0.0
    return path.ramp_us + waves_us + tail_us + stored_us + combined_us


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
        prefill = measured.held.attention["prefill_attention"]
        path = msgspec.structs.replace(prefill.wide, append_ratio=0.0)
        kernels = measured.held.attention | {"prefill_attention": msgspec.structs.replace(prefill, wide=path)}
        without.held = msgspec.structs.replace(without.held, attention=kernels)
        longer = float(measured.time(operator).time_us / without.time(operator).time_us)
        assert longer == 1.0 or (appends and kind != "decode_attention" and longer > 1.0)
        assert not appends or kind != "prefill_attention" or longer > 1.0


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


@pytest.mark.parametrize(
    ("card", "flops_per_clock", "sharing"), [("a100-80gb-sxm", 2048, 0.45), ("rtx-3090", 512, None)]
)
def test_flash_attention_2_without_splits_takes_a_tile_of_products_and_its_softmax_a_key(
    card, flops_per_clock, sharing
):
    """(A6): no packing, two blocks of 64 rows an SM; as patched, all SMs share the keys, a tenth to spare."""
    gpu = load_gpu(card)
    decode = AttentionKernel(wide=PATH, fit=FIT)
    operator = replace(shape("verify_attention", 4, 6, 8192, (32, 8)), dtype="fp16")
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
    walk_us = 1.1 * 4 * 32 * 8192 * key_us / gpu.sms
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
