"""What kernels move, compute and take in turn, counted by hand for one launch of each operator."""

from dataclasses import replace
from math import ceil, log2

import numpy as np
import pandas as pd
import pytest

from medusa_sim.operators.collective import Collective
from medusa_sim.operators.columns import with_names
from medusa_sim.operators.elementwise import Elementwise
from medusa_sim.operators.experts import Experts
from medusa_sim.operators.gemm import Gemm
from medusa_sim.operators.hyper_connection import CONNECTION_WIDTHS, HyperConnection
from medusa_sim.operators.latent import LatentAttention
from medusa_sim.operators.operator import CONTEXT, GENERATION, VERIFY
from medusa_sim.operators.recurrent import Recurrent
from medusa_sim.operators.sparse import Sparse
from medusa_sim.operators.table import check_rows, operators_of
from medusa_sim.operators.window import WindowAttention


def window(**shape) -> WindowAttention:
    sizes = {"batch": 3, "q_len": 1, "prefix": 299, "heads": 8, "kv_heads": 2, "head_dim": 64, "window": 100}
    return WindowAttention(name="window", dtype="bf16", **sizes | shape)


def recurrent(**shape) -> Recurrent:
    sizes = {"batch": 3, "q_len": 70, "heads": 8, "key_heads": 4, "key_dim": 16, "value_dim": 32}
    return Recurrent(name="recurrent", dtype="bf16", **{"kind": "gdn"} | sizes | shape)


def sparse(**shape) -> Sparse:
    sizes = {"kind": "dsa", "batch": 2, "q_len": 3, "prefix": 5000, "heads": 16}
    return Sparse(name="sparse", dtype="bf16", **sizes | shape)


def assert_are(found, expected):
    assert {name: float(value) for name, value in found.items()} == pytest.approx(expected)


def test_a_verification_in_a_window_is_counted_block_by_block():
    operator = window(q_len=70, prefix=1000, window=200, phase="verify")
    seen = [min(position, 200) for position in range(1001, 1071)]
    masked = sum(range(1001, 1071)) - sum(seen)
    per_pair = 4 * 3 * 8 * 64  # two products, two FLOPs
    assert_are(operator.work, {"pairs": per_pair * sum(seen), "masked": per_pair * masked})
    cached = len({key for query in range(1001, 1071) for key in range(query - 199, query + 1)})
    rows = 2 * 2 * 3 * 70 * 8 * 64
    assert_are(operator.loads, {"kv": 2 * 2 * 3 * 2 * 64 * cached, "rows": rows})
    blocks, tiles = 3 * 2, 5  # 64 of the 70 queries a block; 264 keys of a block, 64 a tile
    expected = {
        "stored": 3 * 70 * 128 / 512 / 4,
        "groups": blocks * 2 / 4,
        "group_tiles": blocks * 2 / 4 * tiles,
        "shared_tiles": blocks * 2 / 4 * tiles,
        "heads": blocks * 8 / 4,
        "prompt_heads": blocks * 8 / 4,
        "wide": 0,
        "packed": 3 * 3 * 2 / 4,  # 280 rows of a K/V head, 128 a block
        "small": 0,
        "rows": 280 / 64 * 3 * 2 / 4,
        "head_tiles": blocks * 8 / 4 * tiles,
        "chain": tiles,
        "crossing": 1,
        "whole": log2(1 + 1070 / 200),
        "split_waves": ceil(3 * 2 * 9 * 5 / 4),  # 280 rows, 32 a block; five splits fill 8 blocks each
        "split_groups": 3 * 2 / 4,
        "split_tiles": 3 * 2 / 4 * 4,
        "splits": 5,
        "alone": 0,
        "alone_waves": 0,
        "alone_keys": 0,
        "alone_heads": 0,
        "alone_warps": 0,
    }
    assert_are(operator.steps(4), expected)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [  # 24 heads, one block of 256 threads each, of which 16 lie on four multiprocessors
        ({"kv_heads": 8}, {"waves": 2, "keys": 2 * 100 / 128, "heads": 6, "warps": 6}),
        ({"kv_heads": 8, "window": 400}, {"waves": 2, "keys": 2, "heads": 6, "warps": 6}),
        ({"kv_heads": 8, "prefix": 19}, {"waves": 2, "keys": 2 * 20 / 128, "heads": 6, "warps": 0}),
        # 6 heads: three blocks' threads would fit each, kernels have two
        ({"heads": 2, "kv_heads": 2}, {"waves": 1, "keys": 100 / 128, "heads": 1.5, "warps": 1.5}),
    ],
)
def test_heads_that_share_no_keys_go_alone(shape, expected):
    steps = window(**shape).steps(4)
    assert_are({name: steps[f"alone_{name}"] for name in expected}, expected)
    assert steps["alone"] == 1.0
    assert steps["splits"] == steps["split_waves"] == 0.0


