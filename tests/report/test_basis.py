"""What an answer rests on in few lines: each part once, what stands in for a measurement named so."""

from __future__ import annotations

import pytest

from medusa_sim.doubts.of_scenario import engine_on_other_gpus, grave_doubts
from medusa_sim.report.words.basis import MEASURED, MOST, basis, how_sure, rests_on
from medusa_sim.scenario.scenario import Scenario

_H100 = {"gpu": "h100-sxm", "model": "llama-3.1-8b", "drafter": "eagle3"}


@pytest.mark.parametrize(
    ("asked", "stands_in"),
    [
        ({}, ""),
        (_H100 | {"model": "llama-3.3-70b", "tp": 4}, "Acceptance, Engine"),
        (_H100 | {"gpu": "b200"}, "Acceptance, Kernels"),
        (_H100 | {"drafter": "suffix"}, "Acceptance"),
        (_H100 | {"latency": "roofline"}, "Acceptance"),
        ({"gpu": "m4-max", "model": "llama-3.1-8b", "runtime": "llama.cpp-metal"}, "Acceptance"),
    ],
)
def test_each_part_once_and_what_stands_in_for_a_measurement(asked, stands_in):
    of = Scenario(**asked)
    found = basis(of)
    assert len({part.part for part in found}) == len(found) < MOST
    assert ", ".join(part.part for part in found if part.short) == stands_in
    assert (rests_on(of) == MEASURED) == (not stands_in)
    plain = [part.part for part in basis(of, plain=True)]
    assert plain == [part.part for part in found if part.part != "Acceptance"]


@pytest.mark.parametrize("model", ["llama-3.1-8b", "qwen3-8b"])
@pytest.mark.parametrize("tp", [1, 2])
def test_grave_doubts_are_never_left_to_the_fold(model, tp):
    of = Scenario(gpu="l40s", model=model, drafter="eagle3", tp=tp)
    shorts = [part.short for part in basis(of)]
    assert not any(grave_doubts(of)) or any(shorts)
    assert not any(engine_on_other_gpus(of)) or "the engine's terms on other GPUs" in shorts


def test_a_context_beyond_the_model_stands_among_the_first_lines():
    of = Scenario(runtime="cuda-graph")
    within, beyond = (how_sure(of, "Speedup", "1 to 2", seq_len=length) for length in (1024, 4000))
    assert "Context" not in dict(within)
    assert (
        dict(beyond)["Context"]
        == f"length 4000 is beyond the {of.model.max_seq_len} positions of {of.model.name}"
    )
    assert [label for label, _ in beyond][:2] == ["Speedup", "Context"]
    assert len(beyond) <= MOST


@pytest.mark.parametrize(("acceptance", "how"), [(0.7, "given: 0.7"), ("2.2@3", "given: 2.2@3")])
def test_a_typed_rate_is_not_stated_to_be_measured(acceptance, how):
    of = Scenario(**_H100, acceptance=acceptance)
    told = {part.part: part.text for part in basis(of)}
    assert told["Acceptance"].startswith(how)
    assert "a given acceptance" in rests_on(of)
    known = Scenario(**_H100, acceptance="eagle3-llama-3.1-8b")
    assert {part.part: part.text for part in basis(known)}["Acceptance"].startswith("measured: eagle3")
