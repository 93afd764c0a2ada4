"""Errors that fits count, and rows that they take, thin and hold out, by hand."""

from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from fitted_rows import GPU, of

from medusa_sim.errors import DataError
from medusa_sim.gpus.kernels import GemmKernel
from medusa_sim.lab.calibrate.bands import residual_bands
from medusa_sim.lab.calibrate.driver import Budget, FitDriver
from medusa_sim.lab.calibrate.errors import growth_mape, ratio_mape
from medusa_sim.lab.calibrate.gemm import (
    _resolution_us,
    _thin,
    _with_hot_weights,
    gemm_start,
)
from medusa_sim.lab.calibrate.rows import Rows, heldout_groups, require_rows
from medusa_sim.lab.calibrate.search import least_log_errors, soft_cost
from medusa_sim.operators.gemm import Gemm


def test_the_objective_counts_small_errors_by_their_square_and_large_ones_by_their_size():
    """sqrt(1 + (0.3 / 0.1)^2) - 1 = 2.162; of 0.01 half of its square, 0.005."""
    assert soft_cost(np.array([0.3])) == pytest.approx(10**0.5 - 1)
    assert soft_cost(np.array([0.01, -0.01])) == pytest.approx(2 * (1.01**0.5 - 1))
    assert soft_cost(np.array([0.3]), scale=0.3) == pytest.approx(2**0.5 - 1)


def test_growth_is_compared_from_every_count_that_has_a_larger_one():
    """From 1 to 2 half as much again as measured, from 2 to 4 right, 1 to 4 as from 1 to 2; 3 has no pair."""
    tokens, shape = np.array([1, 2, 3, 4]), np.zeros(4, dtype=int)
    measured = np.array([10.0, 12.0, 13.0, 16.0])
    predicted = measured * np.array([1.0, 1.5, 9.0, 1.5])
    assert growth_mape(predicted, measured, tokens, shape) == pytest.approx((0.5 + 0.0 + 0.5) / 3)
    order = np.array([2, 0, 3, 1])
    assert growth_mape(*(each[order] for each in (predicted, measured, tokens, shape))) == pytest.approx(
        1 / 3
    )
    # 8 of one shape is not 2 x 4 of another
    assert np.isnan(growth_mape(measured[:2], measured[:2], np.array([4, 8]), np.array([0, 1])))
    eight = growth_mape(np.array([1.0, 1.1]), np.ones(2), np.array([4, 32]), np.zeros(2, dtype=int))
    assert eight == pytest.approx(0.1)
    assert np.isnan(growth_mape(np.ones(2), np.ones(2), np.array([4, 64]), np.zeros(2, dtype=int)))


def test_a_ratio_is_to_the_median_of_one_token():
    m, shape = np.array([1, 1, 1, 4]), np.zeros(4, dtype=int)
    measured = np.array([10.0, 11.0, 99.0, 22.0])
    assert ratio_mape(np.array([5.0, 5.5, 1.0, 11.0]), measured, m, shape) == pytest.approx(
        abs(11.0 / 22.0 / (5.0 / 11.0) - 1.0)
    )


def test_bands_are_the_tenth_and_ninetieth_of_a_hundred():
    """Measured over predicted from 0.5 to 1.5 in hundredths: 0.6 and 1.4. Few rows join the next range."""
    ratio, size = np.linspace(0.5, 1.5, 101), np.full(101, 64.0)
    (band,) = residual_bands(2.0 * ratio, 2.0, size, (64, 128))
    assert (band.size_max, band.low, band.high) == (64.0, pytest.approx(0.6), pytest.approx(1.4))
    (wide,) = residual_bands(2.0 * ratio, 2.0, size, (64, 128), widen=2.0)
    assert wide.high / wide.low == pytest.approx((1.4 / 0.6) ** 2)
    assert wide.high * wide.low == pytest.approx(1.4 * 0.6)
    few = np.concatenate([[1.0] * 9, ratio]), np.concatenate([[32.0] * 9, size])
    joined = residual_bands(few[0], 1.0, few[1], (32, 64), least_rows=10)
    assert [each.size_max for each in joined] == [64.0]
    apart = residual_bands(few[0], 1.0, few[1], (32, 64), least_rows=9)
    assert [each.size_max for each in apart] == [32.0, 64.0]
    # where no range has as many, the last holds all; a band holds the prediction itself
    (alone,) = residual_bands(np.array([1.2, 1.3]), 1.0, np.array([1.0, 40.0]), (32, 64), least_rows=10)
    assert (alone.size_max, alone.low) == (64.0, pytest.approx(1.0))
    (below,) = residual_bands(np.array([0.7, 0.8]), 1.0, np.array([1.0, 2.0]), (32,))
    assert below.high == pytest.approx(1.0)
    assert [each.size_max for each in residual_bands(ratio, 1.0, np.arange(101.0), (50,))] == [50.0]


