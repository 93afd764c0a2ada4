"""Unfused attention products: physics as properties, the Medusa paper's Table 6 as golden values."""

import dataclasses
import math

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up import made_up_fit

from medusa_sim.errors import DataError, SpecError
from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.gpus.kernels import UnfusedKernel
from medusa_sim.lab.calibrate.bands import residual_bands
from medusa_sim.lab.calibrate.rows import Rows
from medusa_sim.lab.calibrate.unfused import fit_unfused
from medusa_sim.lab.reproduce.published import operator_table
from medusa_sim.latency.operator_time import Bound
from medusa_sim.latency.unfused import filled_rows, unfused_attention_time
from medusa_sim.operators.attention import Attention

GPU = load_gpu("a100-80gb-pcie")
KERNEL = UnfusedKernel(
    ramp_us=30.0, vector_ramp_us=35.0, bandwidth_fraction=0.8, peak_fraction=0.9, l2_ratio=2.5, norm=2.0,
    row_tiles=(64, 128), repeated=False, fit=made_up_fit((64.0, 0.9, 1.2), (512.0, 0.95, 1.1)),
)  # fmt: skip
SIZES = st.fixed_dictionaries(
    {
        "batch": st.integers(1, 64),
        "q_len": st.integers(1, 300),
        "kv_len": st.integers(1, 8192),
        "kv_heads": st.sampled_from([4, 8, 32]),
        "head_dim": st.sampled_from([64, 128]),
    }
)


def product(**sizes: object) -> Attention:
    shape = {"batch": 16, "q_len": 1, "kv_len": 1024, "heads": 32, "kv_heads": 32, "head_dim": 128, **sizes}
    return Attention(name="qk", kind="qk", dtype="fp16", **shape)


def time_us(operator: Attention, kernel: UnfusedKernel = KERNEL) -> np.ndarray:
    return unfused_attention_time(GPU, kernel, operator).time_us


@given(sizes=SIZES, cold=st.booleans(), repeated=st.booleans(), tiles=st.sampled_from([(64, 128), (64,)]))
def test_the_time_is_that_of_the_equations(sizes, cold, repeated, tiles):
    kernel = msgspec.structs.replace(KERNEL, repeated=repeated, row_tiles=tiles)
    b, q, s, n_kv, d = (sizes[name] for name in ("batch", "q_len", "kv_len", "kv_heads", "head_dim"))
    bandwidth, peak = GPU.bandwidth_bytes_per_s / 1e6, GPU.peak("fp16") / 1e6
    moved = 2 * (b * n_kv * s * d + b * 32 * (q * d + s * q))
    resident = max(0.0, 1 - moved / GPU.l2_bytes) if repeated or not cold else 0.0
    memory = moved * ((1 - resident) / (0.8 * bandwidth) + resident / (2.5 * bandwidth))
    tile = min((each for each in tiles if each >= q), default=tiles[-1])
    filled = 0 if q == 1 else tile * math.ceil(q / tile)
    arithmetic = 2 * b * 32 * filled * s * d / (0.9 * peak)
    told = (35.0 if q == 1 else 30.0) + math.hypot(memory, arithmetic)
    found = unfused_attention_time(GPU, kernel, product(**sizes), cold=cold).time_us
    assert float(found) == pytest.approx(told, rel=1e-6)


@given(sizes=SIZES, axis=st.sampled_from(["batch", "kv_len"]), repeated=st.booleans())
def test_more_sequences_or_keys_never_take_less_time(sizes, axis, repeated):
    kernel = msgspec.structs.replace(KERNEL, repeated=repeated)
    assert time_us(product(**{**sizes, axis: 2 * sizes[axis]}), kernel) >= time_us(product(**sizes), kernel)


def test_rows_fill_tiles_and_a_larger_tile_is_a_step():
    queries = np.array([1.0, 64.0, 65.0, 128.0, 129.0, 300.0])
    assert filled_rows((128, 64), queries).tolist() == [64.0, 64.0, 128.0, 128.0, 256.0, 384.0]
    # Bytes grow by 0.3 % from 64 to 65 rows; the arithmetic doubles.
    kernel = msgspec.structs.replace(KERNEL, peak_fraction=0.3)
    assert time_us(product(q_len=65), kernel) > 1.1 * time_us(product(q_len=64), kernel)


