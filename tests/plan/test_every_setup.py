"""`recommend` over every shipped model: an answer that agrees with itself, or one line.

benchmarks/every_setup.py asks about every drafter, runtime and number of GPUs; here each model is asked about
once, with drafters, runtimes and cards in turn.
"""

import every_setup
import pytest

from medusa_sim.errors import MedusaSimError
from medusa_sim.plan.question import Question
from medusa_sim.plan.recommend import recommend
from medusa_sim.plan.scenario import Scenario
from medusa_sim.specs.models import model_names

RUNTIMES = ("vllm-0.33", "sglang-0.5", "cuda-graph", "tensorrt-llm-1.2")
DRAFTERS = ("eagle3", "ngram", "eagle", "draft-model", "medusa")
GROUPS = 5


@pytest.mark.parametrize("group", range(GROUPS))
def test_every_model_is_answered_or_refused_in_a_line(group):
    outcomes = [
        every_setup.checked(
            every_setup.SetUp(
                model=model,
                drafter=DRAFTERS[(turn // GROUPS + turn) % len(DRAFTERS)],
                runtime=RUNTIMES[turn % len(RUNTIMES)],
                gpus=every_setup.GPUS[turn % 2],
                turn=turn,
                latency="calibrated" if turn % 5 == 0 else "roofline",
            )
        )
        for turn, model in list(enumerate(model_names()))[group::GROUPS]
    ]
    assert [line for outcome in outcomes for line in outcome.failures] == []
    assert sum(not outcome.refused for outcome in outcomes) >= 3


@pytest.mark.parametrize("model", ["mistral-7b", "zephyr-7b"])
def test_a_model_of_windows_alone_is_answered(model):
    """Memory ends no context there, and dividing by what a token adds to it was a bug."""
    found = recommend(Scenario(model=model, latency="roofline"), Question(batch_max=2))
    assert found.break_even_context.searched_to == found.scenario.model.max_seq_len


def test_a_bug_is_a_failure_and_a_refusal_none(monkeypatch):
    asked = every_setup.SetUp(model="llama-3.1-8b", drafter="eagle3", runtime="vllm-0.33", gpus=1, turn=0)

    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    def refused(*_: object) -> None:
        raise MedusaSimError("one line")

    monkeypatch.setattr(every_setup, "recommend", broken)
    assert "a bug" in every_setup.checked(asked).failures[0]
    monkeypatch.setattr(every_setup, "recommend", refused)
    assert (every_setup.checked(asked).refused, every_setup.checked(asked).failures) == ("one line", ())
