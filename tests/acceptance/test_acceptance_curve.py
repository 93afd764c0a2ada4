"""Curves of tokens per step: the paper's figures, monotonicity, coverage."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.interpolate import PchipInterpolator

from medusa_sim.acceptance.curve import LogCurve, TableCurve, fitted_log_slope, pchip_slopes
from medusa_sim.acceptance.profile import acceptance_names, load_acceptance
from medusa_sim.errors import CoverageError, DataError, SpecError, UsageError

COUNTS = np.arange(1, 257)


@pytest.mark.parametrize("name", ["paper-fig21", "paper-fig4-sparse"])
def test_shipped_curves_rise_from_exactly_one(name):
    profile = load_acceptance(name)
    tau = profile.tokens_per_step(COUNTS)
    low, high = profile.band(COUNTS)
    assert tau[0] == low[0] == high[0] == 1.0
    assert np.all(np.diff(tau) > 0.0)
    assert np.all(low <= tau)
    assert np.all(tau <= high)
    assert np.all(low >= 1.0)


def test_fig21_stays_near_every_published_point():
    curve = load_acceptance("paper-fig21").model
    assert isinstance(curve, LogCurve)
    # The figure is read to 0.05 of 2.4..3.3 tokens: up to 2.1 %; the curve is a fit on top of that.
    assert np.abs(curve.residuals()).max() < 0.035
    assert curve.residuals().size == 7


def test_fig4_reads_its_points_back_exactly():
    tau = load_acceptance("paper-fig4-sparse").tokens_per_step([1, 64, 128, 256])
    assert tau.tolist() == [1.0, 3.15, 3.32, 3.48]


@pytest.mark.parametrize("name", ["paper-fig21", "paper-fig4-sparse"])
def test_beyond_the_data_is_refused_with_the_range(name):
    with pytest.raises(CoverageError, match=r"1\.\.256, given 257"):
        load_acceptance(name).tokens_per_step(257)


@pytest.mark.parametrize("count", [0, -3, 1.5, float("nan")])
def test_a_count_that_is_no_count_is_refused(count):
    with pytest.raises(UsageError, match="whole numbers from 1"):
        load_acceptance("paper-fig21").tokens_per_step(count)


def test_a_scalar_is_the_0_d_case():
    value = load_acceptance("paper-fig21").tokens_per_step(64)
    assert value.shape == ()
    assert float(value) == pytest.approx(1 + 0.477 * np.log(64), rel=1e-15)


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


def test_unknown_profile_suggests_the_nearest():
    with pytest.raises(SpecError, match=r"did you mean 'paper-fig21'"):
        load_acceptance("paper-fig-21")
    assert {"paper-fig21", "paper-fig4-sparse"} <= set(acceptance_names())
