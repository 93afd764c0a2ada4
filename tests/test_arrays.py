"""Intervals of arrays, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from medusa_sim.arrays import Band, Halves, Span, conditional, evenly, every_to, in_quadrature, once

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


@pytest.mark.parametrize(
    ("count", "most", "kept"),
    [(4, 4, [0, 1, 2, 3]), (4, 3, [0, 2, 3]), (10, 4, [0, 3, 6, 9]), (9, 2, [0, 8])],
)
def test_as_many_as_allowed_are_kept_evenly_with_both_ends(count, most, kept):
    assert evenly(10 * np.arange(count), most).tolist() == [10 * each for each in kept]


def test_rates_that_hold_with_all_before_are_divided_by_the_one_before():
    assert conditional(np.array([0.8, 0.4, 0.0, 0.0])) == pytest.approx([0.8, 0.5, 0.0, 0.0])


def test_spans_share_what_lies_in_both_and_are_as_wide_as_the_ratio_of_their_ends():
    assert Span(3, 8).part_in(Span(8, 9)) == (8, 8)
    assert Span(3, 8).part_in(Span(1, 5)) == (3, 5)
    assert Span(3, 8).part_in(Span(9, 12)) is None
    assert (Span(2, 5).width, Span(4, 4).width) == (3.0, 1.25)


def test_what_broadcasting_repeats_is_kept_once():
    column = np.broadcast_to(np.arange(3.0)[:, None], (3, 5))
    assert (once(column).shape, once(column.T).shape) == ((3, 1), (1, 3))
    assert once(column)[:, 0].tolist() == [0.0, 1.0, 2.0]


def test_quadrature_takes_other_shapes_together():
    assert in_quadrature(np.array([[3.0], [5.0]]), np.array([4.0, 12.0])) == pytest.approx(
        np.array([[5.0, np.sqrt(153.0)], [np.sqrt(41.0), 13.0]])
    )
