"""Steps of a request (N20): exact for few tokens, the renewal theorem's for many, N - 1 of plain decoding."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from medusa_sim.serving.request_steps import _surplus_tokens, chain_chances, chances_of_mean, request_steps

EAGLE = np.cumprod([1.0, 0.730, 0.714, 0.681])
"""A chain of three drafts: 2.61 tokens a step."""


def counted_steps(emission_chances: np.ndarray, left: int) -> float:
    """Sum over k of the probability that k steps emit fewer tokens than are left."""
    chances = emission_chances - np.append(emission_chances[1:], 0.0)
    emitted, steps = np.ones(1), 0.0
    for _ in range(left):
        steps += emitted[:left].sum()
        emitted = np.convolve(emitted, np.append(0.0, chances))[:left]
    return steps


@given(st.lists(st.floats(0.0, 1.0), max_size=8), st.integers(1, 40))
def test_few_tokens_take_the_steps_that_are_counted(accepted, left):
    emission_chances = np.cumprod([1.0, *accepted])
    assert request_steps(emission_chances, 1.0 + left) == pytest.approx(
        counted_steps(emission_chances, left), rel=1e-9
    )


@pytest.mark.parametrize(("output", "steps"), [(1, 0.0), (2, 1.0), (8, 3.097), (16, 6.173), (256, 98.26)])
def test_steps_of_a_chain(output, steps):
    assert float(request_steps(EAGLE, output)) == pytest.approx(steps, abs=5e-4 * max(steps, 1.0))


def test_many_tokens_have_the_surplus_of_the_limit():
    """E[x^2] / (2 tau) - 1 / 2 tokens; the recursion ends at 64, where both agree to 1e-6 of a step."""
    emitted = np.arange(1.0, 5.0)
    chances = EAGLE - np.append(EAGLE[1:], 0.0)
    tokens, square = chances @ emitted, chances @ emitted**2
    for output in (65.0, 66.0, 500.0):
        steps = (output - 1.0) / tokens + (square - tokens) / (2.0 * tokens**2)
        assert float(request_steps(EAGLE, output)) == pytest.approx(steps, rel=1e-6)


@given(st.floats(1.0, 400.0), st.floats(0.0, 1.0), st.floats(0.01, 0.99))
def test_steps_are_no_fewer_than_tokens_allow_and_no_more_than_without_drafts(output, cv, rate):
    emission_chances = np.stack([np.eye(1, 5)[0], rate ** np.arange(5)])
    plain, drafting = request_steps(emission_chances, output, cv)
    assert plain == pytest.approx(output - 1.0)
    assert (
        (output - 1.0) / emission_chances[1].sum() <= drafting * (1.0 + 1e-12) <= plain * (1.0 + 1e-9) + 1e-9
    )


@given(st.floats(1.0, 5.0), st.integers(1, 9))
def test_a_mean_alone_stands_for_a_chain_of_equal_drafts(tokens, longest):
    emission_chances = chain_chances(np.array([min(tokens, longest)]), np.array([float(longest)]))
    assert emission_chances.sum() == pytest.approx(min(tokens, longest), rel=1e-9)
    if longest > 2:
        np.testing.assert_allclose(
            emission_chances[0, 1:], emission_chances[0, 1] ** np.arange(1, longest), rtol=1e-6, atol=1e-9
        )


def test_a_mean_of_its_own_keeps_a_chains_rates():
    np.testing.assert_allclose(chances_of_mean(EAGLE.sum(), EAGLE), EAGLE, rtol=1e-9)
    fewer = chances_of_mean(np.asarray(2.0), EAGLE)
    assert fewer.sum() == pytest.approx(2.0)
    np.testing.assert_allclose(np.log(fewer[1:]) / np.log(EAGLE[1:]), np.log(fewer[1]) / np.log(EAGLE[1]))


def test_a_surplus_is_linear_between_whole_numbers_of_tokens():
    one, two, three, between, nearly = _surplus_tokens(EAGLE, np.array([1.0, 2.0, 3.0, 1.5, 2.75]))
    assert (between, nearly) == pytest.approx(((one + two) / 2, 0.25 * two + 0.75 * three))
    assert _surplus_tokens(EAGLE, np.array([2.75])) == pytest.approx(nearly)
    assert one != pytest.approx(two)
