"""Acceptance as it is given: every form, what it gives, and what is refused."""

import numpy as np
import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st
from one_line import one_line

from medusa_sim.acceptance.curve import LogCurve, TableCurve
from medusa_sim.acceptance.profile import load_acceptance
from medusa_sim.doubts.of_scenario import scenario_doubts
from medusa_sim.errors import DataError, MedusaSimError, UsageError
from medusa_sim.load.load_test import load_test
from medusa_sim.report.words.scenario import acceptance_text
from medusa_sim.scenario.acceptance import both_kinds, constant_rate, mean_length, rates_by_position
from medusa_sim.scenario.scenario import Scenario

HALF, GIVEN, CONDITIONAL = [1.5, 1.75, 1.875], [1.78, 2.38, 2.80], [1.78, 2.248, 2.44456]


@pytest.mark.parametrize(
    ("given", "tokens"),
    [("0.5", HALF), (0.5, HALF), ("1.875@3", HALF), (f"{87.5 / 3:.12g}%@3", HALF), (constant_rate(0.5), HALF),
     ("0.78,0.60,0.42", GIVEN), ([0.78, 0.60, 0.42], GIVEN), ("conditional:0.78,0.6,0.42", CONDITIONAL),
     ("conditional:0.5", HALF)],
)  # fmt: skip
@pytest.mark.parametrize("drafter", ["medusa", "eagle", "ngram"])
def test_every_form_of_acceptance(given, tokens, drafter):
    scenario = Scenario(drafter=drafter, acceptance=given, latency="roofline")
    assert scenario.profile.tokens_per_step([2, 3, 4]) == pytest.approx(tokens)


def test_a_mean_length_keeps_its_mean_and_has_a_wider_band():
    for drafts, tokens in ((1, 1.4), (3, 2.8), (5, 3.0), (3, 4.0)):
        found = mean_length(tokens, drafts)
        assert float(found.tokens_per_step(drafts + 1)) == pytest.approx(tokens)
        assert found.candidates_max == drafts + 1
    low, high = mean_length(2.8, 3).band([3])
    assert high - low > 0.3


@pytest.mark.parametrize(
    "given",
    [
        *(
            "1.5",
            "0",
            "nan",
            "0.5,0.8",
            "0.5,",
            "1.2,0.5",
            "0.9@3",
            "5@3",
            "2@0",
            "2@99",
            "2.5@2.5",
            "1@2",
            "0%@3",
            "101%@3",
            "%@3",
            "60%@",
            "60%",
        ),
        *("conditional:", "conditional:0.5,x", "conditional:1.2,0.5", "conditional:2.8@3", "conditional:0"),
    ],
)
def test_senseless_acceptance_is_one_line(given):
    with one_line(MedusaSimError):
        Scenario(acceptance=given)


SHARES = st.lists(st.floats(0.05, 1.0), min_size=2, max_size=8).map(lambda each: sorted(each, reverse=True))


@for_all(shares=SHARES)
def test_both_kinds_of_rates_name_the_same_chain(shares):
    """Printed rates, pasted back, give the chain again; as shares of steps, conditional ones gave more."""
    counts = np.arange(1, len(shares) + 2)
    chain = rates_by_position(shares)
    of_steps, conditional = both_kinds(chain).rstrip(")").split(" of the steps (")
    for text in (of_steps, conditional):
        again = Scenario(acceptance=text, latency="roofline").profile
        assert again.tokens_per_step(counts) == pytest.approx(chain.tokens_per_step(counts), abs=0.03)
    assert conditional.startswith("conditional:")


@pytest.mark.parametrize(
    ("given", "is_warned"),
    [("0.71,0.66,0.64", True), ([0.71, 0.66, 0.64], True), (np.array([0.65, 0.6, 0.5]), True),
     ("0.71,0.47,0.30", False), ("conditional:0.71,0.66,0.64", False), ("0.7", False), ("2.48@3", False),
     ("medusa1-vicuna-7b", False), (0.7, False), (None, False)],
)  # fmt: skip
def test_shares_that_look_conditional_are_warned_of(given, is_warned):
    lines = [
        line
        for line in scenario_doubts(Scenario(acceptance=given, latency="roofline"))
        if "shares of" in line
    ]
    assert len(lines) == is_warned
    if is_warned:
        _, _, word = lines[0].rpartition(" give ")
        first = 0.71 if isinstance(given, str) else given[0]
        assert Scenario(acceptance=word).profile.tokens_per_step(3) < 2.0 + first


