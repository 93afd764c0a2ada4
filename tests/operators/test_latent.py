"""Latent attention: heads share what is read, a module holds its projections, rows of tables become it."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up import latent

from medusa_sim.errors import DataError
from medusa_sim.operators.operator import Attention
from medusa_sim.operators.table import check_rows, operators_of
from medusa_sim.specs.mixers import Grouped

LATENT = 512 + 64


@given(heads=st.integers(1, 128), queries=st.integers(1, 16), keys=st.integers(16, 10_000))
def test_the_latent_is_read_once_for_all_heads_and_candidates(heads, queries, keys):
    read = latent(heads=heads, q_len=queries, kv_len=keys).kv_bytes
    assert read == 2 * keys * LATENT


@given(heads=st.integers(1, 64), queries=st.integers(1, 16))
def test_candidates_cost_what_as_many_heads_cost(heads, queries):
    several, wide = latent(heads=heads, q_len=queries), latent(heads=heads * queries)
    assert several.flops == wide.flops
    assert several.bytes == wide.bytes


def test_a_cache_of_eight_bits_is_half_as_long_and_keeps_its_kernels_apart():
    plain = latent()
    small = replace(plain, kv_dtype="fp8")
    assert small.kv_bytes == plain.kv_bytes / 2
    assert (plain.form, small.form) == ("decode_bf16", "decode_bf16_fp8")
    assert plain.form in small.forms
    assert plain.key != small.key


def test_prefill_expands_keys_and_values_of_each_head():
    whole = latent("mla_prefill", q_len=1024)
    assert whole.kv_bytes == 2 * 16 * 1024 * (192 + 128)
    assert whole.flops == pytest.approx(2 * 16 * (1024 * 1025 / 2) * (192 + 128))


@pytest.mark.parametrize(("kind", "layers"), [("mla_decode", 5), ("mla_prefill", 4)])
def test_a_module_holds_the_weights_of_deepseek_v3(kind, layers):
    module = replace(latent(kind, heads=128), scope="module")
    assert len(module.projections) == layers
    weights = sum(float(np.max(each.weight_bytes)) / 2 for each in module.projections)
    # arXiv 2412.19437, section 4.2: d_c 512, d'_c 1536, 128 heads of 128, hidden 7168.
    assert weights == 7168 * (1536 + 576) + 1536 * 128 * 192 + 512 * 128 * 256 + 128 * 128 * 7168
    alone = module.kernel_alone
    assert module.flops == alone.flops + sum(each.flops for each in module.projections)
    assert module.bytes == alone.bytes + sum(each.bytes for each in module.projections)


def test_rows_of_a_recorded_table_are_read():
    frame = pd.DataFrame(
        {
            "engine": "vllm", "kernel": "FLASHMLA", "scope": ["kernel", "module", "module"],
            "phase": ["decode", "decode", "prefill"], "mla_dtype": "bfloat16",
            "kv_dtype": ["bfloat16", "fp8", "bfloat16"], "gemm_dtype": ["none", "fp8_block", "bfloat16"],
            "heads": 16, "batch": 4, "q_len": [1, 1, 64], "kv_len": 64,
        }
    )  # fmt: skip
    found = {operator.form: index.tolist() for index, operator in operators_of(check_rows(frame, "mla"))}
    expected = {"decode_bf16": [0], "decode_bf16_fp8_module_fp8_block": [1], "prefill_bf16_module_bf16": [2]}
    assert found == expected


def test_a_cache_without_the_new_tokens_is_refused():
    row = {"op": "mla_decode", "dtype": "bf16", "batch": 1, "q_len": 8, "kv_len": 4, "heads": 16}
    with pytest.raises(DataError, match="at least q_len"):
        check_rows(pd.DataFrame([row]), "mla")


@given(keys=st.integers(1, 100_000), queries=st.integers(1, 64), window=st.integers(1, 8192))
def test_a_window_ends_what_attention_reads(keys, queries, window):
    keys = max(keys, queries)
    oldest_seen = max(keys - queries + 1 - window, 0)
    mixer = Grouped(heads=8, kv_heads=8, head_dim=128, size=window)
    seen = float(mixer.keys(np.array(float(keys)), np.array(float(queries))))
    assert seen == keys - oldest_seen
    layer = Attention(
        name="window", kind="verify_attention", dtype="bf16", batch=1, q_len=queries, kv_len=seen, heads=8,
        kv_heads=2, head_dim=128,
    )  # fmt: skip
    assert layer.kv_bytes == 2 * 2 * 2 * 128 * seen
    assert layer.bytes <= layer.with_columns(kv_len=keys).bytes