def test_few_rows_are_small_and_many_heads_of_a_key_wide():
    assert window().steps(4)["small"] == 1.5
    assert window(heads=34).steps(4)["small"] == 0.0
    assert window(heads=66).steps(4)["wide"] == 3 * 66 / 4
    assert window(heads=64).steps(4)["wide"] == 0.0
    assert window(window=300).steps(4)["crossing"] == 0.0
    assert window(kv_heads=8).steps(4)["shared_tiles"] == 0.0
    assert window().steps(4)["prompt_heads"] == 0.0


def test_states_of_linear_attention_are_counted_entry_by_entry():
    entries = 8 * 16 * 32
    state, tokens = 3 * 4 * entries, 3 * 70 * 2 * (2 * 64 + 256 + 256)
    assert_are(recurrent(phase="verify").loads, {"tokens": tokens, "state": state, "kept": 70 * state})
    assert_are(recurrent(phase="context").loads, {"tokens": tokens, "state": 2 * state, "chunks": 2 * state})
    assert_are(recurrent(phase="verify").work, {"state": 7 * 210 * entries})
    assert_are(recurrent(phase="verify", kind="mamba2").work, {"state": 5 * 210 * entries})
    token = 8 * (6 * 512 + 64 * (6 * 16 + 4 * 32) + 64**2 / 3)
    assert_are(recurrent(phase="context").work, {"chunks": 3 * 128 * token})
    assert float(recurrent(phase="context").flops) == pytest.approx(3 * 70 * token)
    # Mamba-2: one chunk of 128; C B^T for each of four groups, its product with x, and two with the state
    token = 2 * 128 * (4 * 16 + 8 * 32) + 2 * 2 * entries
    assert_are(recurrent(phase="context", kind="mamba2").work, {"chunks": 3 * 128 * token})
    assert float(recurrent(phase="context", kind="mamba2").flops) == pytest.approx(3 * 70 * token)
    # 24 heads on 5 multiprocessors: 5 waves
    expected = {"chain": 2 * 5, "chunks": 2 * 4.8, "rows": 64, "row_waves": 64 * 4.8}
    assert_are(recurrent(phase="context").steps(5), expected)
    assert_are(recurrent(phase="verify").steps(5), {"tokens": 70})
    assert_are(recurrent(phase="verify", kind="kda").steps(5), {"tokens": 70, "several": 1})
    assert_are(recurrent(phase="verify", kind="kda", batch=1).steps(5), {"tokens": 70, "several": 0})


def test_a_convolution_is_counted_channel_by_channel():
    width, values = 2 * 64 + 256, 256
    held = 2 * 3 * width * 3  # three tokens before, of four taps
    through = {"keys": 4 * 210 * (width - values), "values": 4 * 210 * values}
    assert_are(recurrent(part="conv", phase="verify").loads, {"state": 71 * held, **through})
    prompt = recurrent(part="conv", phase="context", kind="kda")
    several = 4 * 210 * width * 2 / 3
    assert_are(prompt.loads, {"state": 2 * held, **through, "several": several})
    assert_are(prompt.work, {"taps": 2 * 210 * width * 4})
    waves = 3 * width / 512 / 2
    expected = {
        "tokens": 70 * 2,
        "keys": 3 * (width - values) / 512 / 2,
        "values": 3 * values / 512 / 2,
        "requests": 3,
        "each": 210 / 1024,
        "within": 8,
        "behind": 1,
        "ragged": waves,
        "channels": 210 * width / 512**2 / 2,
    }
    assert_are(prompt.steps(2), expected)
    assert_are(recurrent(part="conv", phase="context", q_len=8).steps(2), {
        **{name: expected[name] for name in ("keys", "values")},
        "tokens": 8 * 2, "within": 8, "behind": 0, "ragged": 0, "channels": 24 * width / 512**2 / 2,
    })  # fmt: skip