def test_rising_shares_are_refused_with_the_word_that_takes_them():
    with one_line(UsageError, match="conditional:0.7,0.72$"):
        Scenario(acceptance="0.7,0.72")
    with pytest.raises(UsageError) as told:
        Scenario(acceptance="1.7,0.72")
    assert "conditional:" not in str(told.value)


def test_a_workload_scales_once_and_is_named():
    scenario = Scenario(drafter="eagle3", model="llama-3.1-8b", workload="coding", latency="roofline")
    again = scenario.but(acceptance=scenario.profile)
    assert again.profile.tokens_per_step(3) == scenario.profile.tokens_per_step(3) > 2.2504
    assert "workload coding" in acceptance_text(again)


def test_a_band_never_emits_more_tokens_than_candidates():
    counts = np.arange(1, 5)
    wide = TableCurve("wide", ((2, 1.5), (4, 2.0)), error_tokens=5.0)
    assert (wide.band(counts)[1] <= counts).all()
    assert (LogCurve("log", 1.0, 4, ((2, 1.2), (4, 3.9))).band(counts)[1] <= counts).all()
    for bad in (-1.0, float("nan")):
        with pytest.raises(DataError, match="error_tokens"):
            TableCurve("bad", ((2, 1.5),), error_tokens=bad)
    sure = rates_by_position([0.95, 0.9])
    assert (sure.band([1, 2, 3])[1] <= [1, 2, 3]).all()


@pytest.mark.parametrize("drafter", ["ngram", "suffix", "draft-model", "pard"])
def test_a_typical_rate_is_called_an_assumption_with_its_source(drafter):
    draft = "qwen3-0.6b" if "ngram" != drafter != "suffix" else None
    scenario = Scenario(model="qwen3-8b", drafter=drafter, draft_model=draft, latency="roofline")
    assert any(
        "is an assumption" in line and scenario.profile.title in line for line in scenario_doubts(scenario)
    )
    low, high = scenario.profile.band(2)
    assert high - low > 0.2 * (scenario.profile.tokens_per_step(2) - 1.0)
    given = scenario.but(acceptance=0.5)
    assert not any("assumption" in line for line in scenario_doubts(given))


@pytest.mark.parametrize(
    ("name", "figures"),
    [("ngram", {1: 1.236, 3: 1.395}), ("suffix", {3: 1.693}), ("draft-model", {2: 2.122, 5: 2.764})],
)
def test_a_typical_profile_gives_the_figures_that_it_cites(name, figures):
    profile = load_acceptance(f"typical-{name}")
    for drafts, tokens in figures.items():
        assert profile.tokens_per_step(drafts + 1) == pytest.approx(tokens, abs=0.02)


@pytest.mark.parametrize(
    ("tokens", "drafts", "fits"),
    [(1.5, 1, True), (2.0, 1, True), (2.1, 1, False), (1.0, 3, False), (1.5, 0, False), (3.0, 16, True),
     (3.0, 17, False)],
)  # fmt: skip
def test_a_mean_length_is_above_one_and_at_most_a_token_more_than_drafts(tokens, drafts, fits):
    if not fits:
        with one_line(UsageError):
            mean_length(tokens, drafts)
        return
    rate = mean_length(tokens, drafts).heads.accuracy[:, 0]
    assert 1.0 + np.cumprod(np.full(drafts, rate[0])).sum() == pytest.approx(tokens)


def test_a_load_test_takes_acceptance_as_measured_and_changes_it_once():
    """What p-min left of an acceptance was cut by it again, where outputs change it."""
    asked = {"gpu": "rtx-4090", "model": "llama-3.1-8b", "runtime": "llama.cpp-cuda", "drafter": "eagle3"}
    of = Scenario(**asked, acceptance="mtp-deepseek-r1", p_min=0.6)
    loaded = load_test(of, output_tokens=256).scenario
    once = Scenario(**asked, acceptance=of.measured_acceptance.of_outputs(256), p_min=0.6)
    assert loaded.profile.tokens_per_step(4) == pytest.approx(once.profile.tokens_per_step(4), rel=1e-12)
