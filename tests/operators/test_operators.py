"""Counts against the Medusa paper's tables, what must hold of any; kinds stand wherever they are listed."""

import inspect

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from medusa_sim.operators.columns import KINDS as NAMES
from medusa_sim.operators.kinds import KIND_OF, KINDS
from medusa_sim.operators.operator import Attention, Elementwise, Gemm, operational_intensity
from medusa_sim.specs.gpu import load_gpu
from medusa_sim.specs.inheritance import BORROWED, InheritFile
from medusa_sim.specs.kernels import SECTIONS

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
def test_a_record_names_functions_columns_and_a_section_that_are_there(kind):
    wanted = ("cold", "form") if kind.is_chosen else ("model", "operator")
    told = inspect.signature(kind.timer).parameters
    assert set(wanted) <= set(told) or any(each.kind is each.VAR_KEYWORD for each in told.values())
    for architecture in ("hopper", "cpu"):
        assert "source" in inspect.signature(kind.fitter(architecture)).parameters
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
