"""Pieces of a check and of a schedule by hand."""

import numpy as np
import pytest

from medusa_sim.errors import UsageError
from medusa_sim.plan.batch_ranges import merge_batches
from medusa_sim.plan.break_even import BreakEven
from medusa_sim.plan.check import CheckedPart, _explained_us, _position
from medusa_sim.plan.measured_run import _check_shares, _tokens
from medusa_sim.plan.recommend import _batches_at_break_even


def _merged(speedup: list[list[float]], **more: object) -> list[tuple[int, int, int]]:
    found = merge_batches(np.array(speedup), **more)
    return [(each.first, each.last, each.configuration) for each in found]


@pytest.mark.parametrize(
    ("speedup", "gain", "ranges"),
    [
        # 3 % more than 1.97 are 2.03: 1.97 stands beside 2.02, and 1.95 does not
        ([[1, 2.0, 1.9], [1, 1.97, 2.02]], 0.03, [(0, 1, 1)]),
        ([[1, 2.0, 1.9], [1, 1.95, 2.02]], 0.03, [(0, 0, 1), (1, 1, 2)]),
        ([[1, 2.0, 1.9], [1, 2.0, 2.0]], 0.0, [(0, 1, 1)]),
        # what no longer gains is left, however little the other gains; a plain range ends where one pays
        ([[1, 1.02, 0.9], [1, 0.999, 1.001]], 0.03, [(0, 0, 1), (1, 1, 2)]),
        ([[1, 0.9, 0.9], [1, 0.95, 0.8], [1, 1.2, 1.0]], 0.03, [(0, 1, 0), (2, 2, 1)]),
        ([[1, 1.2, 1.1], [1, 1.0, 0.9]], 0.03, [(0, 0, 1), (1, 1, 0)]),
    ],
)
def test_a_configuration_stands_while_another_gains_less_than_a_switch_is_worth(speedup, gain, ranges):
    assert _merged(speedup, switching_gain=gain) == ranges


def test_a_configuration_stands_within_the_doubt_about_two_and_where_it_is_allowed():
    """Half-widths of 0.1 and 0.06 leave 0.08 between them: 1.9 stands beside 2.05, and 1.85 does not."""
    halves = np.array([[0.0, 0.1, 0.06]] * 2)
    for second, ranges in ((1.9, [(0, 1, 1)]), (1.85, [(0, 0, 1), (1, 1, 2)])):
        assert _merged([[1, 2.0, 1.9], [1, second, 2.05]], switching_gain=0.0, halves=halves) == ranges
    allowed = np.array([[True] * 3, [True, False, True]])
    assert _merged([[1, 2.0, 1.9], [1, 2.0, 1.99]], allowed=allowed) == [(0, 0, 1), (1, 1, 2)]
    assert _merged([[1, 2.0, 1.9]], allowed=np.zeros((1, 3), dtype=np.bool_)) == [(0, 0, 0)]
    same = [[1, 2.0, 1.9]] * 3
    assert _merged(same, groups=np.array([0, 0, 1])) == [(0, 1, 1), (2, 2, 1)]
    assert _merged(same, drafted=np.array([True, False, False])) == [(0, 0, 1), (1, 2, 0)]
    with pytest.raises(UsageError):
        merge_batches(np.ones((1, 2)), switching_gain=1.0)


@pytest.mark.parametrize(
    ("measured_us", "rest_us", "told_us"),
    [(12.0, 30.0, 20.0), (12.0, 15.0, 15.0), (12.0, -5.0, 0.0), (8.0, -30.0, -20.0), (8.0, -15.0, -15.0),
     (8.0, 15.0, 0.0), (10.0, 15.0, 0.0)],
)  # fmt: skip
def test_a_plain_step_explains_as_much_of_a_round_as_it_is_off_itself(measured_us, rest_us, told_us):
    """12 us for 10 predicted make 20 of a round of 100, of the rest at most and in its direction alone."""
    plain = CheckedPart(name="plain", measured_us=measured_us, predicted_us=10.0, low_us=9.0, high_us=11.0,
                        costs_us=0.0)  # fmt: skip
    assert _explained_us(plain, 100.0, rest_us) == pytest.approx(told_us)


@pytest.mark.parametrize(
    ("predicted", "measured", "place"),
    [
        ((0.8, 0.4), (0.4, 0.2), 0), ((0.8, 0.4), (0.8, 0.1), 1),
        # 0.9 for 0.8 moves (1 + 0.5) x 0.1 = 0.15, and 0.25 for 0.5 behind it 0.8 x 0.25 = 0.2
        ((0.8, 0.4), (0.9, 0.225), 1),
        ((0.8, 0.4), (0.9, 0.36), 0), ((0.8,), (0.8, 0.4), None), ((0.8, 0.0, 0.0), (0.8, 0.4, 0.1), 1),
    ],
)  # fmt: skip
def test_the_position_whose_own_rate_moves_the_tokens_most_is_shown(predicted, measured, place):
    assert _position(predicted, measured) == place


@pytest.mark.parametrize(
    ("given", "tokens"),
    [
        (((0.8, 0.4), 2, None, None), 2.2), (((), 0, 5.0, 9.0), 1.0), (((), 3, 10.0, 25.0), 2.5),
        (((), 3, 10.0, 9.0), 1.0), (((), 3, 10.0, 50.0), 4.0),
    ],
)  # fmt: skip
def test_tokens_of_a_step_are_what_was_accepted_or_its_time_over_a_tokens(given, tokens):
    assert _tokens(*given) == pytest.approx(tokens)


@pytest.mark.parametrize("given", [((0.5,), 2), ((0.5, 0.6), 2), ((1.1,), 1), ((-0.1,), 1)])
def test_shares_that_rise_or_are_not_one_a_draft_are_refused(given):
    _check_shares((1.0, 1.0, 0.0), 3)
    with pytest.raises(UsageError):
        _check_shares(*given)


@pytest.mark.parametrize(
    ("spans", "searched", "beside"),
    [
        ([(1, 40)], [1, 32, 64], [40, 41]), ([(33, 64)], [1, 32, 64], [33]), ([(1, 63)], [1, 32, 64], [63]),
        ([(10, 20)], [1, 32, 64], [9, 10, 20, 21]), ([(1, 64)], [1, 32, 64], []),
    ],
)  # fmt: skip
def test_batches_at_a_break_even_between_two_searched_ones_are_searched_too(spans, searched, beside):
    assert _batches_at_break_even([BreakEven(spans=spans)], np.array(searched)) == beside
