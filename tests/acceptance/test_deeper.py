"""Rates beyond the last measured draft: never more than is possible, said, with a band that opens."""

import deeper_rates
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import medusa_sim as ms
from medusa_sim.acceptance.deeper import (
    DEEPEST,
    FALLS,
    Fall,
    Guess,
    carried_on,
    fall_of,
    fallen,
    guessed_band,
)
from medusa_sim.acceptance.heads import HeadAccuracy
from medusa_sim.acceptance.profile import load_acceptance
from medusa_sim.acceptance.shaped import ShapedAcceptance
from medusa_sim.doubts.of_scenario import scenario_doubts
from medusa_sim.errors import CoverageError
from medusa_sim.plan.recommend import recommend
from medusa_sim.report.recommend.python import recommendation_values
from medusa_sim.report.recommend.screen import recommend_screen
from medusa_sim.report.screen import screen_text
from medusa_sim.report.words.scenario import acceptance_text
from medusa_sim.scenario.acceptance import mean_length, resolve_word
from medusa_sim.scenario.adjusted_acceptance import with_further_drafts
from medusa_sim.scenario.question import Question
from medusa_sim.step.drafter import drafter_class, drafters

LLAMA = "eagle3-llama-3.1-8b"
RATE = st.floats(0.02, 1.0)
CHAINS = [name for name, kind in drafters().items() if kind.falls_as]


@pytest.fixture(scope="module")
def scenario() -> ms.Scenario:
    return ms.Scenario(gpu="h100-sxm", model="llama-3.1-8b", drafter="eagle3", acceptance=LLAMA)


@pytest.mark.parametrize("kind", FALLS)
def test_falls_are_what_the_study_fits(kind):
    fall, _, held_out = deeper_rates.refitted(kind)
    shipped = FALLS[kind]
    assert (fall.share, fall.alone) == pytest.approx((shipped.share, shipped.alone), abs=1e-9)
    assert (fall.share_error, fall.alone_error) == pytest.approx(
        (shipped.share_error, shipped.alone_error), abs=6e-3
    )
    assert np.abs(held_out[False]).mean() < 0.02


def test_a_model_that_the_fit_has_not_seen_lies_in_the_band():
    """Each with the fall that all others give, from its first two, three and four rates."""
    inside = []
    names = deeper_rates.of_kind("every")
    for name in names:
        rates = deeper_rates.deeper_profiles()[name]
        others = [other for other in names if deeper_rates.model_of(other) != deeper_rates.model_of(name)]
        share = deeper_rates.fitted(others, mean=False).share
        fall = Fall(share, FALLS["every"].share_error, 0.0, 0.0)
        for drafts in (2, 3, 4):
            heads = HeadAccuracy.checked(rates[:drafts, None])
            model = ShapedAcceptance("held out", heads).carried_on(fall)
            counts = np.arange(drafts + 2, min(2 * drafts, rates.size) + 2)
            low, high = model.band(counts)
            met = (1.0 + np.cumsum(np.cumprod(rates)))[counts - 2]
            inside += ((low - 5e-3 <= met) & (met <= high + 5e-3)).tolist()  # lengths are published to 0.01
    assert np.mean(inside) > 0.7


@given(
    rates=st.lists(RATE, min_size=1, max_size=DEEPEST),
    kind=st.sampled_from(sorted(FALLS)),
    of_mean=st.booleans(),
)
def test_a_guess_is_possible_and_what_was_measured_stays(rates, kind, of_mean):
    heads = HeadAccuracy.checked(np.asarray(rates)[:, None])
    found = carried_on(heads, FALLS[kind], of_mean=of_mean)
    if len(rates) == DEEPEST:
        assert found is None
        return
    deeper, guess = found
    assert guess.measured == len(rates)
    assert deeper.depth == min(2 * len(rates), DEEPEST)
    own = deeper.conditional()[:, 0]
    assert own[: len(rates)].tolist() == rates
    reached = np.cumprod(own)
    added = np.diff(np.concatenate([[1.0], reached]))
    assert (added <= 0.0).all()
    if kind != "mtp" or not of_mean:
        assert (np.diff(own[len(rates) - 1 :]) <= 0.0).all()


