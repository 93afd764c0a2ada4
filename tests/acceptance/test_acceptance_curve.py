"""Curves of tokens per step: the paper's figures, monotonicity, coverage."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.interpolate import PchipInterpolator

from medusa_sim.acceptance.curve import LogCurve, TableCurve, fitted_log_slope, pchip_slopes
from medusa_sim.acceptance.profile import load_acceptance
from medusa_sim.errors import CoverageError, DataError, UsageError

COUNTS = np.arange(1, 257)


def test_the_papers_points_are_met():
    curve = load_acceptance("paper-fig21").model
    assert isinstance(curve, LogCurve)
    # The figure is read to 0.05 of 2.4..3.3 tokens: up to 2.1 %; the curve is a fit on top of that.
    assert np.abs(curve.residuals()).max() < 0.035
    assert curve.residuals().size == 7
    tau = load_acceptance("paper-fig4-sparse").tokens_per_step([1, 64, 128, 256])
    assert tau.tolist() == [1.0, 3.15, 3.32, 3.48]
    value = load_acceptance("paper-fig21").tokens_per_step(64)
    assert value.shape == ()
    assert float(value) == pytest.approx(1 + 0.477 * np.log(64), rel=1e-15)


@pytest.mark.parametrize(
    ("count", "error", "message"),
    [
        (257, CoverageError, r"1\.\.256, given 257"),
        *((count, UsageError, "whole numbers from 1") for count in (0, -3, 1.5, float("nan"))),
    ],
)
def test_a_count_beyond_the_data_or_that_is_none_is_refused(count, error, message):
    for name in ("paper-fig21", "paper-fig4-sparse"):
        with pytest.raises(error, match=message):
            load_acceptance(name).tokens_per_step(count)


@given(slope=st.floats(0.0, 0.9))
def test_fit_recovers_the_slope_of_an_exact_curve(slope):
    n = np.array([2, 8, 64])
    assert fitted_log_slope(n, 1 + slope * np.log(n)) == pytest.approx(slope, abs=1e-12)


def test_fit_refuses_the_root_alone():
    with pytest.raises(DataError, match="beyond candidates = 1"):
        fitted_log_slope([1], [1.0])


@given(
    gaps=st.lists(st.integers(1, 60), min_size=1, max_size=6),
    rises=st.lists(st.floats(0.0, 1.0), min_size=6, max_size=6),
)
def test_interpolation_is_monotone_and_agrees_with_scipy(gaps, rises):
    n = 1 + np.cumsum([0, *gaps])
    tau = 1.0 + np.cumsum([0.0, *rises[: len(gaps)]])
    curve = TableCurve("t", tuple(zip(n.tolist(), tau.tolist(), strict=True)))
    counts = np.arange(1, n[-1] + 1)
    value = curve.tokens_per_step(counts)
    assert np.all(np.diff(value) >= -1e-12)
    if n.size > 2:
        reference = PchipInterpolator(np.log(n), tau)(np.log(counts))
        assert value == pytest.approx(np.minimum(reference, counts), abs=1e-9)
        assert pchip_slopes(np.log(n), tau) == pytest.approx(
            PchipInterpolator(np.log(n), tau).derivative()(np.log(n)), abs=1e-9
        )


@pytest.mark.parametrize(
    ("points", "message"),
    [
        (((64, 3.0), (128, 2.9)), "never fall"),
        (((1, 1.1), (64, 3.0)), "exactly 1"),
        (((2, 2.5),), "more tokens than candidates"),
        ((), "one point beyond"),
        (((64, float("nan")),), "finite"),
    ],
)
def test_points_that_are_no_curve_are_refused(points, message):
    with pytest.raises(DataError, match=message):
        TableCurve("bad", points)
