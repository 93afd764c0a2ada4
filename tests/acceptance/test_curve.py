"""Curves of tokens per step by candidates."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.interpolate import PchipInterpolator

from medusa_sim.acceptance.curve import (
    LogCurve,
    TableCurve,
    checked_candidates,
    fitted_log_slope,
    pchip_slopes,
)
from medusa_sim.errors import CoverageError, DataError, UsageError


def test_a_table_is_joined_by_monotone_cubics_of_the_logarithm():
    points = ((2, 1.6), (5, 2.3), (16, 3.0), (64, 3.4))
    curve = TableCurve(name="measured", points=points)
    counts = np.arange(1, 65)
    knots = np.log([1.0, *(n for n, _ in points)])
    expected = PchipInterpolator(knots, [1.0, *(tokens for _, tokens in points)])(np.log(counts))
    assert curve.tokens_per_step(counts) == pytest.approx(np.minimum(expected, counts), rel=1e-12)


@given(
    st.lists(
        st.tuples(st.floats(0.1, 3.0), st.sampled_from([-2.0, -0.1, 0.0, 0.1, 2.0])), min_size=1, max_size=6
    )
)
def test_slopes_at_knots_are_scipys_whether_values_rise_or_fall(steps):
    x, y = (np.concatenate([[0.0], np.cumsum(each)]) for each in zip(*steps, strict=True))
    assert pchip_slopes(x, y) == pytest.approx(PchipInterpolator(x, y).derivative()(x), abs=1e-12)


def test_a_tables_band_is_its_error_within_what_a_step_can_emit():
    wide = TableCurve("wide", ((2, 1.6), (4, 2.1)), error_tokens=0.2)
    low, high = wide.band([1, 2, 4])
    assert low == pytest.approx([1.0, 1.4, 1.9])
    assert high == pytest.approx([1.0, 1.8, 2.3])
    assert TableCurve("low", ((2, 1.1),), error_tokens=0.2).band([2])[0] == pytest.approx([1.0])
    assert TableCurve("high", ((2, 1.9),), error_tokens=0.2).band([2])[1] == pytest.approx([2.0])


def test_a_logarithmic_curve_is_the_least_squares_one_and_its_band_the_spread_of_what_is_left():
    """ln 4 is twice ln 2: (0.5 + 2 x 1.2) / (5 ln 2)."""
    points = [(1, 1.0), (2, 1.5), (4, 2.2)]
    curve = LogCurve.fitted("measured", points)
    assert curve.slope == pytest.approx(2.9 / (5 * np.log(2)))
    assert curve.candidates_max == 4
    assert curve.tokens_per_step([1, 2, 4]) == pytest.approx([1.0, 1.58, 2.16])
    left = np.array([1.5 / 1.58 - 1, 2.2 / 2.16 - 1])
    assert curve.residuals() == pytest.approx(left)
    half = 1.2815515655 * np.sqrt((left**2).mean())
    low, high = curve.band([1, 2, 4])
    assert low == pytest.approx([1.0, 1.58 * (1 - half), 2.16 * (1 - half)])
    assert high == pytest.approx([1.0, 1.58 * (1 + half), 2.16 * (1 + half)])
    assert LogCurve("bare", 0.5, 8).residuals().size == 0
    assert LogCurve("bare", 0.5, 8).band([4])[0] == LogCurve("bare", 0.5, 8).tokens_per_step([4])


def test_a_band_of_a_logarithmic_curve_is_never_below_plain_decoding_or_above_every_draft():
    assert LogCurve("flat", 0.02, 64, ((64, 1.5),)).band([64])[0] == pytest.approx([1.0])
    assert LogCurve("steep", 1.0, 64, ((64, 4.0),)).band([2])[1] == pytest.approx([2.0])


@pytest.mark.parametrize(
    ("candidates", "tokens"),
    [
        ([1, 2], [1.0]),
        ([[2]], [[1.5]]),
        ([0.5, 2], [1.0, 1.5]),
        ([1, 1], [1.0, 1.0]),
        ([2, np.inf], [1.5, 2.0]),
    ],
)
def test_points_that_say_no_slope_are_refused(candidates, tokens):
    with pytest.raises(DataError):
        fitted_log_slope(candidates, tokens)


@pytest.mark.parametrize(
    ("slope", "most", "is_one"),
    [(0.0, 1, True), (1.0, 1, True), (0.5, 0, False), (-0.01, 8, False), (1.01, 8, False)],
)
def test_a_curve_rises_by_one_at_most_and_covers_a_candidate_at_least(slope, most, is_one):
    if is_one:
        assert LogCurve("edge", slope, most).tokens_per_step([1]).tolist() == [1.0]
    else:
        with pytest.raises(DataError):
            LogCurve("edge", slope, most)


def test_counts_are_whole_and_the_largest_was_measured():
    assert checked_candidates([[1, 7], [64, 2]], 64, "c").tolist() == [[1.0, 7.0], [64.0, 2.0]]
    assert checked_candidates([], 64, "c").size == 0
    for counts in ([65], [1, 65], [65, 1], [1, 65, 2]):
        with pytest.raises(CoverageError, match=r"1\.\.64, given 65"):
            checked_candidates(counts, 64, "c")
    for counts, first in (([2, 0, -1], "0"), ([1, 2.5], "2.5"), ([64, 0.5], "0.5")):
        with pytest.raises(UsageError, match=f"candidates {first}:"):
            checked_candidates(counts, 64, "c")
