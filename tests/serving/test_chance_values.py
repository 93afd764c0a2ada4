"""Laws of chance that a step is averaged over, and what is longest in it, by plain formulas."""

from dataclasses import replace
from math import comb
from statistics import NormalDist
from types import SimpleNamespace

import numpy as np
import pytest

from medusa_sim.latency.operator_time import Bound, OperatorTime
from medusa_sim.serving.chance import LENGTHS, binomial, log_normal, normal_values, quantile, sums_by_place
from medusa_sim.step.breakdown import _longest_bound, _mean_and_ends
from medusa_sim.step.graphs import _next_size
from medusa_sim.step.pass_times import bound_codes
from medusa_sim.step.verified import drafted_tokens, found_shares


def test_equally_likely_values_are_those_of_a_standard_normal():
    values = normal_values()
    assert values.mean() == pytest.approx(0.0, abs=1e-12)
    assert (values**2).mean() == pytest.approx(1.0)
    quantiles = [NormalDist().inv_cdf((1 + 2 * k) / (2 * LENGTHS)) for k in range(LENGTHS)]
    assert values / quantiles == pytest.approx(np.full(LENGTHS, values[0] / quantiles[0]))


def test_a_quantile_is_the_least_value_that_holds_its_share_of_each_place():
    """Place 0 has 1, 2 and 3 with 5, 3 and 2 tenths; place 1 has 10 with 1 of 4, and 20."""
    values, weights = np.array([3.0, 20.0, 1.0, 10.0, 2.0]), np.array([0.2, 3.0, 0.5, 1.0, 0.3])
    place = np.array([0, 1, 0, 1, 0])
    for share, found in ((0.2, [1, 10]), (0.45, [1, 20]), (0.6, [2, 20]), (0.79, [2, 20]), (0.9, [3, 20])):
        assert quantile(values, weights, place, share, 2).tolist() == found


def _exact(draws: int, share: float) -> list[float]:
    return [comb(draws, k) * share**k * (1 - share) ** (draws - k) for k in range(draws + 1)]


@pytest.mark.parametrize(("draws", "share"), [(1, 0.3), (4, 0.25), (8, 0.5), (30, 0.1)])
def test_few_hits_have_the_probabilities_of_their_law(draws, share):
    counts, weights, place = binomial(np.array([1.0, draws]), np.array([0.2, share]))
    assert weights[place == 0] == pytest.approx([0.8, 0.2])
    told = _exact(draws, share)
    for count, weight in zip(counts[place == 1], weights[place == 1], strict=True):
        assert weight == pytest.approx(told[int(count)], rel=1e-9)
    assert weights[place == 1].sum() == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize(("requests", "rate"), [(1, 0.3), (4, 0.25), (10, 0.8)])
def test_requests_that_find_drafts_are_none_or_quarters_of_the_rest(requests, rate):
    """None has its own probability; the mean is the rate; the lowest quarter's mean is by hand."""
    shares, weights = found_shares(np.array([float(requests)]), rate)
    told = _exact(requests, rate)
    assert weights[0] == pytest.approx([told[0], *[(1 - told[0]) / 4] * 4])
    assert float((shares * weights).sum()) == pytest.approx(rate)
    left, lowest = (1 - told[0]) / 4, 0.0
    for k in range(1, requests + 1):
        taken = min(told[k], left)
        lowest, left = lowest + taken * k, left - taken
    assert shares[0, 0] == 0.0
    assert shares[0, 1] * requests == pytest.approx(lowest / ((1 - told[0]) / 4))


def test_drafts_that_end_early_are_those_of_each_request_by_itself():
    """One draft in half of the cases, a second in a quarter of all; two requests: sums of two such."""
    sure = (0.5, 0.5)
    tokens, weights = drafted_tokens(np.array([1.0, 2.0, 9.0]), np.array([2.0, 2.0, 2.0]), sure)
    one = [0.5, 0.25, 0.25]
    assert tokens[0, :3].tolist() == [1.0, 2.0, 3.0]
    assert weights[0, :4] == pytest.approx([*one, 0.0])
    assert tokens[1, :5].tolist() == [1.0, 1.5, 2.0, 2.5, 3.0]
    assert weights[1, :5] == pytest.approx(np.convolve(one, one))
    eight = np.ones(1)
    for _ in range(8):
        eight = np.convolve(eight, one)
    assert weights[2] == pytest.approx(eight)  # of more than eight requests as of eight
    assert tokens[2, -1] == 3.0
    longer, weights = drafted_tokens(np.ones(1), np.array([3.0]), (0.5,))  # the last share goes on
    assert weights[0] == pytest.approx([0.5, 0.25, 0.125, 0.125])
    assert longer[0].tolist() == [1.0, 2.0, 3.0, 4.0]


