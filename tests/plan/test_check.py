"""A run that is the prediction is fine; a part that is moved by physics is named, with its milliseconds."""

from functools import cache
from typing import Any

import pytest

import medusa_sim as ms
from medusa_sim.errors import CoverageError, UsageError
from medusa_sim.plan.check import CheckedPart, _position
from medusa_sim.plan.measured_run import MeasuredRun
from medusa_sim.scenario.question import Measured

BATCH, SEQ, DRAFTS = 8, 600, 3


DEFAULT = {"gpu": "h100-sxm", "model": "llama-3.1-8b", "drafter": "eagle3"}


@cache
def _scenario(**more: Any) -> ms.Scenario:
    return ms.Scenario(**DEFAULT, acceptance="eagle3-llama-3.1-8b", **more)


@cache
def _prediction(scenario: ms.Scenario) -> tuple[float, float, list[float]]:
    """Milliseconds a token with drafts and without, accepted shares by position: the sweep's own."""
    frame = scenario.sweep(batch=BATCH, seq_len=SEQ, candidates=[1, DRAFTS + 1])
    plain, drafted = (float(frame[frame.candidates == n].iloc[0].tpot_us) / 1e3 for n in (1, DRAFTS + 1))
    return drafted, plain, scenario.profile.heads.conditional()[:DRAFTS, 0].cumprod().tolist()


def _predicted(**more: Any) -> dict[str, Any]:
    """A measurement that is the sweep's own prediction."""
    drafted, plain, shares = _prediction(_scenario(**more))
    return {"batch": BATCH, "seq_len": SEQ, "tpot_ms": drafted, "plain_tpot_ms": plain,
            "accepted_by_position": shares}  # fmt: skip


def _checked(**changes: Any) -> Any:
    """What is found where these differ from the prediction."""
    return _scenario().check(**_predicted() | changes)


@pytest.mark.parametrize("more", [{}, {"prompt_tokens": 500, "output_tokens": 200}], ids=["steps", "served"])
def test_the_sweep_itself_is_inside_and_every_part_as_predicted(more):
    found = _scenario(**more).check(**_predicted(**more))
    assert found.is_inside
    assert "Inside" in found.sentence
    for part in found.answer.parts:
        assert part.measured_us == pytest.approx(part.predicted_us, rel=1e-6)
        assert part.low_us < part.predicted_us < part.high_us
    assert found.answer.low_us < found.answer.predicted_us < found.answer.high_us


@pytest.mark.parametrize("speed", ["tokens_per_s", "itl_ms"])
def test_any_speed_of_the_prediction_is_inside(speed):
    given = _predicted()
    tpot_ms, tokens = given.pop("tpot_ms"), 1.0 + sum(given["accepted_by_position"])
    value = {"tokens_per_s": BATCH * 1e3 / tpot_ms, "itl_ms": tpot_ms * tokens}[speed]
    found = _scenario().check(**given, **{speed: value})
    assert found.answer.run.time_us == pytest.approx(1e3 * tpot_ms)
    assert found.is_inside


def _parts(found: Any) -> dict[str, float]:
    return dict(zip(found.frame["part"], found.frame["costs_us"], strict=True))


def test_acceptance_that_is_off_is_named_by_position_and_cost():
    given = _predicted()
    first, *later = shares = given["accepted_by_position"]
    tokens, fewer = 1.0 + sum(shares), 1.0 + 0.5 * sum(shares)
    slower_ms = given["tpot_ms"] * tokens / fewer  # the same round
    found = _checked(accepted_by_position=[share / 2.0 for share in shares], tpot_ms=slower_ms)
    assert found.off == ("acceptance",)
    assert found.answer.position == 0
    assert "position 0" in found.sentence
    assert "template" in found.sentence
    expected = 1e3 * slower_ms * (1 - fewer / tokens)
    assert _parts(found)["acceptance"] == pytest.approx(expected, rel=0.02)
    assert abs(_parts(found)["round"]) < 0.02 * _parts(found)["acceptance"]
    assert _checked(accepted_by_position=[first, *(share / 3.0 for share in later)]).answer.position == 1
    high = _checked(accepted_by_position=[0.98, 0.96, 0.94])
    assert high.off == ("round", "acceptance")  # at the same time per token: what is slow comes first
    assert "A part" in high.sentence
    for words in ("CUDA graph", "Acceptance is high", "; then the prompts"):  # a next step for each part
        assert words in high.sentence


