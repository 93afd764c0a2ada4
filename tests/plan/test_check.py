"""A run that is the prediction is fine; a part that is moved by physics is named, with its milliseconds."""

from functools import cache
from typing import Any

import pytest

import medusa_sim as ms
from medusa_sim.errors import CoverageError, UsageError

BATCH, SEQ, DRAFTS = 8, 600, 3


@cache
def _scenario(**more: Any) -> ms.Scenario:
    return ms.Scenario(
        gpu="h100-sxm", model="llama-3.1-8b", drafter="eagle3", acceptance="eagle3-llama-3.1-8b", **more
    )


def _predicted(scenario: ms.Scenario) -> dict[str, Any]:
    """A measurement that is the sweep's own prediction."""
    frame = scenario.sweep(batch=BATCH, seq_len=SEQ, candidates=[1, DRAFTS + 1])
    row = frame[frame.candidates == DRAFTS + 1].iloc[0]
    heads = scenario.profile.heads
    return {
        "batch": BATCH,
        "seq_len": SEQ,
        "tpot_ms": float(row.tpot_us) / 1e3,
        "plain_tpot_ms": float(frame[frame.candidates == 1].iloc[0].tpot_us) / 1e3,
        "accepted_by_position": heads.conditional()[:DRAFTS, 0].cumprod().tolist(),
    }


@pytest.mark.parametrize("more", [{}, {"prompt_tokens": 500, "output_tokens": 200}], ids=["steps", "served"])
def test_the_sweep_itself_is_inside_and_every_part_as_predicted(more):
    found = _scenario(**more).check(**_predicted(_scenario(**more)))
    assert found.is_inside
    assert "Inside" in found.sentence
    for part in found.check.parts:
        assert part.measured_us == pytest.approx(part.predicted_us, rel=1e-6)
        assert part.low_us < part.predicted_us < part.high_us
    assert found.check.low_us < found.check.predicted_us < found.check.high_us


@pytest.mark.parametrize("speed", ["tokens_per_s", "itl_ms"])
def test_any_speed_of_the_prediction_is_inside(speed):
    given = _predicted(_scenario())
    tpot_ms = given.pop("tpot_ms")
    tokens = 1.0 + sum(given["accepted_by_position"])
    given[speed] = {"tokens_per_s": BATCH * 1e3 / tpot_ms, "itl_ms": tpot_ms * tokens}[speed]
    assert _scenario().check(**given).check.run.time_us == pytest.approx(1e3 * tpot_ms)
    assert _scenario().check(**given).is_inside


def _parts(found: Any) -> dict[str, float]:
    return dict(zip(found.frame["part"], found.frame["costs_us"], strict=True))


def test_acceptance_that_is_off_is_named_by_position_and_cost():
    given = _predicted(_scenario())
    tokens = 1.0 + sum(given["accepted_by_position"])
    given["accepted_by_position"] = [share / 2.0 for share in given["accepted_by_position"]]
    fewer = 1.0 + sum(given["accepted_by_position"])
    given["tpot_ms"] *= tokens / fewer  # the same round
    found = _scenario().check(**given)
    assert found.off == ("acceptance",)
    assert found.check.position == 0
    assert "position 0" in found.sentence
    assert "template" in found.sentence
    assert _parts(found)["acceptance"] == pytest.approx(
        1e3 * given["tpot_ms"] * (1 - fewer / tokens), rel=0.02
    )
    assert abs(_parts(found)["round"]) < 0.02 * _parts(found)["acceptance"]
    given = _predicted(_scenario())
    first, *later = given["accepted_by_position"]
    low = _scenario().check(**given | {"accepted_by_position": [first, *(share / 3.0 for share in later)]})
    assert low.check.position == 1
    high = _scenario().check(**given | {"accepted_by_position": [0.98, 0.96, 0.94]})
    assert high.off == ("round", "acceptance")  # at the same time per token: what is slow comes first
    assert "CUDA graph" in high.sentence
    assert "acceptance is high" in high.sentence
    assert "; then the prompts" in high.sentence  # every part that is off has its next step
    given["accepted_by_position"] = [0.98, 0.96, 0.94]
    found = _scenario().check(**given)
    assert found.off
    assert found.sentence.startswith("A part")


