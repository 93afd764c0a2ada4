"""The union of experts: its limits, its laws and what it says of the published counts."""

import numpy as np
import pytest

from medusa_sim.errors import UsageError
from medusa_sim.step.workload import (
    CHAIN,
    DISJOINT,
    INDEPENDENT,
    OVERLAPS,
    TREE,
    overlap_of,
    union,
    union_band,
)

TOKENS = np.array([1, 2, 4, 8, 16, 64, 256, 4096])


@pytest.mark.parametrize("name", OVERLAPS)
def test_one_token_wakes_its_own_experts_and_many_wake_them_all(name):
    law = overlap_of(name)
    assert union(128, 8, 1, 1, law) == pytest.approx(8.0)
    assert union(128, 8, 100_000, 4, law) == pytest.approx(128.0)
    assert union(8, 8, 1, 3, law) == pytest.approx(8.0)
    grown = union(128, 8, 1, TOKENS, law)
    assert np.all(np.diff(grown) >= 0.0)
    assert np.all((grown >= 8.0 - 1e-9) & (grown <= 128.0))


def test_sequences_choose_independently_and_sharing_orders_the_laws():
    tree, chain, alone, apart = (
        union(256, 8, 1, TOKENS[1:], law) for law in (TREE, CHAIN, INDEPENDENT, DISJOINT)
    )
    assert np.all(tree < chain)
    assert np.all(chain <= alone)
    assert np.all(alone <= apart)
    np.testing.assert_allclose(union(64, 4, TOKENS, 1, CHAIN), union(64, 4, TOKENS, 1, INDEPENDENT))
    one = union(64, 4, 1, 5, CHAIN) / 64
    np.testing.assert_allclose(union(64, 4, 3, 5, CHAIN) / 64, 1 - (1 - one) ** 3)


def test_the_band_holds_the_union():
    low, high = union_band(128, 8, 4, TOKENS, CHAIN)
    whole = union(128, 8, 4, TOKENS, CHAIN)
    assert np.all((low <= whole) & (whole <= high))
    assert [float(end) for end in union_band(128, 8, 4, 3, DISJOINT)] == [96.0, 96.0]
    assert CHAIN.at(0.7).beta == 0.7


def test_a_published_count_of_a_chain_is_met_and_an_unknown_law_named():
    """Cohere's own model, 128 experts, 8 a token: four consecutive tokens wake 20.36 of them."""
    assert union(128, 8, 1, 4, CHAIN) == pytest.approx(20.36, rel=0.08)
    assert union(128, 8, 1, 4, INDEPENDENT) > 1.4 * 20.36
    with pytest.raises(UsageError, match="unknown overlap of experts 'chian'; did you mean 'chain'"):
        overlap_of("chian")
