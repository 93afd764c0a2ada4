"""Intervals of arrays, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from medusa_sim.arrays import Band, Halves, every_to

STEP = Halves.within(np.array(80.0), np.array(100.0), np.array(150.0))


def test_half_widths_are_of_the_quantity_and_turn_with_its_inverse():
    assert pytest.approx((np.log(1.25), np.log(1.5))) == STEP
    assert STEP.ratios() == pytest.approx((0.8, 1.5))
    rate = STEP.of_inverse
    assert (rate.down, rate.up) == pytest.approx((np.log(1.5), np.log(1.25)))
    assert rate.ratios() == pytest.approx(STEP.ratios().of_inverse)
    assert Band(np.array(0.8), np.array(1.5)).of_inverse == pytest.approx((1 / 1.5, 1 / 0.8))


def test_independent_errors_join_in_quadrature_and_a_share_of_one_counts_by_itself():
    tokens = Halves(np.array(0.3), np.array(0.4))
    joined = Halves(np.array(0.4), np.array(0.3)).joined_by(tokens)
    assert (joined.down, joined.up) == pytest.approx((0.5, 0.5))
    assert tokens.times(0.5) == pytest.approx((0.15, 0.2))


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ((4, 1, 16, 1.5), [1, 2, 3, 4, 6, 8, 11, 16]), ((4, 1, 4, 1.5), [1, 2, 3, 4]),
        ((4, 1, 3, 1.5), [1, 2, 3]),
        ((4, 6, 24, 2.0), [6, 12, 24]), ((4, 6, 25, 2.0), [6, 10, 16, 25]), ((4, 5, 3, 2.0), []),
    ],
)  # fmt: skip
def test_numbers_are_every_one_then_of_a_ratio(given, made):
    """Beyond, as many even steps of the logarithm as keep to the ratio: from 6 to 25 by 1.61."""
    assert every_to(*given).tolist() == made
