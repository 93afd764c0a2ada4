"""What screens put beside their numbers, by hand."""

import re

import pytest

from medusa_sim.plan.check import CheckedPart, EngineCheck, EngineRun
from medusa_sim.plan.recommend import recommend
from medusa_sim.report.check.screen import _part_text
from medusa_sim.report.recommend.screen import _costs
from medusa_sim.scenario.question import Question
from medusa_sim.scenario.scenario import Scenario

SCENARIO = Scenario(
    gpu="h100-sxm", model="llama-3.1-8b", drafter="eagle3", acceptance=0.7, runtime="cuda-graph",
    latency="roofline",
)  # fmt: skip


@pytest.mark.parametrize(
    ("lengths", "places"),
    [((512,), ["batch 2"]), ((512, 1024), ["batch 2, length 512", "batch 2, length 1024"])],
)
def test_costs_name_their_length_where_there_are_several(lengths, places):
    first, *_ = _costs(recommend(SCENARIO, Question(batch_max=2, seq_len=lengths)))
    assert re.findall(r"at (batch \d+(?:, length \d+)?)", first.text) == places


@pytest.mark.parametrize(
    ("name", "told"),
    [("round", ("10.0 ms", "25.0 ms", "15.0 ms")), ("plain", ("4.00 ms", "10.0 ms", "6.00 ms"))],
)
def test_a_round_is_told_whole_and_a_plain_step_a_token(name, told):
    """10 ms a token measured for 6 predicted: of 2.5 tokens a round 25 ms for 15, 10 ms too slow."""
    band = {"predicted_us": 6_000.0, "low_us": 5_500.0, "high_us": 6_500.0}
    part = CheckedPart(name=name, measured_us=10_000.0, costs_us=4_000.0, **band)
    run = EngineRun(batch=1, seq_len=64, drafts=3, time_us=10_000.0, tokens_per_step=2.5)
    check = EngineCheck(scenario=SCENARIO, run=run, parts=(part,), **band)
    text = _part_text(check, part)
    assert tuple(re.findall(r"[\d.]+ ms", text)[:3]) == told
    assert "slow" in text