def test_slow_rounds_and_slow_plain_steps_are_named():
    given = _predicted()
    tpot_ms, plain_ms = given["tpot_ms"], given["plain_tpot_ms"]
    found = _checked(tpot_ms=tpot_ms + 3.0 / (1.0 + sum(given["accepted_by_position"])))
    assert found.off == ("round",)
    assert "3.00 ms too slow" in found.sentence
    assert "CUDA graph" in found.sentence
    both = {"tpot_ms": 1.3 * tpot_ms, "plain_tpot_ms": 1.3 * plain_ms}
    found = _checked(**both)
    assert found.off == ("plain",)
    assert "clocks" in found.sentence
    assert _parts(found)["round"] == pytest.approx(0.0, abs=1.0)
    assert _checked(**both | {"plain_tpot_ms": None}).off == ("round",)
    found = _checked(plain_tpot_ms=plain_ms + 2.0)
    assert found.off == ("plain",)
    assert "2.00 ms too slow" in found.sentence
    assert "which the round does not show" in found.sentence
    assert found.answer.low_us < found.answer.run.time_us < found.answer.high_us


def test_the_parts_add_up_to_the_difference_and_plain_decoding_is_one():
    given = _predicted()
    slow = {"tpot_ms": 1.7 * given["tpot_ms"], "plain_tpot_ms": 1.2 * given["plain_tpot_ms"]}
    found = _checked(**slow, accepted_by_position=[0.5, 0.2, 0.1])
    total = found.answer.run.time_us - found.answer.predicted_us
    assert sum(_parts(found).values()) == pytest.approx(total)
    assert found.values["measured_us"] == found.answer.run.time_us
    plain = {"batch": BATCH, "seq_len": SEQ, "drafts": 0, "tpot_ms": given["plain_tpot_ms"]}
    assert _scenario().check(**plain).is_inside
    assert _scenario().check(**plain | {"tpot_ms": 2.0 * plain["tpot_ms"]}).off == ("plain",)


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
        _checked(**change)
    with pytest.raises(CoverageError, match="describes no chain"):
        _scenario().check(batch=1, drafts=40, tokens_per_step=2.0, tpot_ms=5.0)


def test_a_longer_chain_than_the_profile_describes_is_checked_by_what_was_measured():
    given = {"batch": BATCH, "seq_len": SEQ, "drafts": 5, "tpot_ms": 3.0}
    shares = [0.70, 0.48, 0.33, 0.21, 0.14]
    by_position = _scenario().check(accepted_by_position=shares, **given)
    by_length = _scenario().check(tokens_per_step=1.0 + sum(shares), **given)
    assert "describes fewer than 5 drafts" in by_position.sentence
    acceptance, round_ = by_position.answer.parts[:2]
    assert not acceptance.is_off
    assert acceptance.measured_us == pytest.approx(acceptance.predicted_us, rel=1e-4)
    assert by_length.answer.parts[1].predicted_us == pytest.approx(round_.predicted_us, rel=1e-3)
    own = ms.Scenario(**DEFAULT, acceptance=shares)
    assert own.check(accepted_by_position=shares, **given).answer.run.shorter_profile == ""


@pytest.mark.parametrize(
    ("given", "time_us", "tokens", "timed_by"),
    [
        ({"tpot_ms": 5.0, "drafts": 3, "tokens_per_step": 2.0}, 5000.0, 2.0, "tpot"),
        ({"tokens_per_s": 400.0, "drafts": 3, "tokens_per_step": 2.0}, 8 / 400 * 1e6, 2.0, "rate"),
        ({"itl_ms": 12.0, "drafts": 3, "tokens_per_step": 2.0}, 6000.0, 2.0, "gaps"),
        ({"tpot_ms": 5.0, "accepted_by_position": [0.5, 0.25]}, 5000.0, 1.75, "tpot"),
        ({"tpot_ms": 5.0, "drafts": 3, "tokens_per_step": 4.0}, 5000.0, 4.0, "tpot"),
        # the gap between two steps over the time of a token, from one token to the drafts and one
        ({"tpot_ms": 5.0, "itl_ms": 12.0, "drafts": 3}, 5000.0, 2.4, "tpot"),
        ({"tpot_ms": 5.0, "itl_ms": 4.0, "drafts": 3}, 5000.0, 1.0, "tpot"),
        ({"tpot_ms": 5.0, "itl_ms": 30.0, "drafts": 3}, 5000.0, 4.0, "tpot"),
        ({"tpot_ms": 5.0, "drafts": 0}, 5000.0, 1.0, "tpot"),
    ],
)
def test_what_was_measured_is_a_time_a_token_and_tokens_a_step(given, time_us, tokens, timed_by):
    run = MeasuredRun.from_measured(Measured(batch=8, **given), 700)
    assert (run.batch, run.seq_len, run.timed_by) == (8, 700, timed_by)
    assert (run.time_us, run.tokens_per_step) == (pytest.approx(time_us), pytest.approx(tokens))


