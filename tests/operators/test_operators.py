"""Counts against the Medusa paper's tables, what must hold of any; kinds stand wherever they are listed."""

from dataclasses import replace

import msgspec
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up import latent

from medusa_sim.errors import DataError
from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.gpus.inheritance import BORROWED, InheritFile
from medusa_sim.gpus.kernels import SECTIONS
from medusa_sim.lab.calibrate.fits import fitter
from medusa_sim.lab.calibrate.stream import fit_stream
from medusa_sim.latency.laws import LAWS
from medusa_sim.models.mixers import Grouped
from medusa_sim.operators.attention import Attention
from medusa_sim.operators.columns import KINDS as NAMES
from medusa_sim.operators.elementwise import Elementwise
from medusa_sim.operators.gemm import Gemm
from medusa_sim.operators.hyper_connection import HyperConnection
from medusa_sim.operators.kinds import KIND_OF, KINDS
from medusa_sim.operators.operator import operational_intensity
from medusa_sim.operators.recurrent import Recurrent
from medusa_sim.operators.sparse import Sparse
from medusa_sim.operators.stream import Stream
from medusa_sim.operators.table import check_rows, operators_of
from medusa_sim.operators.window import WindowAttention

SIZES = st.integers(min_value=1, max_value=4096)

# Medusa paper, Table 6 (Llama-33B: 52 heads of 128, batch 16): intensity by context and candidates.
TABLE_6 = {(128, 1): 0.98, (128, 16): 12.8, (1024, 64): 40.96, (8192, 112): 59.3, (512, 48): 32.68}
# Table 8 (hidden 6656, intermediate 17920): intensity by batch and candidates.
TABLE_8 = {(1, 1): 1.0, (1, 16): 15.95, (4, 48): 184.69, (16, 112): 1308.76, (64, 112): 2893.91}
PRINTED = 0.006
"""The tables print two decimals."""


def attention(kind: str = "qk", **shape: int) -> Attention:
    sizes = {"batch": 16, "q_len": 1, "kv_len": 128, "heads": 52, "kv_heads": 52, "head_dim": 128} | shape
    return Attention(name="attention", kind=kind, dtype="fp16", **sizes)


@pytest.mark.parametrize(("shape", "printed"), TABLE_6.items())
@pytest.mark.parametrize("kind", ["qk", "pv"])
def test_attention_intensity_is_table_6(kind, shape, printed):
    seq_len, candidates = shape
    operator = attention(kind, q_len=candidates, kv_len=seq_len)
    # s q d / (s q + (s + q) d): the queries (or outputs) are q rows, K (or V) s rows.
    assert operational_intensity(operator) == pytest.approx(printed, abs=PRINTED)


@pytest.mark.parametrize(("shape", "printed"), TABLE_8.items())
def test_linear_intensity_is_table_8(shape, printed):
    batch, candidates = shape
    operator = Gemm(name="up", m=batch * candidates, n=17920, k=6656, dtype="fp16")
    assert operational_intensity(operator) == pytest.approx(printed, abs=PRINTED)


@given(batch=SIZES, q_len=SIZES, kv_len=SIZES, groups=st.integers(1, 16))
def test_grouped_queries_read_kv_by_kv_heads(batch, q_len, kv_len, groups):
    kv_heads = 8
    shape = {"batch": batch, "q_len": q_len, "kv_len": kv_len + q_len, "head_dim": 128}
    grouped = attention("verify_attention", heads=kv_heads * groups, kv_heads=kv_heads, **shape)
    full = attention("verify_attention", heads=kv_heads * groups, kv_heads=kv_heads * groups, **shape)
    assert grouped.kv_bytes * groups == pytest.approx(full.kv_bytes, rel=1e-12)
    assert grouped.flops == full.flops


@given(batch=SIZES, candidates=SIZES, seq_len=SIZES)
def test_verification_reads_each_sequence_once(batch, candidates, seq_len):
    verify = attention("verify_attention", batch=batch, q_len=candidates, kv_len=seq_len + candidates)
    rows = 2 * batch * 52 * 128 * 2  # K and V rows of all heads, two bytes each
    assert verify.kv_bytes == pytest.approx(rows * (seq_len + candidates), rel=1e-12)


