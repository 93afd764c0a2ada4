"""Drafts that end where the drafter is unsure, by hand: a rate of a half is spread evenly over 0 to 1."""

from dataclasses import replace

import numpy as np
import pytest

from medusa_sim.acceptance.p_min import ending_unsure, sure_drafts
from medusa_sim.acceptance.profile import load_acceptance
from medusa_sim.acceptance.shaped import ShapedAcceptance
from medusa_sim.errors import UsageError
from medusa_sim.scenario.acceptance import constant_rate


@pytest.mark.parametrize("p_min", [0.0, 0.4, 0.9])
def test_of_a_rate_of_a_half_drafts_above_a_probability_are_kept(p_min):
    """1 - p of them; right are half of 1 - p^2, their mean probability times them."""
    kept, accepted = sure_drafts(np.array([0.5]), p_min)
    assert (kept[0], accepted[0]) == (pytest.approx(1 - p_min), pytest.approx((1 - p_min**2) / 2))


def test_what_is_left_of_a_profile_are_the_rates_of_kept_drafts_alone():
    """Neither a ratio nor a correlation of its heads counts twice."""
    profile = constant_rate(0.5, 3)
    heads = replace(profile.heads, correlation=0.3)
    correlated = replace(profile, model=ShapedAcceptance("made", heads))
    kept, left = ending_unsure(correlated, 0.4)
    shares, accepted = sure_drafts(heads.conditional()[:, 0], 0.4)
    assert kept == pytest.approx(tuple(shares))
    assert left.heads.conditional()[:, 0].tolist() == pytest.approx(accepted.tolist())
    assert (left.ratio, left.heads.correlation) == (1.0, 0.0)
    kept, left = ending_unsure(profile, 0.4)
    assert kept == pytest.approx((0.6, 0.6, 0.6))
    assert left.heads.conditional()[:, 0].tolist() == pytest.approx([0.42] * 3)
    with pytest.raises(UsageError, match="no rates of single drafts"):
        ending_unsure(load_acceptance("paper-fig21"), 0.4)


@pytest.mark.parametrize("ratio", [0.8, 1.2])
def test_where_no_draft_ends_early_a_ratio_gives_as_many_tokens_as_without_p_min(ratio):
    """It multiplies the accepted drafts once, not each draft's rate: 0.8 of 0.5 + 0.25 + 0.125 are 0.7."""
    profile = constant_rate(0.5, 3).with_ratio(ratio)
    kept, left = ending_unsure(profile, 0.0)
    assert kept == (1.0, 1.0, 1.0)
    assert left.heads.conditional()[:, 0].tolist() == pytest.approx([0.5 * ratio, 0.5, 0.5])
    assert left.tokens_per_step(4) == pytest.approx(1.0 + ratio * 0.875)
    assert left.tokens_per_step(4) == pytest.approx(float(profile.tokens_per_step(4)))
    assert ending_unsure(profile.with_ratio(9.0), 0.0)[1].heads.accuracy[0, 0] == 1.0  # never above one


def test_a_drafter_that_is_always_or_never_right_is_as_sure_as_that():
    """Rates of 1 and 0, where a Beta distribution has no density."""
    kept, accepted = sure_drafts(np.array([1.0, 0.0]), 0.5)
    assert kept == pytest.approx([1.0, 0.0], abs=1e-5)
    assert accepted == pytest.approx([1.0, 0.0], abs=1e-5)
