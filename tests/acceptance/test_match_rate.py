"""How often a look-up in the text finds drafts: as a profile says, else from the first rate."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from one_line import one_line

from medusa_sim.acceptance.profile import ACCEPTED_OF_MATCHES, load_acceptance
from medusa_sim.errors import SpecError, UsageError
from medusa_sim.plan.scenario import Scenario
from medusa_sim.plan.surface import price

TEXT = """
schema = 1
kind = "position"
title = "n-grams"
source = "a test"
agreement = "target"
rates = "unconditional"
positions = [{ rate = 0.2 }, { rate = 0.1 }]
"""


def written(folder: Path, more: str = "") -> Path:
    path = folder / "own.toml"
    path.write_text(TEXT + more)
    return path


def test_a_match_rate_is_the_measured_one_or_follows_from_the_first_draft(tmp_path):
    assert load_acceptance(written(tmp_path, "match_rate = 0.31")).steps_matched == 0.31
    profile = load_acceptance(written(tmp_path))
    assert profile.steps_matched == pytest.approx(0.2 / ACCEPTED_OF_MATCHES)
    assert profile.with_ratio(0.5).steps_matched == pytest.approx(0.1 / ACCEPTED_OF_MATCHES)
    assert profile.with_ratio(10.0).steps_matched == 1.0
    assert load_acceptance("paper-fig21").steps_matched == 1.0


@pytest.mark.parametrize("rate", ["0.0", "1.5", "-0.2", "0.15"])
def test_an_impossible_match_rate_is_refused(tmp_path, rate):
    with pytest.raises(SpecError, match=r"own\.toml.*match_rate"):
        load_acceptance(written(tmp_path, f"match_rate = {rate}"))


LOOKUP = {"gpu": "h100-sxm", "model": "llama-3.1-8b", "drafter": "ngram", "latency": "roofline"}


@given(
    st.floats(0.05, 0.95),
    st.lists(st.floats(0.05, 1.0), min_size=2, max_size=5),
    st.sampled_from(["vllm-0.33", "sglang-0.5", "cuda-graph"]),
)
@settings(max_examples=15, deadline=None)
def test_more_matches_never_gain_less(first, rates, runtime):
    """A text that matched in 1 % of the steps gained 2.45x, one that always matched 1.85x."""
    accepted = [first, first * 0.8, first * 0.5]
    shares = sorted(first + (1.0 - first) * rate for rate in rates)
    gains = []
    for share in shares:
        scenario = Scenario(**LOOKUP, runtime=runtime, acceptance=accepted, match_rate=share)
        found = price(scenario, [1, 4], [512])
        tokens, most = found.tokens_per_step, 1.0 + share * (found.candidates - 1.0)
        assert (tokens <= most * (1.0 + 1e-12)).all()
        gains.append(np.maximum(found.speedup, 1.0).max(axis=-1))
    assert (np.diff(gains, axis=0) >= -1e-9).all()


@pytest.mark.parametrize("share", [0.01, 0.69])
def test_fewer_matches_than_accepted_drafts_are_refused(share):
    with one_line(UsageError, match=r"match rate 0\.\d+.*first draft in 0\.7"):
        Scenario(**LOOKUP, acceptance="0.7,0.5", match_rate=share)


def test_the_share_that_a_profile_has_changes_nothing(tmp_path):
    path = str(written(tmp_path, "match_rate = 0.4"))
    alone = Scenario(**LOOKUP, acceptance=path)
    told = Scenario(**LOOKUP, acceptance=path, match_rate=0.4)
    assert told.match_rate == alone.match_rate == 0.4
    assert told.profile.tokens_per_step(3) == alone.profile.tokens_per_step(3)
    half = Scenario(**LOOKUP, acceptance=path, match_rate=0.2)
    assert half.profile.tokens_per_step(3) - 1.0 == pytest.approx(
        0.5 * (alone.profile.tokens_per_step(3) - 1.0)
    )