def test_residual_streams_are_counted_one_by_one():
    sizes = {"name": "mix", "dtype": "bf16", "hidden": 32, "streams": 4, "sites": 2}
    before, after = (HyperConnection(tokens=1000, part=part, **sizes) for part in ("pre", "post"))
    a_stream = 2 * 1000 * 32 * 2
    assert_are(before.loads, {"streams": (4 + 1) * a_stream})
    assert_are(after.loads, {"streams": (4 + 4 + 1) * a_stream})
    product = 2 * 1000 * 2 * 4 * 32
    assert_are(before.work, {"mix": product * (4 + 4 + 4 * 4)})
    assert_are(after.work, {"mix": product * (4 + 1)})
    assert_are(before.steps(7), {"waves": 143, "tiles": 3, "few": 64, "busy": 7})
    assert_are(after.steps(7), {"waves": 143, "tiles": 3})


DSA = (
    7168 * (1536 + 512 + 64)  # down
    + 1536 * 16 * (128 + 64)  # queries up
    + 16 * 512 * (128 + 128)  # keys and values up
    + 16 * 128 * 7168  # out
    + 1536 * 64 * 128 + 7168 * (128 + 64)  # indexer: its queries, its key, weights of its heads
)  # fmt: skip


def test_a_sparse_verification_is_counted_key_by_key():
    operator = sparse(kv_dtype="fp8", phase="verify")
    scores = 4 * 6 * 2 * 5003
    assert_are(operator.loads, {
        "weights": 2 * DSA + 2 * 2 * 6 * 7168,
        "keys": 2 * 5003 * 656,  # three choices of 2048 meet all that there are
        "index": 2 * 5003 * 132,
        "scores": scores,
        "long_scores": scores * 5003 / 131072,
    })  # fmt: skip
    attention = 2 * 64 * (2 * 512 + 64) * 6 * 2048  # 16 heads fill a tile of 64
    index = 2 * 64 * 128 * 2 * sum(range(5000, 5003)) + 64 * 128 * 6
    work = {"projections": 2 * 6 * DSA, "attention": attention, "index": index, "expanded": 0}
    assert_are(operator.work, work)
    assert float(operator.flops) == pytest.approx(2 * 6 * DSA + attention / 4 + index)
    steps = {"choice": 1, "short_choice": 1, "request": 0.5003, "waves": 2, "chosen": 1.5, "launches": 0}
    assert_are(operator.steps(4), {**steps, "doublings": 2})
    assert float(sparse(prefix=3000).steps(4)["short_choice"]) == pytest.approx(3003 / 2048 - 1)
    assert float(sparse(prefix=19000).steps(4)["short_choice"]) == 0.0


def test_where_nothing_is_left_out_keys_are_expanded_for_each_head():
    operator = sparse(prefix=500, phase="verify")
    assert float(operator.work["expanded"]) == 2 * (2 * 500) * 16 * 512 * 256
    assert float(operator.loads["scores"]) == 0.0
    assert float(operator.steps(4)["choice"]) == 0.0


def test_prompts_choose_for_tokens_that_have_keys_to_leave_out():
    steps = sparse(prefix=3000, phase="context").steps(4)
    hardness = 0.5 * (3001.5 / 2048 - 1)
    assert_are({name: steps[name] for name in ("prompt", "chosen", "peak")}, {
        "prompt": 1, "chosen": 1.5, "peak": 1.5 * hardness,
    })  # fmt: skip
    across = sparse(prefix=2046, phase="context").steps(4)
    assert float(across["chosen"]) == 2 * 1 / 4  # the last alone
    far = sparse(prefix=12286, phase="context").steps(4)  # six times as many keys as are kept
    assert float(far["peak"]) == pytest.approx(1.5 * (3 / 6) ** 2, rel=1e-3)


def test_groups_of_queries_choose_keys_of_their_own():
    operator = sparse(kind="msa", heads=32, hidden=6144, q_rank=0, index_heads=4, phase="context")
    weights = 6144 * (2 * 32 * 128 + 2 * 2 * 128 + (2 + 1) * 128)
    assert float(operator.weights) == weights
    assert_are(operator.loads, {
        "weights": 2 * weights + 2 * 2 * 6 * 6144, "keys": 2 * 5003 * 2 * 2 * 2 * 128,
        "index": 2 * 5003 * 256, "narrow": 0,
    })  # fmt: skip
    assert_are(operator.work, {
        "projections": 2 * 6 * weights,
        "attention": 2 * 32 * 256 * 6 * 2048,
        "every_key": 2 * 32 * 256 * 2 * sum(range(5001, 5004)),
        "index": 2 * 2 * 128 * 6 * 5001.5,
    })  # fmt: skip
    assert float(operator.steps(4)["crowd"]) == pytest.approx((2 * 5003 * 2 / 1e6) ** 2)