@given(q_len=SIZES, prefix=st.integers(0, 4096))
def test_causal_prefill_skips_the_upper_triangle(q_len, prefix):
    prefill = attention("prefill_attention", q_len=q_len, kv_len=prefix + q_len)
    pairs = sum(prefix + row + 1 for row in range(q_len)) if q_len <= 64 else None
    if pairs is not None:
        assert prefill.attended_pairs == pytest.approx(pairs, rel=1e-12)
    masked = attention("verify_attention", q_len=q_len, kv_len=prefix + q_len)
    assert prefill.attended_pairs <= masked.attended_pairs


def test_fused_decode_quantised_weights_and_elementwise_kernels_move_what_they_must():
    kv_len = np.arange(1, 8192, 37)
    fused = attention("decode_attention", kv_len=kv_len)
    unfused = attention("qk", kv_len=kv_len).bytes + attention("pv", kv_len=kv_len).bytes
    assert np.all(fused.bytes <= unfused)
    full = Gemm(name="x", m=64, n=4096, k=4096, dtype="fp16")
    int4 = Gemm(name="x", m=64, n=4096, k=4096, dtype="fp16", weight_dtype="int4")
    assert int4.weight_bytes * 4 == full.weight_bytes
    assert int4.activation_bytes == full.activation_bytes
    assert int4.flops == full.flops
    gate = Elementwise(name="act", kind="activation", m=3, n=100, dtype="fp16")
    assert gate.bytes == 2 * 3 * 3 * 100  # gate and up read, one written, two bytes each
    batch = np.array([1, 4])[:, None]
    candidates = np.array([1, 16, 64])[None, :]
    grid = Gemm(name="x", m=batch * candidates, n=11008, k=4096, dtype="bf16")
    assert grid.flops.shape == (2, 3)
    point = Gemm(name="x", m=4 * 16, n=11008, k=4096, dtype="bf16")
    assert point.flops.shape == ()
    assert grid.flops[1, 1] == point.flops


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.section)
def test_a_record_has_a_law_a_fit_columns_and_a_section_that_are_there(kind):
    has_own = kind in LAWS or not kind.is_chosen
    assert has_own != issubclass(kind.operator, Stream), "a law of its own, or that of streams"
    for architecture in ("hopper", "cpu"):
        assert (fitter(kind, architecture) is fit_stream) != has_own, "and the fit of that law"
    assert {name for columns in kind.groups for name in columns} <= set(kind.operator.COLUMNS)
    assert list(kind.ranges) == sorted(set(kind.ranges))
    assert kind.title
    assert kind.section in SECTIONS
    assert kind.section in BORROWED


def test_sections_kinds_and_names_name_each_other_once():
    assert {section for kind in KINDS for section in (kind.section, kind.serial) if section} == set(SECTIONS)
    assert set(BORROWED) == set(InheritFile.__struct_fields__) - {"reason", "widen", "slower"}
    assert len({kind.title for kind in KINDS}) == len(KINDS)
    names = [name for kind in KINDS for name in kind.names]
    assert len(names) == len(set(names))
    assert set(names) == set(KIND_OF)
    assert set(names) - {"gemm"} <= set(NAMES)  # a linear layer may have any name
    held = load_gpu("h100-sxm").kernel_set("sglang")
    for kind in KINDS:
        assert all(isinstance(kernel, msgspec.Struct) and kernel.fit for kernel in kind.table(held).values())


LATENT = 512 + 64


@given(heads=st.integers(1, 128), queries=st.integers(1, 16), keys=st.integers(16, 10_000))
def test_the_latent_is_read_once_for_all_heads_and_candidates(heads, queries, keys):
    read = latent(heads=heads, q_len=queries, kv_len=keys).kv_bytes
    assert read == 2 * keys * LATENT


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
            "op": ["mla_decode", "mla_decode", "mla_prefill"], "engine": "vllm", "kernel": "FLASHMLA",
            "scope": ["kernel", "module", "module"], "mla_dtype": "bfloat16",
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


