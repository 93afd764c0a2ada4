"""How often a look-up finds drafts: as measured or given, and what it changes; lengths of outputs."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from asking import answered
from hypothesis import given, settings
from hypothesis import strategies as st
from one_line import one_line

from medusa_sim.acceptance.profile import ACCEPTED_OF_MATCHES, load_acceptance
from medusa_sim.doubts.of_scenario import scenario_doubts
from medusa_sim.errors import SpecError, UsageError
from medusa_sim.grid.cells import price
from medusa_sim.load.load_test import load_test
from medusa_sim.scenario.scenario import Scenario


@pytest.mark.parametrize("runs", [1.0, 1.4, 3.0])
def test_runs_of_found_drafts_are_found_again_where_steps_are_listed(runs, tmp_path):
    draw, rate, records = np.random.default_rng(1), 0.4, []
    for _ in range(60):
        found = [bool(draw.random() < rate)]
        while len(found) < 200:
            again = 1.0 - (1.0 - rate) / runs if found[-1] else rate / runs
            found.append(bool(draw.random() < again))
        taken = [int(each and draw.random() < 0.5) for each in found]
        histogram = Counter(taken)
        records.append(
            {
                "acceptance_histogram": {str(key): count for key, count in histogram.items()},
                "num_spec_steps": len(found),
                "per_step_accepted": taken,
                "per_step_drafted": [int(each) for each in found],
                "completion_tokens": 1 + len(found) + sum(taken),
            }
        )
    path, written = tmp_path / "records.jsonl", tmp_path / "own.toml"
    path.write_text("\n".join(map(json.dumps, records)))
    result = answered("acceptance", "from-engine", str(path), "-o", str(written), "--lookup")
    profile = load_acceptance(written)
    assert profile.match_rate == pytest.approx(rate, abs=0.02)
    assert profile.match_runs == pytest.approx(runs, rel=0.06)
    assert f"in runs {profile.match_runs:.2f} times as long" in result.output
    # what a load draws from follows the profile
    test = load_test(Scenario(gpu="h100-sxm", model="llama-3.1-8b", drafter="ngram", acceptance=str(written)))
    assert test.table.accepted.match_runs == profile.match_runs


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
    assert load_acceptance(written(tmp_path, "match_rate = 0.31")).match_rate_or_guess == 0.31
    profile = load_acceptance(written(tmp_path))
    assert profile.match_rate_or_guess == pytest.approx(0.2 / ACCEPTED_OF_MATCHES)
    assert profile.with_ratio(0.5).match_rate_or_guess == pytest.approx(0.1 / ACCEPTED_OF_MATCHES)
    assert profile.with_ratio(10.0).match_rate_or_guess == 1.0
    assert load_acceptance("paper-fig21").match_rate_or_guess == 1.0


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


R1 = load_acceptance("mtp-deepseek-r1")
COUNTS = np.arange(1, 7)


def test_short_outputs_accept_more_rarely_as_published_and_nothing_is_extrapolated():
    reached = np.diff(R1.tokens_per_step(COUNTS)) * 0.83 ** np.arange(1, 6)
    short = R1.of_outputs(920.0)
    assert short.tokens_per_step(COUNTS) == pytest.approx(1.0 + np.cumsum([0.0, *reached]), rel=1e-9)
    assert R1.of_outputs(7400.0).tokens_per_step(COUNTS) == pytest.approx(R1.tokens_per_step(COUNTS))
    lengths = [1.0, 500.0, 920.0, 1500.0, 4000.0, 7400.0, 1e6]
    tokens = [float(R1.of_outputs(length).tokens_per_step(4)) for length in lengths]
    assert tokens == sorted(tokens)
    assert tokens[0] == tokens[2]
    assert tokens[-1] == tokens[-2]
    assert tokens[2] < tokens[3] < tokens[4] < tokens[5]
    low, high = short.band(2)
    assert low < 1.0 + 0.92 * 0.73  # the lowest cell that was served
    assert high > 1.0 + 0.92 * 0.86  # and the highest
    assert short.of_outputs(920.0) is short  # taken once


def test_a_scenario_takes_it_with_its_traffic_and_says_so():
    given = {"gpu": "h200-sxm", "model": "deepseek-r1", "drafter": "mtp", "runtime": "sglang", "tp": 8}
    plain, short = (Scenario(**given, **more) for more in ({}, {"prompt_tokens": 1000, "output_tokens": 900}))
    assert plain.profile.output_share == 1.0
    assert short.profile.output_share == pytest.approx(0.83)
    assert [line for line in scenario_doubts(short) if "random prompts" in line]
    assert not [line for line in scenario_doubts(plain) if "random prompts" in line]
    loaded = load_test(plain, output_tokens=900.0, prompt_tokens=1000.0)
    assert loaded.scenario.profile.output_share == pytest.approx(0.83)
    (told,) = (line for line in scenario_doubts(loaded.scenario) if "random prompts" in line)
    assert "900 tokens" in told  # of the load's outputs: the scenario itself has none


def test_rows_must_rise(tmp_path):
    rows = "".join(f"[[by_output]]\ntokens = {tokens}\nshare = 0.5\n" for tokens in (100, 100))
    path = tmp_path / "own.toml"
    path.write_text(
        'schema = 1\nkind = "position"\ntitle = "t"\nsource = "s"\n'
        'agreement = "target"\nrates = "conditional"\n'
        f"positions = [{{ rate = 0.5 }}]\n{rows}"
    )
    with pytest.raises(SpecError, match="by_output: tokens must rise"):
        load_acceptance(path)
