"""Counts of linear attention, windows, sparse attention and hyper-connections."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from medusa_sim.operators.recurrent import Recurrent
from medusa_sim.operators.sparse import Sparse
from medusa_sim.operators.stream import HyperConnection
from medusa_sim.operators.table import check_rows, operators_of
from medusa_sim.operators.window import WindowAttention

K3 = Recurrent(name="kda", kind="kda", dtype="bf16", batch=1, q_len=1, heads=96, key_heads=96)


def test_sizes_of_states_and_projections_are_as_published():
    """6.29 MB in fp32 and 0.22 MB of convolution windows a layer (arXiv 2510.26692's sizes)."""
    assert float(K3.state_bytes) == pytest.approx(6.29e6, rel=1e-3)
    windows = dataclasses.replace(K3, part="conv")
    assert float(windows.state_bytes) == pytest.approx(0.22e6, rel=0.01)
    state = float(K3.state_bytes)
    verified, prefilled = (
        float(dataclasses.replace(K3, q_len=4, phase=phase).bytes) for phase in ("verify", "context")
    )
    assert verified - prefilled == pytest.approx(3.0 * state)
    assert float(K3.flops) == 7.0 * 96 * 128 * 128
    # 0.187 G of latent attention and 0.014 G of the indexer a layer (its config).
    layer = Sparse(name="d", kind="dsa", dtype="bf16", batch=1, q_len=1, prefix=1, heads=128)
    assert float(layer.weights) == pytest.approx(0.187e9 + 0.014e9, rel=0.01)


@pytest.mark.parametrize(("prefix", "q_len", "window"), [(0, 5, 3), (10, 1, 4), (2, 6, 4), (0, 3, 8)])
def test_pairs_of_a_window_are_those_that_one_counts(prefix, q_len, window):
    one = WindowAttention(
        name="w", dtype="bf16", batch=2, q_len=q_len, prefix=prefix, heads=4, kv_heads=2, head_dim=64,
        window=window,
    )  # fmt: skip
    counted = sum(min(position, window) for position in range(prefix + 1, prefix + q_len + 1))
    assert float(one.pairs) == counted
    assert float(one.flops) == 4.0 * 2 * 4 * 64 * counted
    assert float(one.kv_bytes) == 2 * 2 * 2 * 2 * 64 * min(prefix + q_len, window + q_len - 1)


@pytest.mark.parametrize(
    ("batch", "kv_heads", "prefix", "shared"),
    [(16, 1, 16383, 4.0), (64, 1, 127, 1.0), (512, 1, 4095, 8.0), (64, 8, 65535, 8.0), (1, 1, 2047, 0.0)],
)
def test_keys_are_split_as_tensorrt_llm_does(batch, kv_heads, prefix, shared):
    """Waves over 132 multiprocessors: 32 splits of 16,384 keys, at most eight blocks each, none for few."""
    one = WindowAttention(
        name="w", dtype="bf16", batch=batch, q_len=1, prefix=prefix, heads=8 * kv_heads, kv_heads=kv_heads,
        head_dim=64, window=128,
    )  # fmt: skip
    steps = one.steps(132)
    assert float(steps["split_waves"]) == shared
    assert float(steps["alone"]) == float(shared == 0.0)
    alone = dataclasses.replace(one, heads=kv_heads).steps(132)
    assert float(alone["alone"]) == 1.0


def test_keys_are_chosen_up_to_the_limit_and_streams_are_read_and_written():
    few, many = (
        Sparse(name="d", kind="dsa", dtype="bf16", batch=1, q_len=1, prefix=prefix, heads=128).loads
        for prefix in (4095, 65535)
    )
    assert few["keys"] == many["keys"] == 2048 * 1152
    assert many["index"] == 16 * few["index"]
    before, after = (
        float(HyperConnection(name="h", dtype="bf16", tokens=3, hidden=7168, part=part).bytes)
        for part in ("pre", "post")
    )
    assert (before, after) == (3 * 7168 * 5 * 2, 3 * 7168 * 9 * 2)


def test_rows_of_other_projects_are_read_as_they_are():
    row = {
        "kernel": "fused", "phase": "generation", "batch": 4, "q_len": 1, "time_us": 9.0,
        "engine": "tensorrt-llm",
    }  # fmt: skip
    sizes = {"num_k_heads": 16, "head_k_dim": 128, "num_v_heads": 32, "head_v_dim": 128, "d_conv": 4}
    frame = pd.DataFrame(
        [row | sizes | {"op": "gdn"}, row | sizes | {"op": "gdn", "kernel": "causal_conv1d_update"}]
    )
    checked = check_rows(frame, "made", need_time=True)
    assert {operator.form for _, operator in operators_of(checked)} == {
        "gdn_state_generation",
        "gdn_conv_generation",
    }
    assert set(checked["engine"]) == {"trtllm"}
    window = {
        "batch": 2, "q_len": 1, "heads": 8, "kv_heads": 2, "head_dim": 64, "attn_dtype": "bfloat16",
        "kv_cache_dtype": "fp8", "prefix": 0, "window": 128.0, "phase": "generation",
    }  # fmt: skip
    ((_, operator),) = operators_of(check_rows(pd.DataFrame([window]), "made"))
    assert (operator.form, operator.kind) == ("generation_bf16_fp8_64", "window_attention")
    sparse = {
        "op": "csa", "batch": 2, "q_len": 4, "heads": 64, "prefix": 1024, "phase": "context",
        "verifies": True, "mla_dtype": "bfloat16", "kv_cache_dtype": "fp8_e4m3", "gemm_type": "fp8_block",
    }  # fmt: skip
    ((_, operator),) = operators_of(check_rows(pd.DataFrame([sparse]), "made"))
    assert operator.form == "csa_verify_fp8_fp8_block"
    assert np.all(operator.bytes > 0.0)