def test_lengths_have_a_mean_of_one_and_a_spread():
    """Few equally likely values: the spread is that of the normal ones, which are scaled to variance 1."""
    values = log_normal(np.array([0.0, 0.4]))
    assert values[0] == pytest.approx(1.0)
    assert values.mean(axis=1) == pytest.approx([1.0, 1.0])
    assert np.log(values[1]).std() == pytest.approx(np.sqrt(np.log(1.16)))


def test_quantiles_and_sums_are_of_each_place():
    values, place = np.array([3.0, 1.0, 2.0, 5.0, 4.0]), np.array([0, 0, 0, 1, 1])
    weights = np.array([1.0, 1.0, 2.0, 1.0, 3.0])
    assert quantile(values, weights, place, 0.5, 2).tolist() == [2.0, 4.0]
    assert quantile(values, weights, place, 0.8, 2).tolist() == [3.0, 5.0]
    assert quantile(values, weights, place, 1.0, 2).tolist() == [3.0, 5.0]
    assert sums_by_place(values, place, 3).tolist() == [6.0, 9.0, 0.0]


def test_a_mean_over_cases_has_the_root_of_mean_squares_as_its_half_width():
    """Three quarters of 10 - 1 + 2 us and a quarter of 30 - 6 + 8 us: 15 us."""
    time = OperatorTime(
        time_us=np.array([10.0, 30.0]), low_us=np.array([9.0, 24.0]), high_us=np.array([12.0, 38.0]),
        bound=np.array([Bound.MEMORY, Bound.COMPUTE], np.int8), source=np.zeros(2, np.int8),
    )  # fmt: skip
    shares = np.array([0.75, 0.25])
    mean, low, high = _mean_and_ends(time, shares)
    assert mean == 15.0
    assert 15.0 - low == pytest.approx((0.75 * 1 + 0.25 * 36) ** 0.5)
    assert high - 15.0 == pytest.approx((0.75 * 4 + 0.25 * 64) ** 0.5)
    wide = replace(time, low_us=np.array([0.0, -20.0]))
    assert _mean_and_ends(wide, shares)[1] == 0.0  # 15 - (0.75 x 100 + 0.25 x 2500)^0.5 is below nothing
    assert _longest_bound(time, shares) == Bound.MEMORY  # 7.5 us of each: the first
    assert _longest_bound(time, np.array([0.7, 0.3])) == Bound.COMPUTE


@pytest.mark.parametrize(
    ("memory", "compute", "device", "host", "exposed", "bound"),
    [
        (6.0, 4.0, 10.0, 0.0, 0.0, Bound.MEMORY), (5.0, 5.0, 10.0, 0.0, 0.0, Bound.MEMORY),
        (4.0, 5.0, 10.0, 0.0, 0.0, Bound.COMPUTE), (3.0, 3.0, 9.0, 0.0, 0.0, Bound.MEMORY),
        (3.0, 3.0, 9.1, 0.0, 0.0, Bound.LATENCY), (6.0, 4.0, 10.0, 6.0, 4.0, Bound.MEMORY),
        (6.0, 4.0, 10.0, 6.0, 4.1, Bound.HOST), (1.0, 1.0, 10.0, 11.0, 0.0, Bound.HOST),
    ],
)  # fmt: skip
def test_a_step_is_bound_by_what_takes_longest(memory, compute, device, host, exposed, bound):
    cost = SimpleNamespace(device_us=np.array(device), host_us=np.array(host), exposed_us=np.array(exposed))
    waits = {Bound.MEMORY: np.array(memory), Bound.COMPUTE: np.array(compute)}
    assert int(bound_codes(waits, cost)) == bound


def test_a_captured_size_holds_what_is_wanted():
    sizes = np.array([1.0, 2.0, 4.0, 8.0])
    assert _next_size(sizes, np.array([1.0, 2.0, 2.1, 8.0, 8.1])).tolist() == [1.0, 2.0, 4.0, 8.0, np.inf]
