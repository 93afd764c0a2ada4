"""Laws of chance that a server is averaged over, by plain formulas."""

import numpy as np
import pytest
from scipy import stats

from medusa_sim.serving.chance import binomial, log_normal, quantile, sums_by_place


def test_a_quantile_is_the_least_value_that_holds_its_share_of_each_place():
    """Place 0 has 1, 2 and 3 with 5, 3 and 2 tenths; place 1 has 10 with 1 of 4, and 20."""
    values, weights = np.array([3.0, 20.0, 1.0, 10.0, 2.0]), np.array([0.2, 3.0, 0.5, 1.0, 0.3])
    place = np.array([0, 1, 0, 1, 0])
    told = ((0.2, [1, 10]), (0.25, [1, 10]), (0.45, [1, 20]), (0.6, [2, 20]), (0.79, [2, 20]), (1.0, [3, 20]))
    for share, found in told:
        assert quantile(values, weights, place, share, 2).tolist() == found


@pytest.mark.parametrize(("draws", "share"), [(1, 0.3), (4, 0.25), (8, 0.5), (30, 0.1)])
def test_few_hits_have_the_probabilities_of_their_law(draws, share):
    counts, weights, place = binomial(np.array([1.0, draws]), np.array([0.2, share]))
    assert weights[place == 0] == pytest.approx([0.8, 0.2])
    told = stats.binom(draws, share).pmf(range(draws + 1))
    for count, weight in zip(counts[place == 1], weights[place == 1], strict=True):
        assert weight == pytest.approx(told[int(count)], rel=1e-9)
    assert weights[place == 1].sum() == pytest.approx(1.0, abs=1e-6)


def test_sums_are_of_each_place():
    values, place = np.array([3.0, 1.0, 2.0, 5.0, 4.0]), np.array([0, 0, 0, 1, 1])
    assert sums_by_place(values, place, 3).tolist() == [6.0, 9.0, 0.0]


def test_log_normal_lengths_have_mean_one_and_their_spread():
    values = log_normal(np.array([0.0, 0.5, 1.0]))
    assert values.mean(axis=1) == pytest.approx([1.0, 1.0, 1.0])
    assert values[0] == pytest.approx(1.0)
    # equally likely: logarithms are as far apart as those of a normal, times its deviation
    logs = np.log(values[1:])
    apart = (logs - logs.mean(axis=1, keepdims=True)) / np.sqrt(np.log([[1.25], [2.0]]))
    assert apart[0] == pytest.approx(apart[1])
    middles = stats.norm.ppf((np.arange(apart.shape[1]) + 0.5) / apart.shape[1])
    assert apart[0] == pytest.approx(middles / middles.std())