def test_bounds_name_what_takes_the_time_and_a_dtype_without_a_peak_is_refused():
    def bound(operator: Attention) -> int:
        return int(unfused_attention_time(GPU, KERNEL, operator).bound)

    assert bound(product(batch=1, kv_len=128)) == Bound.LATENCY
    assert bound(product(kv_len=8192)) == Bound.MEMORY
    slow = msgspec.structs.replace(KERNEL, peak_fraction=0.1)
    assert unfused_attention_time(GPU, slow, product(q_len=128, kv_len=8192)).bound == Bound.COMPUTE
    operator = dataclasses.replace(product(), dtype="fp8")
    with pytest.raises(SpecError, match="no dense peak for dtype 'fp8'"):
        unfused_attention_time(GPU, KERNEL, operator)


def rows_of(kernel: UnfusedKernel, lengths: tuple[int, ...] = (128, 512, 2048)) -> Rows[Attention]:
    kv_len, q_len = (axis.ravel().astype(float) for axis in np.meshgrid(lengths, (1, 16, 64, 80, 112)))
    same = np.ones_like(kv_len)
    heads = {"heads": 52 * same, "kv_heads": 52 * same, "head_dim": 128 * same}
    operator = product(batch=16 * same, q_len=q_len, kv_len=kv_len, **heads)
    return Rows(operator, unfused_attention_time(GPU, kernel, operator).time_us)


@settings(max_examples=5, deadline=None)
@given(ramp_us=st.floats(5, 50), bandwidth=st.floats(0.6, 0.95), peak=st.floats(0.5, 0.95))
def test_a_fit_recovers_what_made_the_rows(ramp_us, bandwidth, peak):
    made = msgspec.structs.replace(
        KERNEL, ramp_us=ramp_us, bandwidth_fraction=bandwidth, peak_fraction=peak, repeated=True
    )
    found = fit_unfused(rows_of(made), GPU, source="made up")
    assert found.fit.fit_error < 1e-4
    assert found.ramp_us == pytest.approx(ramp_us, rel=1e-2)
    assert found.bandwidth_fraction == pytest.approx(bandwidth, rel=1e-2)


def test_a_fit_needs_lengths_and_both_kinds_of_rows():
    with pytest.raises(DataError, match="2 context lengths"):
        fit_unfused(rows_of(KERNEL, (128, 512)), GPU, source="short")
    rows = rows_of(KERNEL)
    with pytest.raises(DataError, match="0 of 12 rows with one query"):
        fit_unfused(rows.where(rows.operator.q_len > 1), GPU, source="no decode")


def test_bands_hold_the_prediction():
    measured = np.array([1.1, 1.2, 1.3, 0.9])
    bands = residual_bands(measured, np.ones(4), np.array([1.0, 2.0, 3.0, 100.0]), (16, 64, 512))
    assert [band.size_max for band in bands] == [16.0, 512.0]
    assert (bands[0].low, bands[1].high) == (1.0, 1.0)
    assert bands[0].high == pytest.approx(1.28)


def test_table_6_refits_to_the_shipped_kernel():
    table = operator_table("medusa_table6")
    operator = product(**{name: table[name].to_numpy() for name in Attention.COLUMNS})
    rows = Rows(operator, table["time_us"].to_numpy())
    found = fit_unfused(rows, GPU, source="Table 6")
    shipped = GPU.kernel_set("paper").unfused
    assert shipped is not None
    # Goal: 1.5 % of time. Held out are whole context lengths.
    assert found.fit.fit_error < 0.012
    assert found.fit.heldout_error < 0.015
    for name in ("ramp_us", "vector_ramp_us", "bandwidth_fraction", "peak_fraction", "l2_ratio", "norm"):
        # The file keeps six digits; an optimiser stops where it likes within a tenth of a percent.
        assert getattr(shipped, name) == pytest.approx(getattr(found, name), rel=5e-3), name