def test_compressed_tokens_stand_beside_a_window():
    shape = {"q_len": 1, "prefix": 4000, "heads": 32, "hidden": 4096, "q_rank": 1024}
    operator = sparse(kind="csa", index_heads=64, gemm_dtype="fp8_block", **shape)
    out = 32 * 512 * 1024 + 4 * 1024 * 4096  # four of eight groups
    inner = 4096 * 1024 + 1024 * 32 * 512 + 512 * 4096 + out
    index = 1024 * 64 * 128 + 4096 * (128 + 64) + 3 * 128 * 4096
    weights = inner + 4 * 4096 * 512 + index
    assert float(operator.weights) == weights
    assert_are(operator.loads, {
        "weights": (1 + 4 / 128**2) * weights + 2 * 2 * 2 * 4096,
        "keys": 2 * (128 + 512) * 584, "index": 2 * 4001 / 4 * 132,
    })  # fmt: skip
    assert_are(operator.work, {
        "projections": 2 * 2 * weights, "split": 2 * 2 * weights,
        "attention": 2 * 64 * 1024 * 2 * (128 + 512),
        "index": 2 * 64 * 128 * 2 * 4000.5 / 4,
    })  # fmt: skip
    every = sparse(kind="hca", index_heads=0, **shape)
    assert float(every.weights) == inner + 2 * 4096 * 512
    assert float(every.loads["keys"]) == 2 * (128 + 4001 / 128) * 584
    assert_are(every.steps(4), {
        "choice": 0, "short_choice": 0, "request": 0.4001, "waves": 1, "chosen": 0, "tokens": 2,
    })  # fmt: skip


@pytest.mark.parametrize(
    ("head_dim", "widths"),
    [(64, (64, 128, 192, 256)), (128, (128, 192, 64, 256)), (160, (160, 192, 128, 256, 64)),
     (512, (512, 256, 192, 128, 64))],
)  # fmt: skip
def test_kernels_of_the_nearest_width_of_a_head_stand_in_first(head_dim, widths):
    """By the ratio of widths: 192 is 1.5 of 128 and 64 is half of it."""
    assert window(head_dim=head_dim).forms == tuple(f"generation_bf16_{width}" for width in widths)
    first, second, *_ = window(head_dim=head_dim, phase="verify").forms
    assert (first, second) == (f"verify_bf16_{widths[0]}", f"verify_bf16_{widths[1]}")


@pytest.mark.parametrize(("gated", "first"), [(True, 2 * 32), (False, 32)])
def test_a_layer_of_experts_reads_those_that_are_woken_and_its_tokens(gated, first):
    """10 tokens of 2 experts each, of which 6 are woken; widths 64 and 32, in 16 bits."""
    layer = Experts(
        name="experts", dtype="bf16", tokens=10, hidden=64, inter=32, experts=8, topk=2, local_experts=8,
        hit=6, rows=20, gated=gated,
    )  # fmt: skip
    assert float(layer.flops) == 2 * 20 * 64 * (first + 32)
    assert float(layer.bytes) == 2 * 6 * 64 * (first + 32) + 2 * (2 * 10 * 64)


@pytest.mark.parametrize(("kind", "adds"), [("all_reduce", 1), ("reduce_scatter", 1), ("all_gather", 0)])
def test_a_collective_moves_its_message_twice_and_adds_what_it_reduces(kind, adds):
    """4 KB in 16 bits among 8: seven additions for each of a rank's 256 values."""
    made = Collective(name=kind, kind=kind, dtype="bf16", message_bytes=4096, ranks=8)
    assert float(made.bytes) == 2 * 4096
    assert float(made.flops) == adds * 7 * 256


def test_latent_attention_has_one_head_of_keys_where_it_is_absorbed():
    sizes = {"dtype": "bf16", "batch": 1, "q_len": 1, "kv_len": 100, "heads": 16}
    absorbed = LatentAttention(name="a", kind="mla_decode", **sizes)
    expanded = LatentAttention(name="a", kind="mla_prefill", **sizes)
    assert (absorbed.kv_heads, absorbed.head_dim) == (1, ((512 + 64) + 512) / 2)
    assert (expanded.kv_heads, expanded.head_dim) == (16, ((128 + 64) + 128) / 2)


def test_passes_over_rows_do_a_few_operations_an_element():
    flops = {"rms_norm": 4, "rope": 3, "activation": 5, "residual": 1, "embedding": 0, "next_token": 4}
    for kind, each in flops.items():
        assert float(Elementwise(name=kind, kind=kind, m=3, n=10, dtype="bf16").flops) == each * 30


