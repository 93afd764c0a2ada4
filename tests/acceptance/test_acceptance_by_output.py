"""Acceptance by the length of outputs: exact where it was measured, between in between, never beyond."""

import numpy as np
import pytest

import medusa_sim as ms
from medusa_sim.acceptance.profile import load_acceptance
from medusa_sim.errors import SpecError
from medusa_sim.load.question import load_test

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
    plain, short = (
        ms.Scenario(**given, **more) for more in ({}, {"prompt_tokens": 1000, "output_tokens": 900})
    )
    assert plain.profile.output_share == 1.0
    assert short.profile.output_share == pytest.approx(0.83)
    assert [line for line in short.warnings if "random prompts" in line]
    assert not [line for line in plain.warnings if "random prompts" in line]
    loaded = load_test(plain, output_tokens=900.0, prompt_tokens=1000.0)
    assert loaded.scenario.profile.output_share == pytest.approx(0.83)
    (told,) = (line for line in loaded.scenario.warnings if "random prompts" in line)
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
