"""Acceptances of every method, exactly: laws of tokens, enumerations and linear programmes."""

import itertools

import numpy as np
import pytest
from exact_laws import (
    enumerated_holders,
    k_seq_emitted,
    multi_round_emitted,
    optimal_coupling,
    recursive_rejection,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from medusa_sim.errors import DataError
from medusa_sim.lab.block_efficiency.methods import truncate_perturbed
from medusa_sim.lab.block_efficiency.rejection import (
    k_seq_acceptance,
    k_seq_gamma,
    k_seq_holders,
    multi_round_children,
    optimal_acceptance,
    recursive_children_of_draws,
)
from medusa_sim.lab.reproduce.recursive import bernoulli_acceptance

SMALL = settings(max_examples=40, deadline=None)


@st.composite
def laws(draw: st.DrawFn, size: int = 4, *, sparse: bool = True) -> np.ndarray:
    """Laws of a small vocabulary; zeros included, because filtering makes them."""
    low = 0.0 if sparse else 0.01
    mass = np.array(draw(st.lists(st.floats(low, 1.0), min_size=size, max_size=size)))
    mass = np.where(mass < 1e-6, 0.0, mass)
    return mass / mass.sum() if mass.sum() > 0.0 else np.full(size, 1.0 / size)


def random_law(rng: np.random.Generator, *shape: int) -> np.ndarray:
    mass = rng.exponential(size=shape) ** 2
    return mass / mass.sum(axis=-1, keepdims=True)


@SMALL
@given(p=laws(), q=laws(), draws=st.integers(1, 4))
def test_every_method_recovers_the_target_law(p, q, draws):
    # three and four draws matter: leaving p un-renormalised shows first at the third
    assert k_seq_emitted(p, q, draws) == pytest.approx(q, abs=1e-9)
    assert multi_round_emitted(p, q, draws) == pytest.approx(q, abs=1e-9)
    assert recursive_rejection(p, q, draws)[1] == pytest.approx(q, abs=1e-9)


@SMALL
@given(p=laws(), q=laws(), draws=st.integers(1, 4))
def test_acceptances_are_ordered(p, q, draws):
    single = float(np.minimum(p, q).sum())  # 1 - their total variation
    optimal = float(optimal_acceptance(p, q, draws))
    for value in (float(k_seq_acceptance(p, q, draws)), float(multi_round_children(p, q, draws).sum())):
        assert single - 1e-9 <= value <= optimal + 1e-9  # no independent draws beat optimal transport
    children = recursive_rejection(p, q, draws)[0]
    assert children[0] == pytest.approx(single, abs=1e-12)
    assert np.all(children >= -1e-15)
    assert children.sum() <= 1.0 + 1e-9


@SMALL
@given(p=laws(sparse=False), q=laws())
def test_distinct_draws_of_the_whole_vocabulary_cover_it(p, q):
    # the last residual is one token, and that token is the last draw
    assert recursive_rejection(p, q, 4)[0].sum() == pytest.approx(1.0, abs=1e-9)


@given(p=laws(), draws=st.integers(1, 4))
def test_equal_laws_accept_the_first_draw(p, draws):
    assert recursive_rejection(p, p, draws)[0][0] == pytest.approx(1.0)
    assert k_seq_acceptance(p, p, draws) == pytest.approx(1.0)
    assert multi_round_children(p, p, draws)[0] == pytest.approx(1.0)


def test_k_seq_gamma_is_the_smallest_valid_one():
    rng = np.random.default_rng(0)
    p, q = random_law(rng, 20, 6), random_law(rng, 20, 6)
    for draws in (2, 4, 8):
        gamma = k_seq_gamma(p, q, draws)
        assert np.all((gamma >= 1.0) & (gamma <= draws))
        beta = np.minimum(p, q / gamma[:, None]).sum(axis=1)
        assert gamma * beta == pytest.approx(1 - (1 - beta) ** draws, rel=1e-9)


def test_acceptances_by_hand():
    # p = (1/2, 1/2), q = (1, 0): the wanted token is among two draws with probability 3/4
    assert k_seq_acceptance([0.5, 0.5], [1.0, 0.0], 2) == pytest.approx(0.75)
    assert recursive_rejection([0.5, 0.5], [1.0, 0.0], 2)[0].sum() == pytest.approx(1.0)
    p, q = np.array([[0.6, 0.4, 0.0]]), np.array([[0.2, 0.3, 0.5]])
    short = recursive_children_of_draws(p, q, np.array([[0, -1, -1]]))
    assert short[0, 1:].tolist() == [0.0, 0.0]
    assert short[0, 0] == pytest.approx(1 / 3)


@SMALL
@given(draft=laws(3), target=laws(3), draws=st.integers(1, 4))
def test_the_drafts_that_hold_the_accepted_token_are_those_of_an_enumeration(draft, target, draws):
    holders = k_seq_holders(draft, target, draws)
    assert holders == pytest.approx(enumerated_holders(draft, target, draws), abs=1e-6)
    assert holders.sum() == pytest.approx(float(k_seq_acceptance(draft, target, draws)), abs=1e-6)


def simulated_recursive(p: np.ndarray, q: np.ndarray, draws: int, runs: int) -> np.ndarray:
    rng = np.random.default_rng(1)
    tokens = np.argsort(-(np.log(p) + rng.gumbel(size=(runs, p.size))), axis=1)[:, :draws]
    wanted = rng.random((runs, draws))
    accepted = np.zeros(draws)
    for run in range(runs):
        draft, target = p.copy(), q.copy()
        for k in range(draws):
            x = tokens[run, k]
            if wanted[run, k] < target[x] / draft[x]:
                accepted[k] += 1
                break
            left = np.maximum(target - draft, 0)
            target = left / left.sum()
            draft[x] = 0.0
            draft /= draft.sum()
    return accepted / runs


def test_exact_recursive_rejection_agrees_with_monte_carlo():
    rng = np.random.default_rng(3)
    p, q = random_law(rng, 5), random_law(rng, 5)
    runs = 20_000
    exact = recursive_rejection(p, q, 3)[0]
    # four standard errors of a share of `runs` trials
    assert np.abs(simulated_recursive(p, q, 3, runs) - exact).max() < 4 * np.sqrt(0.25 / runs)
    rng = np.random.default_rng(4)
    p, q = random_law(rng, 6), random_law(rng, 6)
    tokens = np.argsort(-(np.log(p) + rng.gumbel(size=(40_000, 6))), axis=1)[:, :3]
    rows = np.broadcast_to(p, (40_000, 6)), np.broadcast_to(q, (40_000, 6))
    sampled = recursive_children_of_draws(*rows, tokens)
    error = sampled.std(axis=0) / np.sqrt(40_000)
    assert np.all(np.abs(sampled.mean(axis=0) - recursive_rejection(p, q, 3)[0]) < 4 * error + 1e-12)


@SMALL
@given(p=laws(3), q=laws(3), draws=st.integers(1, 3))
def test_minimum_cut_equals_the_linear_programme(p, q, draws):
    plan, acceptance = optimal_coupling(p, q, draws)
    assert acceptance == pytest.approx(float(optimal_acceptance(p, q, draws)), abs=1e-7)
    assert plan.sum(axis=0) == pytest.approx(q, abs=1e-7)
    joint = [np.prod(p[list(draw)]) for draw in itertools.product(range(3), repeat=draws)]
    assert plan.sum(axis=1) == pytest.approx(joint, abs=1e-7)


def test_bernoulli_toy_of_figure_1():
    grid = np.linspace(0.0, 1.0, 41)
    rates = bernoulli_acceptance(*np.meshgrid(grid, grid, indexing="ij"))
    assert set(rates) == {"Multi-Round SD", "K-SEQ", "OTM", "Recur. Rej. Samp."}
    assert rates["Recur. Rej. Samp."] == pytest.approx(np.ones((41, 41)), abs=1e-9)  # 100 % everywhere
    assert np.all(rates["Multi-Round SD"] <= rates["OTM"] + 1e-12)
    assert np.all(rates["K-SEQ"] <= rates["OTM"] + 1e-12)
    for name in ("Multi-Round SD", "K-SEQ", "OTM"):
        rate = rates[name]
        assert np.diag(rate) == pytest.approx(np.ones(41))
        assert rate[0, -1] == pytest.approx(0.0, abs=1e-12)  # p = 0, q = 1: nothing to accept
        assert rate == pytest.approx(rate[::-1, ::-1], abs=1e-9)  # which token is called 1 does not matter
    # acceptance falls with the distance of draft and target
    for name in ("Multi-Round SD", "K-SEQ", "OTM"):
        assert np.all(np.diff(rates[name][20, 20:]) <= 1e-12)


def test_perturbed_children_are_a_sample_of_whole_texts_without_replacement():
    """Equation 11 as it is written, and what it is for: the best two of nine texts drawn in turn.

    Chi-square over 20,000 trees of two levels: a total variation of 0.03 is found with power 0.99.
    """
    rng, samples = np.random.default_rng(8), 20_000
    first, second = random_law(rng, 3), random_law(rng, 3, 3)

    def perturbed(parent: np.ndarray, phi: np.ndarray) -> np.ndarray:
        keys = phi + rng.gumbel(size=phi.shape)
        order = np.argsort(-keys, axis=-1)
        ranked = np.take_along_axis(keys, order, axis=-1)
        found = truncate_perturbed(parent, ranked)
        u, largest = parent[..., None], ranked[..., :1]
        assert found == pytest.approx(-np.log(np.exp(-u) - np.exp(-largest) + np.exp(-ranked)))
        np.put_along_axis(keys, order, found, axis=-1)
        return keys

    keys = perturbed(np.zeros(samples), np.broadcast_to(np.log(first), (samples, 3)))
    leaves = perturbed(keys, np.broadcast_to(np.log(first[:, None] * second), (samples, 3, 3)))
    best, other = np.argsort(-leaves.reshape(samples, 9), axis=1)[:, :2].T
    joint = (first[:, None] * second).ravel()
    told = samples * joint[:, None] * joint / (1.0 - joint[:, None])
    np.fill_diagonal(told, 0.0)
    seen, often = np.bincount(9 * best + other, minlength=81).reshape(9, 9), told >= 5.0
    assert np.diag(seen).sum() == 0
    statistic = ((seen - told)[often] ** 2 / told[often]).sum()
    assert stats.chi2.sf(statistic, often.sum() - 1) > 1e-3


@pytest.mark.parametrize(
    ("p", "q"), [([0.5, 0.6], [0.5, 0.5]), ([0.5, 0.5], [1.5, -0.5]), ([np.nan, 1.0], [0.5, 0.5]), (1.0, 1.0)]
)
def test_what_is_no_law_is_refused(p, q):
    with pytest.raises(DataError, match="probability distribution"):
        k_seq_acceptance(p, q, 2)


def test_optimal_transport_refuses_large_vocabularies():
    law = np.full(40, 1 / 40)
    with pytest.raises(DataError, match="at most 16 tokens"):
        optimal_acceptance(law, law, 2)