def test_weights_of_another_width_are_unpacked():
    def layer(weight_dtype: str | None) -> Gemm:
        return Gemm(name="up", m=1, n=64, k=64, dtype="bf16", weight_dtype=weight_dtype)

    assert [layer(each).unpacks for each in (None, "fp16", "int4")] == [False, False, True]


def test_a_verification_stands_beside_a_plain_step_of_its_kind():
    for made in (recurrent, sparse):
        assert made(phase=VERIFY).of_one_token == made(phase=GENERATION)
        assert made(phase=CONTEXT).of_one_token is None


@pytest.mark.parametrize(("architecture", "together"), [("hopper", 2), ("blackwell", 4), ("ampere", 2)])
def test_an_indexer_takes_few_queries_of_a_request_together(architecture, together):
    """More are so many requests, each behind half of the others on average."""
    few, many = (sparse(phase=GENERATION, q_len=queries) for queries in (together, together + 1))
    assert few.as_run(architecture) is few
    apart = many.as_run(architecture)
    assert (float(apart.batch), float(apart.q_len)) == (2 * (together + 1), 1)
    assert float(apart.prefix) == 5000 + together / 2
    mixed = sparse(phase=GENERATION, q_len=np.array([1, together + 1])).as_run(architecture)
    assert mixed.batch.tolist() == [2, 2 * (together + 1)]
    for other in (sparse(phase=VERIFY, q_len=9), sparse(phase=GENERATION, q_len=9, kind="csa")):
        assert other.as_run(architecture) is other


def test_kernels_of_prompts_and_plain_steps_stand_in_for_verification_alone():
    phases = {
        phase: {name.split("_")[1] for name in sparse(phase=phase).forms} for phase in (VERIFY, CONTEXT)
    }
    assert phases == {VERIFY: {"verify", "context", "generation"}, CONTEXT: {"context"}}


@pytest.mark.parametrize(("heads", "few"), [(31, True), (32, False)])
def test_prompts_of_few_heads_go_on_with_a_plain_steps_kernel_in_eight_bits(heads, few):
    work = sparse(phase=CONTEXT, heads=heads, kv_dtype="fp8").work
    assert (float(work["few_heads"]) > 0, float(work["attention"]) > 0) == (few, not few)
    assert "few_heads" not in sparse(phase=CONTEXT, heads=heads).work


def test_a_blank_dtype_is_taken_from_the_column_that_others_have():
    rows = pd.DataFrame({"dtype": ["bf16", " ", None], "attn_dtype": ["fp8", "fp8", "fp16"], "op": "x"})
    assert with_names(rows)["dtype"].tolist() == ["bf16", "fp8", "fp16"]


def test_rows_of_sizes_alone_are_linear_layers():
    sizes = {"m": [1], "n": [2], "k": [3]}
    assert with_names(pd.DataFrame({**sizes, "dtype": "bf16"}))["op"].tolist() == ["gemm"]
    for other in ({"m": [1], "n": [2]}, {**sizes, "batch": [4]}):
        assert "op" not in with_names(pd.DataFrame({**other, "dtype": "bf16"}))
    assert with_names(pd.DataFrame({**sizes, "op": "x", "dtype": "bf16"}))["op"].tolist() == ["x"]


def test_one_head_of_an_indexer_is_an_indexer():
    assert float(sparse(phase=VERIFY, index_heads=1).loads["index"]) == 2 * 5003 * 132
    assert "index" not in sparse(phase=VERIFY, index_heads=0).loads


@pytest.mark.parametrize("part", CONNECTION_WIDTHS)
def test_widths_that_a_kernel_reads_and_writes_are_half_of_what_a_connection_moves(part):
    """(J1): of four streams 5 widths a token before the blocks and 9 after."""
    per_stream, beside = CONNECTION_WIDTHS[part]
    counted = HyperConnection(
        name="h", kind="hyper_connections", dtype="bf16", tokens=3, hidden=64, streams=4, part=part
    )
    assert 2 * (4 * per_stream + beside) * 3 * 64 * 2 == float(counted.bytes)
    assert 4 * per_stream + beside == {"pre": 2.5, "post": 4.5}[part]


def test_a_window_begins_with_its_first_token_where_rows_name_no_prefix():
    sizes = {"batch": 2, "q_len": 128, "heads": 32, "kv_heads": 8, "head_dim": 128, "window": 128}
    row = pd.DataFrame([{"op": "window_attention", "dtype": "bf16", "phase": CONTEXT, **sizes}])
    ((_, operator),) = operators_of(check_rows(row, "rows"))
    assert replace(operator, name="") == replace(window(**sizes, prefix=0, phase=CONTEXT), name="")
