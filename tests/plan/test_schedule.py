"""Merging batches that share a configuration: the fewest ranges, no batch losing the tolerance."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from medusa_sim.errors import UsageError
from medusa_sim.plan import SWITCHING_GAIN
from medusa_sim.plan.schedule import BatchRange, merge_batches


def speedups(batches: int, configurations: int) -> st.SearchStrategy[np.ndarray]:
    values = arrays(np.float64, (batches, configurations), elements=st.floats(0.5, 2.0))
    return values.map(lambda array: np.hstack([np.ones((batches, 1)), array]))


def test_a_switch_is_made_from_the_tolerance_on():
    speedup = np.array([[1.0, 2.00, 1.95], [1.0, 1.90, 1.95], [1.0, 1.50, 1.53]])
    (only,) = merge_batches(speedup)
    assert (only.first, only.last, only.configuration) == (0, 2, 2)
    assert len(merge_batches(speedup, gain=0.02)) == 2
    assert [r.configuration for r in merge_batches(speedup, gain=0.0)] == [1, 2]
    speedup = np.array([[1.0, 2.0, 1.94], [1.0, 1.94, 2.0]])  # 1.94 / 2 = 1 - 0.03
    assert len(merge_batches(speedup)) == 2
    assert len(merge_batches(speedup, gain=0.0301)) == 1


def test_ranges_never_cross_break_even_nor_batches_told_apart():
    speedup = np.array([[1.0, 1.02], [1.0, 1.001], [1.0, 0.99], [1.0, 1.0], [1.0, 1.01]])
    ranges = merge_batches(speedup)
    assert ranges == (BatchRange(0, 1, 1), BatchRange(2, 3, 0), BatchRange(4, 4, 1))
    speedup = np.array([[1.0, 1.5]] * 4)
    assert [(r.first, r.last) for r in merge_batches(speedup, apart=np.array([0, 0, 1, 1]))] == [
        (0, 1),
        (2, 3),
    ]
    speedup = np.array([[1.0, 2.0, 1.5], [1.0, 2.0, 1.5]])
    allowed = np.array([[True, False, True], [False, False, False]])
    assert [r.configuration for r in merge_batches(speedup, allowed)] == [2, 0]


def test_a_range_that_pays_takes_no_configuration_that_loses_somewhere():
    speedup = np.array(
        [[1.0, 1.02, 1.01], [1.0, 0.995, 1.005]]
    )  # the first is within 3 % of the best at both
    assert merge_batches(speedup) == (BatchRange(0, 1, 2),)
    speedup = np.array([[1.0, 1.02, 0.995], [1.0, 0.995, 1.005]])
    assert [r.configuration for r in merge_batches(speedup)] == [1, 2]


@given(speedups(6, 3), st.integers(0, 5), st.integers(0, 5))
def test_a_batch_has_one_verdict_in_every_range_that_it_is_asked_in(speedup, one, other):
    first, last = sorted((one, other))
    for asked in ((first, last), (0, 5)):
        for found in merge_batches(speedup[asked[0] : asked[1] + 1]):
            for batch in range(asked[0] + found.first, asked[0] + found.last + 1):
                assert (found.configuration > 0) == (speedup[batch].max() > 1.0)
                assert speedup[batch, found.configuration] > 1.0 or found.configuration == 0


def worst_loss(speedup: np.ndarray, ranges: tuple[BatchRange, ...]) -> float:
    """Largest share of its own best speedup that any batch gives up by sharing a configuration."""
    best = np.maximum(speedup.max(axis=1), speedup[:, 0])
    chosen = np.concatenate([speedup[r.first : r.last + 1, r.configuration] for r in ranges])
    return float(np.max(1.0 - chosen / best))


@given(speedups(8, 4))
def test_no_batch_loses_the_tolerance_and_every_batch_is_covered(speedup):
    ranges = merge_batches(speedup)
    assert [r.first for r in ranges] == [0, *(r.last + 1 for r in ranges[:-1])]
    assert ranges[-1].last == speedup.shape[0] - 1
    assert worst_loss(speedup, ranges) < SWITCHING_GAIN


@given(speedups(6, 3))
def test_no_fewer_ranges_are_possible(speedup):
    pays = speedup.max(axis=1, keepdims=True) > 1.0
    good = speedup > speedup.max(axis=1, keepdims=True) * (1.0 - SWITCHING_GAIN)
    good &= np.where(pays, speedup > 1.0, np.arange(4) == 0)

    def possible(cuts: tuple[int, ...]) -> bool:
        edges = [0, *cuts, speedup.shape[0]]
        return all(good[a:b].all(axis=0).any() for a, b in itertools.pairwise(edges))

    fewest = next(
        n + 1
        for n in range(speedup.shape[0])
        if any(possible(cuts) for cuts in itertools.combinations(range(1, speedup.shape[0]), n))
    )
    assert len(merge_batches(speedup)) == fewest


@pytest.mark.parametrize("gain", [-0.1, 1.0, float("nan")])
def test_a_senseless_gain_is_refused(gain):
    with pytest.raises(UsageError, match="0 to below 1"):
        merge_batches(np.ones((1, 2)), gain=gain)