@given(
    rates=st.lists(RATE, min_size=1, max_size=5),
    place=st.integers(0, 4),
    more=st.floats(0.0, 1.0),
    drafter=st.sampled_from(list(drafters())),
    workload=st.sampled_from([None, "humanities", "extraction"]),
)
def test_a_larger_rate_never_gives_fewer_tokens(rates, place, more, drafter, workload):
    """Of any drafter at any count, the guessed ones too, for any workload."""
    raised = list(rates)
    place %= len(rates)
    raised[place] += more * (1.0 - raised[place])
    few, many = (
        with_further_drafts(resolve_word(f"conditional:{','.join(map(repr, each))}"), drafter_class(drafter))
        for each in (rates, raised)
    )
    if workload is not None:
        few, many = few.of_workload(workload), many.of_workload(workload)
    counts = np.arange(1, few.candidates_max + 1)
    assert (many.tokens_per_step(counts) >= few.tokens_per_step(counts) - 1e-12).all()
    if len(rates) > 1:
        most = min(2 * len(rates), DEEPEST) if drafter in CHAINS else len(rates)
        assert few.candidates_max == most + 1


@given(
    heads=st.lists(st.lists(RATE, min_size=2, max_size=3), min_size=1, max_size=4), more=st.floats(0.0, 1.0)
)
def test_a_larger_accuracy_never_makes_the_best_tree_worse(heads, more):
    accuracy = np.zeros((len(heads), 3))
    for k, row in enumerate(heads):
        accuracy[k, : len(row)] = np.asarray(row) / max(1.0, sum(row))
    raised = accuracy.copy()
    raised[-1, 0] += more * (1.0 - accuracy[-1].sum())
    few, many = (ShapedAcceptance("test", HeadAccuracy.checked(each)) for each in (accuracy, raised))
    counts = np.arange(1, min(few.candidates_max, 64) + 1)
    assert (many.tokens_per_step(counts) >= few.tokens_per_step(counts) - 1e-12).all()


@given(drafts=st.integers(1, 5), share=st.floats(0.01, 0.98), more=st.floats(0.0, 1.0))
def test_a_larger_mean_length_never_gives_fewer_tokens(drafts, share, more):
    counts = np.arange(1, min(2 * drafts, DEEPEST) + 2)
    few, many = (
        mean_length(1.0 + drafts * each, drafts).carried_on(FALLS["eagle"]).tokens_per_step(counts)
        for each in (share, share + more * (1.0 - share))
    )
    assert (many >= few - 1e-9).all()


def test_bands_open_with_each_guessed_draft(scenario):
    profile = scenario.profile
    low, high = profile.band(np.arange(1, 8))
    tokens = profile.tokens_per_step(np.arange(1, 8))
    relative = (high - low)[1:] / (tokens - 1.0)[1:]
    assert relative[:3] == pytest.approx(relative[0], rel=1e-9)
    assert (np.diff(relative[2:]) > 0.0).all()
    options = {option.depth: option for option in scenario.options()}
    for depth, option in options.items():
        assert (option.token_band.low[0], option.token_band.high[0]) == pytest.approx(
            (low[depth], high[depth]), rel=1e-12
        )


def test_what_was_measured_is_as_it_was_and_beyond_twice_is_refused(scenario):
    for given_, drafts in ((LLAMA, 3), ("2.48@3", 3), ("0.7,0.5", 2), (LLAMA, 3)):
        own = scenario.but(acceptance=given_)
        assert own.profile.measured_drafts == drafts
        assert own.depth == 2 * drafts
        with pytest.raises(CoverageError, match=rf"1\.\.{2 * drafts + 1}, given {2 * drafts + 2}"):
            own.profile.tokens_per_step(2 * drafts + 2)
        counts = np.arange(1, drafts + 2)
        assert own.guessed_from == drafts + 1
        plain = own.but(max_drafts=drafts)
        assert plain.guessed_from is None
        for runtime in ("vllm", "sglang"):
            carried, cut = (
                each.but(runtime=runtime).sweep(batch=[1, 64], candidates=counts) for each in (own, plain)
            )
            pd.testing.assert_frame_equal(carried, cut, rtol=1e-12)
    measured = load_acceptance(LLAMA)
    assert measured.measured_drafts is None
    np.testing.assert_array_equal(
        measured.tokens_per_step([1, 2, 3, 4]), scenario.profile.tokens_per_step([1, 2, 3, 4])
    )
    # one rate for every draft is what it says; heads that were not trained cannot be run; look-ups rise
    assert scenario.but(acceptance="0.7").profile.measured_drafts is None
    assert ms.Scenario(acceptance="0.7,0.5").profile.measured_drafts is None
    assert scenario.but(drafter="ngram", acceptance="0.3,0.2").profile.measured_drafts is None
    assert scenario.but(acceptance=scenario.profile).profile == scenario.profile