K3 = Recurrent(name="kda", kind="kda", dtype="bf16", batch=1, q_len=1, heads=96, key_heads=96)


def test_sizes_of_states_and_projections_are_as_published():
    """6.29 MB in fp32 and 0.22 MB of convolution windows a layer (arXiv 2510.26692's sizes)."""
    assert float(K3.state_bytes) == pytest.approx(6.29e6, rel=1e-3)
    windows = replace(K3, part="conv")
    assert float(windows.state_bytes) == pytest.approx(0.22e6, rel=0.01)
    state = float(K3.state_bytes)
    verified, prefilled = (float(replace(K3, q_len=4, phase=phase).bytes) for phase in ("verify", "context"))
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
    [
        (16, 1, 16383, 4.0),
        (64, 1, 127, 1.0),
        (512, 1, 4095, 8.0),
        (64, 8, 65535, 8.0),
        (1, 1, 2047, 0.0),
        (2112, 1, 4095, 16.0),  # more sequences than eight blocks a multiprocessor: one split each
    ],
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
    alone = replace(one, heads=kv_heads).steps(132)
    assert float(alone["alone"]) == 1.0


def test_names_of_columns_that_others_publish():
    """Mamba-2, hyper-connections, dispatch and verification attention with the columns of their tables."""
    sizes = {"batch": 4, "q_len": 1, "nheads": 64, "n_groups": 8, "head_dim": 64, "d_state": 128, "d_conv": 4}
    rows = [
        {"op": "mamba2", "kernel": "causal_conv1d_update", "phase": "generation", **sizes},
        {"op": "hyper_connections", "op_name": "post", "num_tokens": 3, "hidden_size": 64, "hc_mult": 4,
         "num_sites": 2},
        {"op": "combine", "backend": "deepep_ll", "phase": "combine", "dtype": "default", "ep": 8,
         "hidden": 64, "topk": 2, "experts": 16, "tokens": 5},
        {"q_heads": 32, "kv_heads": 8, "head_dim": 128, "batch": 1, "q_len": 4, "kv_len": 512,
         "dtype": "bf16", "engine_or_library": "tensorrt-llm"},
        {"q_heads": 16, "kv_heads": 1, "head_dim": 576, "batch": 1, "q_len": 4, "kv_len": 512,
         "dtype": "bf16"},
    ]  # fmt: skip
    found = [operators_of(check_rows(pd.DataFrame([row]), "made"))[0][1] for row in rows]
    mamba, streams, combine, verify, latent = found
    assert [operator.kind for operator in found] == [
        "mamba2", "hyper_connections", "combine", "verify_attention", "mla_decode",
    ]  # fmt: skip
    assert isinstance(mamba, Recurrent)
    widths = [int(np.max(mamba.sizes[size])) for size in ("heads", "key_heads", "key_dim", "value_dim")]
    assert (mamba.part, widths) == ("conv", [64, 8, 128, 64])
    assert isinstance(streams, HyperConnection)
    assert (streams.part, int(np.max(streams.tokens)), int(np.max(streams.sites))) == ("post", 3, 2)
    assert combine.dtype == "bf16"
    assert float(np.max(verify.sizes["heads"])) == 32
    assert float(np.max(latent.sizes["heads"])) == 16


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
        "op": "window_attention", "batch": 2, "q_len": 1, "heads": 8, "kv_heads": 2, "head_dim": 64,
        "attn_dtype": "bfloat16", "kv_cache_dtype": "fp8", "prefix": 0, "window": 128.0,
        "phase": "generation",
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


def test_hyper_connections_have_four_streams_and_one_site_unless_told_otherwise():
    """(J1): behind a block eight streams and its output, of 3 tokens of 64 values in 16 bits."""
    row = {"op": "hyper_connections", "part": "post", "tokens": 3, "hidden": 64}
    ((_, of_row),) = operators_of(check_rows(pd.DataFrame([row]), "made"))
    made = HyperConnection(name="h", dtype="bf16", tokens=3, hidden=64, part="post")
    assert float(np.max(of_row.bytes)) == float(made.bytes) == 3 * 64 * (2 * 4 + 1) * 2