def test_rows_are_held_out_by_the_remainder_of_their_group():
    """A law that is the mean of its rows: of 1, 2 and 3 each is predicted by the mean of the other two."""
    seen: list[int] = []

    def time(gpu: object, kernel: GemmKernel, operator: Gemm) -> Any:
        return SimpleNamespace(time_us=np.full(operator.m.shape, kernel.ramp_us))

    def refit(kernel: GemmKernel, part: Rows[Gemm]) -> GemmKernel:
        seen.append(part.time_us.size)
        return msgspec.structs.replace(kernel, ramp_us=float(part.time_us.mean()))

    start = msgspec.structs.replace(gemm_start("torch", "fp16", GPU), ramp_us=2.0)
    rows = of([1.0, 2.0, 3.0], m=1.0, n=[64.0, 128.0, 256.0])
    found = FitDriver(GPU, time).with_fit(start, rows, refit, source="made up").fit
    assert seen == [2, 2, 2]
    assert found.rows == 3
    assert found.fit_error == pytest.approx((1.0 + 0.0 + 1 / 3) / 3)
    assert found.heldout_error == pytest.approx((1.5 + 0.0 + 0.5) / 3)
    one = FitDriver(GPU, time).with_fit(start, rows, refit, source="made up", groups=np.array([0, 1, 0])).fit
    assert one.heldout_error == pytest.approx((1.0 + 0.0 + 1 / 3) / 3)  # 2 by the mean of 1 and 3, they by 2
    halves = np.log(found.residuals[0].high / found.residuals[0].low)
    wide = FitDriver(GPU, time).with_fit(start, rows, refit, source="made up", unseen=3.0).fit.residuals[0]
    assert np.log(wide.high / wide.low) == pytest.approx(2.0 * halves)  # 1 + 3 over three groups
    folded = FitDriver(GPU, time, Budget(folds=2)).with_fit(
        start, of([1.0] * 6, m=[1.0] * 6), refit, source="made up", groups=np.arange(6)
    )
    assert seen[-2:] == [3, 3]
    assert folded.fit.heldout_error == 0.0


def test_least_squares_in_the_logarithm_stay_within_bounds():
    """Rows of 2 and 8 have their middle at 4, as a mean of logarithms."""
    rows = np.log([2.0, 8.0])
    found = least_log_errors([1.0], [(0.1, 100.0)], lambda values: np.log(values[0]) - rows)
    assert found == pytest.approx([4.0], rel=1e-4)
    above = least_log_errors([1.0], [(0.1, 3.0)], lambda values: np.log(values[0]) - rows)
    assert above == pytest.approx([3.0], rel=1e-4)
    from_below = least_log_errors([0.0], [(5.0, 9.0)], lambda values: np.log(values[0]) - rows)
    assert from_below == pytest.approx([5.0], rel=1e-4)


# Rows.


def test_rows_are_thinned_evenly_in_an_order():
    """Every second of six by m; all where so many are asked for."""
    rows = of([6.0, 5.0, 4.0, 3.0, 2.0, 1.0], m=[6, 5, 4, 3, 2, 1])
    assert rows.thin(3, "m").time_us.tolist() == [1.0, 3.0, 5.0]
    assert rows.thin(6, "m").time_us.tolist() == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert rows.thin(99, "m").time_us.size == 6
    assert rows.thin(4, "m").time_us.tolist() == [1.0, 2.0, 4.0, 5.0]  # at 0, 1.5, 3 and 4.5
    require_rows(of([1.0] * 20, m=1.0), "made up")
    with pytest.raises(DataError, match="19 rows"):
        require_rows(of([1.0] * 19, m=1.0), "made up")


def test_groups_are_those_of_the_first_columns_that_tell_rows_apart():
    assert heldout_groups(of([1.0] * 3, m=[1, 2, 3], n=[64, 64, 128])).tolist() == [0, 0, 1]
    assert heldout_groups(of([1.0] * 2, m=[2, 1], n=64)).tolist() in ([0, 1], [1, 0])


def test_of_large_m_every_64th_is_fitted_and_one_past_a_tile():
    m = np.array([1, 16, 17, 18, 24, 25, 26, 512, 513, 514, 520, 576, 577, 1024, 1025])
    assert m[_thin(of(np.ones(m.size), m=m))].tolist() == [1, 16, 17, 24, 25, 512, 513, 576, 1024, 1025]


def test_times_are_whole_where_most_are_halves():
    assert _resolution_us(of([3.0, 4.5, 7.25], m=1.0)) == 1.0
    assert _resolution_us(of([3.0, 4.25, 7.25], m=1.0)) == 0.0


def test_weights_that_were_read_too_fast_were_in_the_cache():
    """16.8 MB of weights in less than 8.7 us (1.935 TB/s) were in a cache of 40 MB; larger ones were not."""
    kernel = gemm_start("torch", "fp16", GPU)
    kernel = msgspec.structs.replace(kernel, hot_copies=0)
    slow, hot, large = 10.0, 5.0, 100.0
    rows = of([slow, hot, large], m=1.0, n=[2048, 2048, 16384], k=4096)
    found = _with_hot_weights(kernel, rows, GPU)
    assert found.hot_share == pytest.approx(2 * 2048 * 4096 / GPU.l2_bytes)
    assert found.hot_ratio == 3.0
    assert _with_hot_weights(kernel, of([slow], m=1.0, n=2048), GPU) is kernel
    copies = msgspec.structs.replace(kernel, hot_copies=2)
    assert _with_hot_weights(copies, rows, GPU).hot_share == 1.0
