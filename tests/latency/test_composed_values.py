"""Bands, bounds and times put together of several kernels, by hand."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from left_out import numbers_left_out
from made_up import made_up_fit

from medusa_sim.gpus.gpu import load_gpu
from medusa_sim.latency.bands import KernelParts, calibrated_time, residual_band
from medusa_sim.latency.composed import sparse_time, verify_in_window
from medusa_sim.latency.operator_time import Bound, OperatorTime, Source, replaced_where
from medusa_sim.operators.gemm import Gemm
from medusa_sim.operators.sparse import Sparse
from medusa_sim.operators.window import WindowAttention

H100 = load_gpu("h100-sxm")


def _time(us: Any, low: float = 0.9, high: float = 1.2, **more: Any) -> OperatorTime:
    one = np.atleast_1d(us)
    given = {"bound": np.zeros(1, np.int8), "source": np.full(1, Source.CALIBRATED, np.int8), **more}
    return OperatorTime(time_us=one, low_us=low * one, high_us=high * one, **given)


def _band(time: OperatorTime) -> list[float]:
    return [float(np.squeeze(each)) for each in (time.low_us, time.time_us, time.high_us)]


def test_ranges_of_a_band_end_with_their_largest_size_and_the_last_goes_on():
    fit = made_up_fit((4.0, 0.9, 1.1), (16.0, 0.8, 1.3))
    low, high = residual_band(fit.residuals, np.array([1.0, 4.0, 4.1, 16.0, 17.0]))
    assert low.tolist() == [0.9, 0.9, 0.8, 0.8, 0.8]
    assert high.tolist() == [1.1, 1.1, 1.3, 1.3, 1.3]


@pytest.mark.parametrize(
    ("fixed_us", "memory_us", "work_us", "bound"),
    [
        (50.0, 30.0, 20.0, Bound.MEMORY), (50.1, 30.0, 20.0, Bound.LATENCY), (0.0, 60.0, 60.0, Bound.MEMORY),
        (0.0, 60.0, 60.1, Bound.COMPUTE), (50.1, 20.0, 30.0, Bound.LATENCY),
    ],
)  # fmt: skip
def test_more_than_half_of_a_time_binds_else_the_longer_part(fixed_us, memory_us, work_us, bound):
    layer = Gemm(name="", m=8, n=64, k=64, dtype="bf16")
    fit = made_up_fit((64.0, 0.9, 1.1))
    parts = KernelParts(np.array(100.0), fixed_us, np.array(memory_us), np.array(work_us))
    time = calibrated_time(H100, [(fit, layer)], parts)
    assert int(time.bound) == bound
    assert int(time.source) == Source.CALIBRATED
    assert [float(each) for each in (time.low_us, time.time_us, time.high_us)] == pytest.approx(
        [90, 100, 110]
    )


def test_bands_of_several_kernels_multiply_and_the_worst_source_is_the_wholes():
    """0.9 x 0.8 and 1.1 x 1.5 of 130 us, what borrowed kernels of 100 us take at 1.3 times; off by 0.7."""
    layer = Gemm(name="", m=8, n=64, k=64, dtype="bf16")
    own = made_up_fit((64.0, 0.9, 1.1))
    lent = msgspec.structs.replace(
        made_up_fit((64.0, 0.8, 1.5)), inherited_from="a40:torch:bf16", slower=1.3, together=0.7
    )
    parts = KernelParts(np.array(100.0), 0.0, np.array(60.0), np.array(20.0))
    time = calibrated_time(H100, [(own, layer), (lent, layer)], parts)
    assert _band(time) == pytest.approx([130 * 0.72, 130, 130 * 1.65])
    assert (int(time.source), time.together) == (Source.BORROWED, 0.7)
    assert calibrated_time(H100, [(own, layer)], parts).together == 0.5
    other = calibrated_time(H100, [(own, layer)], parts, form="fp8")
    half = np.hypot(np.log(1.1 / 0.9) / 2, 0.24)
    assert float(np.log(other.high_us / other.low_us)) == pytest.approx(2 * half)
    assert int(other.source) == Source.EXTRAPOLATED
    assert int(calibrated_time(H100, [(own, layer)], parts, form="fp16").source) == 2


def test_a_time_is_filled_where_another_is_taken():
    found = replaced_where(
        _time(10.0, together=0.3),
        _time(np.array([20.0, 30.0]).tolist(), together=0.6),
        np.array([True, False]),
    )
    assert found.time_us.tolist() == [20.0, 10.0]
    assert found.high_us.tolist() == [24.0, 12.0]
    assert found.together == 0.6


@pytest.mark.parametrize(
    ("prefix", "keys", "grown_us", "time_us"),
    [
        (100.0, 101.0, 15.0, 12.0),
        (127.0, 128.0, 15.0, 12.0),
        (500.0, 128.0, 15.0, 12.0),
        (500.0, 128.0, 4.0, 8.0),
    ],
)
def test_several_queries_in_a_window_grow_as_attention_does(prefix, keys, grown_us, time_us):
    """8 us for one query, and 10 or 15 for one or several of all tokens, are 12; never less than 8."""
    asked: list[Any] = []
    operator = WindowAttention(
        name="", phase="verify", batch=2, q_len=4, prefix=prefix, heads=8, kv_heads=2, head_dim=128,
        window=128, dtype="bf16",
    )  # fmt: skip

    def time(one: Any) -> OperatorTime:
        asked.append(one)
        if isinstance(one, WindowAttention):
            return _time(8.0, 0.8, 1.25, together=0.7, place="here")
        if one.kind == "decode_attention":
            return _time(10.0)
        source = np.full(1, Source.BORROWED, np.int8)
        return _time(grown_us, 0.5, 2.0, source=source, bound=np.ones(1, np.int8))

    found = verify_in_window(SimpleNamespace(time=time), operator)
    band = np.exp(np.hypot(np.log(2.0), np.log(1.25)))
    assert _band(found) == pytest.approx([time_us / band, time_us, time_us * band])
    assert (int(found.source[0]), int(found.bound[0]), found.together) == (Source.BORROWED, 1, 0.7)
    window, several, plain = asked[0], asked[1], asked[2]
    assert (window.phase, window.q_len, float(window.prefix)) == ("generation", 1, prefix)
    assert (plain.q_len, float(plain.kv_len)) == (1, keys)
    assert (several.q_len, float(several.kv_len), several.heads) == (4, float(operator.kv_len), 8)


@pytest.mark.parametrize(
    ("own_us", "apart_us", "plain_us", "time_us"),
    [(10.0, 12.0, 5.0, 10.0), (10.0, 8.0, 5.0, 8.0), (10.0, 8.0, 9.0, 9.0)],
)
def test_a_sparse_module_takes_its_queries_one_by_one_where_that_is_shorter(
    own_us, apart_us, plain_us, time_us
):
    """And never less time than one query."""
    operator = Sparse(
        name="", kind="dsa", dtype="bf16", phase="verify", batch=2, q_len=4, prefix=1000, heads=16
    )
    one_by_one = operator.one_by_one()
    model = SimpleNamespace(
        cold=True, chosen_time=lambda one: _time(own_us),
        time=lambda one: _time(apart_us if one == one_by_one else plain_us),
    )  # fmt: skip
    assert float(sparse_time(model, operator).time_us[0]) == time_us
    model.cold = False
    assert float(sparse_time(model, operator).time_us[0]) == own_us
    assert replace(operator, phase="generation", q_len=1) != one_by_one


def test_what_is_left_out_is_nothing_but_for_these():
    """Factors and counts are one, sizes those that most have."""
    assert numbers_left_out("latency") == {
        "Choice.error": 0.24,
        "OperatorTime.together": 0.5,
    }