def test_the_flagship_has_an_optimum_inside_its_range_and_says_where_it_guesses(scenario):
    found = recommend(scenario, Question(batch_max=64))
    first = found.schedule[0]
    assert 3 < first.drafts < 6
    assert not first.best_ends_profile
    values = recommendation_values(found)
    assert "(guessed beyond 3 drafts)" in values["reason"]
    assert values["acceptance_guessed_from_draft"] == 4
    assert any("from draft 4 on its rates are a guess" in line for line in values["warnings"])
    assert acceptance_text(scenario) == f"{LLAMA} (guessed from draft 4 on)"
    few = recommend(scenario.but(max_drafts=3), Question(batch_max=64))
    page = screen_text(recommend_screen(few), 100, 100, verbose=True)
    values = recommendation_values(few)
    assert values["acceptance_guessed_from_draft"] is None
    assert "guess" not in " ".join([values["reason"], page, *values["warnings"]])


def test_rows_that_rest_on_no_guess_do_not_speak_of_it(scenario):
    assert not any("guess" in line for line in scenario_doubts(scenario, 4))
    assert "guess" not in acceptance_text(scenario, 4)
    assert "guess" in acceptance_text(scenario, 5)
    for batches in ((1, 4), (128, 128)):
        found = recommend(scenario, Question(batch_min=batches[0], batch_max=batches[1]))
        is_guessed = max(row.speculative_candidates for row in found.schedule) > scenario.guessed_from
        assert is_guessed == (batches[0] == 1)
        page = screen_text(recommend_screen(found), 100, 100, verbose=True)
        assert ("guess" in page) == is_guessed
    assert scenario_doubts(scenario, 5) == scenario_doubts(scenario)


def test_rates_fall_by_a_share_of_their_own_mean_fall():
    fall = Fall(share=0.5, share_error=0.1, alone=0.2, alone_error=0.3)
    rates = np.array([0.8, 0.9, 0.8 / 4])  # a quarter over two drafts: the half of it each
    found, error = fall_of(rates, fall, of_mean=False)
    assert (found, error) == (pytest.approx(0.5 * np.log(2.0)), 0.1)
    assert fall_of(rates[::-1], fall, of_mean=False) == (0.0, 0.1)  # rising ones stay
    assert fall_of(rates, fall, of_mean=True) == fall_of(rates[:1], fall, of_mean=False) == (0.2, 0.3)
    assert fallen(np.array([0.9, 0.8]), np.log(2.0), 3) == pytest.approx([0.4, 0.2, 0.1])
    assert fallen(np.array([0.9]), -1.0, 2).tolist() == [1.0, 1.0]


def test_a_guessed_draft_may_be_reached_more_or_less_often_by_the_error_of_its_fall():
    """Rates of 0.8, 0.5 and 0.4, of which two were measured, and a fall known to a factor of 1.25.

    The third is 0.4 / 1.25 = 0.32 or 0.4 x 1.25 = 0.5: 0.8 x 0.5 x 0.08 fewer, 0.8 x 0.5 x 0.1 more.
    """
    fewer, more = guessed_band(np.array([0.8, 0.5, 0.4]), Guess(measured=2, error=float(np.log(1.25))))
    assert fewer == pytest.approx([0.0, 0.0, 0.0, 0.032])
    assert more == pytest.approx([0.0, 0.0, 0.0, 0.04])
    _, capped = guessed_band(np.array([0.9]), Guess(measured=0, error=1.0))
    assert capped == pytest.approx([0.0, 0.1])  # never above one