def test_slow_rounds_and_slow_plain_steps_are_named():
    given = _predicted(_scenario())
    given["tpot_ms"] += 3.0 / (1.0 + sum(given["accepted_by_position"]))
    found = _scenario().check(**given)
    assert found.off == ("round",)
    assert "3.00 ms too slow" in found.sentence
    assert "CUDA graph" in found.sentence
    given = _predicted(_scenario())
    given["tpot_ms"] *= 1.3
    given["plain_tpot_ms"] *= 1.3
    found = _scenario().check(**given)
    assert found.off == ("plain",)
    assert "clocks" in found.sentence
    assert _parts(found)["round"] == pytest.approx(0.0, abs=1.0)
    without = _scenario().check(**{name: value for name, value in given.items() if name != "plain_tpot_ms"})
    assert without.off == ("round",)
    given = _predicted(_scenario())
    given["plain_tpot_ms"] += 2.0
    found = _scenario().check(**given)
    assert found.off == ("plain",)
    assert "2.00 ms too slow" in found.sentence
    assert found.check.low_us < found.check.run.time_us < found.check.high_us


def test_the_parts_add_up_to_the_difference_and_plain_decoding_is_one():
    given = _predicted(_scenario())
    given["tpot_ms"] *= 1.7
    given["plain_tpot_ms"] *= 1.2
    given["accepted_by_position"] = [0.5, 0.2, 0.1]
    found = _scenario().check(**given)
    total = found.check.run.time_us - found.check.predicted_us
    assert sum(_parts(found).values()) == pytest.approx(total)
    assert found.values["measured_us"] == found.check.run.time_us
    given = _predicted(_scenario())
    plain = {"batch": BATCH, "seq_len": SEQ, "drafts": 0, "tpot_ms": given["plain_tpot_ms"]}
    assert _scenario().check(**plain).is_inside
    slow = _scenario().check(**plain | {"tpot_ms": 2.0 * plain["tpot_ms"]})
    assert slow.off == ("plain",)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"batch": None}, "batch"), ({"tpot_ms": None}, "speed"), ({"tpot_ms": float("nan")}, "finite"),
        ({"tpot_ms": -1.0}, "above 0"), ({"accepted_by_position": [0.4, 0.6, 0.1]}, "never rise"),
        ({"accepted_by_position": None}, "drafts"),
        ({"accepted_by_position": None, "drafts": 3}, "tokens a step"),
        ({"tokens_per_step": 5.0}, "at most 4"), ({"drafts": 2}, "one share a draft"),
        ({"tpot": 3.0}, "tpot_ms"),
    ],
)  # fmt: skip
def test_what_is_missing_or_cannot_be_is_one_line(change, words):
    with pytest.raises(UsageError, match=words):
        _scenario().check(**_predicted(_scenario()) | change)


def test_more_drafts_than_the_acceptance_describes():
    with pytest.raises(CoverageError, match="describes no chain"):
        _scenario().check(batch=1, drafts=40, tokens_per_step=2.0, tpot_ms=5.0)


def test_a_longer_chain_than_the_profile_describes_is_checked_by_what_was_measured():
    given = {"batch": BATCH, "seq_len": SEQ, "drafts": 5, "tpot_ms": 3.0}
    shares = [0.70, 0.48, 0.33, 0.21, 0.14]
    by_position = _scenario().check(accepted_by_position=shares, **given)
    by_length = _scenario().check(tokens_per_step=1.0 + sum(shares), **given)
    assert "describes fewer than 5 drafts" in by_position.sentence
    acceptance, round_ = by_position.check.parts[:2]
    assert not acceptance.is_off
    assert acceptance.measured_us == pytest.approx(acceptance.predicted_us, rel=1e-4)
    assert by_length.check.parts[1].predicted_us == pytest.approx(round_.predicted_us, rel=1e-3)
    own = ms.Scenario(gpu="h100-sxm", model="llama-3.1-8b", drafter="eagle3", acceptance=shares)
    assert own.check(accepted_by_position=shares, **given).check.run.undescribed == ""