def test_no_step_gives_more_than_its_drafts_and_one():
    with pytest.raises(UsageError, match="at most 4 are possible"):
        MeasuredRun.from_measured(Measured(batch=8, drafts=3, tokens_per_step=4.1, tpot_ms=5.0), 700)


def test_a_part_is_off_outside_its_band_by_what_is_worth_a_word():
    """Worth a word are 3 % of what was predicted: 97 to 103 of 100, or the band where that is wider."""

    def is_off(measured: float, low: float, high: float) -> bool:
        part = CheckedPart(
            name="round", measured_us=measured, predicted_us=100.0, low_us=low, high_us=high, costs_us=0.0
        )
        assert part.is_slow == (measured > 100.0)
        return part.is_off

    assert [is_off(us, 99.0, 101.0) for us in (96.9, 97.1, 100.0, 102.9, 103.1)] == [True, *[False] * 3, True]
    assert [is_off(us, 80.0, 130.0) for us in (79.9, 80.1, 129.9, 130.1)] == [True, False, False, True]


def test_what_a_slow_plain_step_explains_is_no_fault_of_the_round():
    """A plain step 20 % over its prediction makes the round 20 % longer; what is left is the round's own."""
    given = _predicted()
    slow = {"tpot_ms": 1.5 * given["tpot_ms"], "plain_tpot_ms": 1.2 * given["plain_tpot_ms"]}
    acceptance, round_, plain = _checked(**slow).answer.parts
    assert acceptance.costs_us == pytest.approx(0.0, abs=1e-6)
    assert plain.costs_us == pytest.approx(0.2 * round_.predicted_us)
    assert round_.costs_us == pytest.approx(0.3 * round_.predicted_us)
    assert round_.measured_us == pytest.approx(1.3 * round_.predicted_us)
    # no more than the round is slower, and nothing where it is quicker
    for share, explained in ((1.1, 0.1), (1.0, 0.0), (0.9, 0.0)):
        slow = {"tpot_ms": share * given["tpot_ms"], "plain_tpot_ms": 1.2 * given["plain_tpot_ms"]}
        _, round_, plain = _checked(**slow).answer.parts
        assert plain.costs_us == pytest.approx(explained * round_.predicted_us, abs=1e-3)
    quick = {"tpot_ms": 0.7 * given["tpot_ms"], "plain_tpot_ms": 0.9 * given["plain_tpot_ms"]}
    _, round_, plain = _checked(**quick).answer.parts
    assert plain.costs_us == pytest.approx(-0.1 * round_.predicted_us)


def test_the_whole_is_as_sure_as_acceptance_and_round_together():
    """In quadrature: fewer tokens and a longer round on one side, more and a shorter one on the other."""
    found = _checked().answer
    acceptance, round_ = found.parts[:2]
    low = (
        (acceptance.predicted_us - acceptance.low_us) ** 2 + (round_.predicted_us - round_.low_us) ** 2
    ) ** 0.5
    high = (
        (acceptance.high_us - acceptance.predicted_us) ** 2 + (round_.high_us - round_.predicted_us) ** 2
    ) ** 0.5
    assert found.low_us == pytest.approx(found.predicted_us - low)
    assert found.high_us == pytest.approx(found.predicted_us + high)
    assert found.tokens_low < found.tokens_per_step < found.tokens_high
    assert acceptance.low_us == pytest.approx(
        found.predicted_us * found.tokens_per_step / found.tokens_high, rel=0.02
    )
    assert acceptance.high_us == pytest.approx(
        found.predicted_us * found.tokens_per_step / found.tokens_low, rel=0.02
    )
    assert list(found.accepted) == pytest.approx(_predicted()["accepted_by_position"])


@pytest.mark.parametrize(
    ("predicted", "measured", "position"),
    [
        ((0.8, 0.4), (0.6, 0.45), 0),  # with its own first rate 0.9 tokens of 1.2, with its second 1.4
        ((0.8, 0.4), (0.7, 0.6), 1),  # 1.05 with the first, 0.8 + 0.8 x 6/7 = 1.49 with the second
        ((0.8, 0.4), (0.0, 0.0), 0),  # nothing after a draft that never is
        ((0.8, 0.4), (0.8,), None),
    ],
)
def test_the_position_that_moves_most_is_named(predicted, measured, position):
    assert _position(predicted, measured) == position


def test_a_plain_run_emits_a_token_a_step():
    _, plain_ms, _ = _prediction(_scenario())
    found = _scenario().check(batch=BATCH, seq_len=SEQ, drafts=0, tpot_ms=plain_ms).answer
    assert (found.tokens_per_step, found.tokens_low, found.tokens_high) == (1.0, 1.0, 1.0)
    assert (found.accepted, found.position) == ((), None)
