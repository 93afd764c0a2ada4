"""One verdict a batch: on where its best speedup is above 1, off elsewhere, whoever asks and however.

The schedule, its rows at a batch, the same batch asked alone, `--by-count`, the headline's crossings and what
is written for an engine, over every runtime and drafter with acceptances that break even within the range.
benchmarks/every_setup.py asks every model about every drafter, runtime and number of GPUs; here each model is
asked about once, with drafters, runtimes and GPUs in turn.
"""

import itertools
import re
from collections.abc import Iterator
from dataclasses import replace

import every_setup
import numpy as np
import pytest
from common.answer_agrees import disagreements
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from runtimes import every_runtime

from medusa_sim.engines.runtime import load_runtime, runtime_names
from medusa_sim.errors import MedusaSimError, UsageError
from medusa_sim.models.named import load_model, model_names
from medusa_sim.plan.batch_ranges import BatchRange, merge_batches
from medusa_sim.plan.recommend import recommend
from medusa_sim.plan.recommendation import Recommendation
from medusa_sim.report.recommend.screen import facts
from medusa_sim.scenario.acceptance import constant_rate
from medusa_sim.scenario.defaults import SWITCHING_GAIN
from medusa_sim.scenario.question import Question
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.step.drafter import drafter_class, drafter_names

LAST, LENGTH = 48, 256
RATES = (0.15, 0.35, 0.6)
MODEL = replace(load_model("llama-3.1-8b"), mtp_layers=1)


def scenarios(runtime: str) -> Iterator[Scenario]:
    """Every third drafter of the runtime's, in turn, on a GPU that break-even comes early on."""
    terms, turn = load_runtime(runtime), runtime_names().index(runtime)
    held = [name for name in drafter_names() if terms.engine is None or name in terms.engine.drafters]
    for place, drafter in enumerate(held[turn % 3 :: 3]):
        yield Scenario(
            gpu="rtx-3090",
            model=MODEL,
            runtime=runtime,
            drafter=drafter,
            acceptance=constant_rate(RATES[(place + turn) % len(RATES)], 4),
            draft_model="llama-3.2-1b" if drafter_class(drafter).takes_draft_model else None,
            latency="roofline",
        )


def check(found: Recommendation) -> None:
    """Everybody agrees (`answer_agrees`), rows hold their batches, a batch alone is answered alike."""
    assert not list(disagreements(found))
    cells, question = found.cells, found.question
    surface = cells.surface
    chosen = np.concatenate([[r.configuration] * (r.last + 1 - r.first) for r in found.ranges[0]])
    speedup = cells.speedup[np.arange(chosen.size), 0, chosen]
    for row in found.schedule:
        inside = (surface.batch >= row.batch_min) & (surface.batch <= row.batch_max)
        assert {on == (row.candidates > 1) for on in chosen[inside] > 0} == {True}
        ends = (speedup[inside].min(), speedup[inside].max())
        assert (row.speedup_lowest, row.speedup_highest) == pytest.approx(ends, rel=1e-12)  # of other sums
        for batch in (row.batch_min, row.batch_max):
            one = found.scheduled_row_at(batch, question.seq_len[0])
            assert (one.candidates, one.drafts) == (row.candidates, row.drafts)
            assert row.interval_low <= one.speedup_low <= one.speedup <= one.speedup_high <= row.interval_high
    edge = next((row.batch_max for row in found.schedule), LAST)
    for batch in {edge, min(edge + 1, question.batch_max)}:
        one = recommend(found.scenario, replace(question, batch_min=batch, batch_max=batch))
        assert one.enable == (chosen[batch - question.batch_min] > 0), batch


@pytest.mark.parametrize("runtime", every_runtime("paper"))
def test_every_batch_has_one_verdict(runtime):
    for scenario in scenarios(runtime):
        check(recommend(scenario, Question(batch_max=LAST, seq_len=(LENGTH,), candidates_max=16)))


def test_batches_between_searched_ones_have_their_own_verdict_too():
    """Beyond 256 every 2 % is searched; a crossing between two such batches ends a row all the same."""
    scenario = Scenario(
        gpu="l40s", model="llama-3.2-1b", drafter="ngram", acceptance=0.6, runtime="cuda-graph",
        latency="roofline",
    )  # fmt: skip
    found = recommend(scenario, Question(batch_min=250, batch_max=600, seq_len=(64,), candidates_max=8))
    edges = [last for _, last in found.break_even_batches[0].spans if 256 < last < 600]
    assert edges
    for edge in edges:
        for batch in (edge, edge + 1):
            row = next(row for row in found.schedule if row.batch_min <= batch <= row.batch_max)
            assert (row.candidates > 1) == (batch == edge)


OF_ROWS = ("Why not more", "Decoding", "Acceptance ±10 %", "Cost", "Energy", "Quicker")
"""Facts that stand at a row of the schedule."""


@pytest.mark.parametrize("limit", [10.0, 20.0, 30.0])
def test_a_limit_of_latency_parts_the_schedule_and_never_contradicts_it(limit):
    scenario = Scenario(
        gpu="rtx-3090", model=MODEL, drafter="eagle3", acceptance=0.4, runtime="sglang", latency="roofline"
    )
    found = recommend(scenario, Question(batch_max=LAST, seq_len=(LENGTH,), max_latency_ms=limit))
    cells = found.cells
    in_time = (cells.steps.time_us[:, 0] / cells.tokens_per_step[0] <= 1000.0 * limit).any(axis=1)
    for row in found.schedule:
        assert set(in_time[row.batch_min - 1 : row.batch_max].tolist()) == {row.meets_latency}
    assert found.enable == any(row.candidates > 1 and row.meets_latency for row in found.schedule)
    kept = max((row.batch_max for row in found.schedule if row.meets_latency), default=0)
    told = " ".join(fact.text for fact in facts(found) if fact.label in OF_ROWS)
    assert all(int(batch) <= kept for batch in re.findall(r"batch (\d+)", told))


def gain_of(found: Recommendation, batch: int) -> dict[int, float]:
    """Candidates -> speedup at a batch, of chains that fit."""
    cells, at = found.cells, int(np.flatnonzero(found.cells.surface.batch == batch)[0])
    return dict(zip(cells.candidates[0, 0].tolist(), cells.speedup[at, 0].tolist(), strict=True))


@pytest.mark.parametrize("rate", [0.3, 0.7, 0.9, 0.97])
def test_why_not_more_never_argues_against_the_answer(rate):
    """24.1 % more tokens for a 6.7 % longer step was given as a reason not to draft more."""
    reasons = set()
    for gpu in ("rtx-3090", "h100-sxm"):
        scenario = Scenario(
            gpu=gpu, model=MODEL, drafter="eagle", latency="roofline", acceptance=constant_rate(rate, 6)
        )
        found = recommend(scenario, Question(batch_max=LAST, seq_len=(LENGTH,)))
        for row in found.schedule:
            if row.candidates == 1:
                assert row.held_by is None
                continue
            gains, own = gain_of(found, row.batch_max), row.candidates
            reasons.add(row.held_by)
            match row.held_by:
                case "cost":
                    assert row.next_count.tokens_gain <= row.next_count.step_cost
                case "shared row":
                    assert max(gain for count, gain in gains.items() if count > own) > gains[own]
                case "end of the acceptance":
                    assert own == max(gains)
            every = [gain_of(found, batch) for batch in range(row.batch_min, row.batch_max + 1)]
            ends = [max(one, key=one.__getitem__) == max(gains) for one in every]
            assert row.best_ends_profile == any(ends)
    assert reasons


RUNTIMES = ("vllm-0.33", "sglang-0.5", "cuda-graph", "tensorrt-llm-1.2")
DRAFTERS = ("eagle3", "ngram", "eagle", "draft-model", "medusa")
GROUPS = 9
AT_NIGHT = [pytest.param(group, marks=pytest.mark.nightly) for group in range(1, GROUPS)]


@pytest.mark.parametrize("group", [0, *AT_NIGHT])
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


DOORS = [
    every_setup.SetUp(model="llama-3.1-8b", drafter="eagle3", runtime="vllm-0.33", gpus=1, turn=3),
    every_setup.SetUp(
        model="llama-3.1-8b", drafter="eagle3", runtime="vllm-0.33", gpus=1, turn=0, request=(8000, 500)
    ),
    every_setup.SetUp(
        model="qwen3-32b", drafter="eagle3", runtime="sglang-0.5", gpus=4, turn=1, request=(500, 300)
    ),
    every_setup.SetUp(
        model="deepseek-r1", drafter="mtp", runtime="tensorrt-llm-1.2", gpus=8, turn=2, request=(100, 1000)
    ),
]


@pytest.mark.parametrize("asked", DOORS, ids=lambda asked: f"{asked.model} {asked.request}")
def test_recommend_sweep_compare_and_the_app_say_the_same(asked):
    """Of a length, and of requests without one."""
    outcome = every_setup.checked(asked)
    assert (outcome.refused, outcome.failures) == ("", ())


def test_every_door_is_asked(monkeypatch):
    """Each is set beside `recommend` with all numbers, and one of another size is told."""
    (line,) = every_setup.differences("sweep", {"tpot_us": 1.0, "watts": 3.0}, {"tpot_us": 1.001})
    assert line == "sweep says tpot_us 1.001, recommend 1"
    asked: dict[str, set[str]] = {}
    monkeypatch.setattr(
        every_setup, "differences", lambda door, ours, theirs: asked.update({door: {*ours} & {*theirs}}) or ()
    )
    assert not every_setup.checked(DOORS[1]).failures
    assert asked == {door: {*every_setup.NUMBERS} for door in ("sweep", "compare", "the app")}


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


def speedups(batches: int, configurations: int) -> st.SearchStrategy[np.ndarray]:
    values = arrays(np.float64, (batches, configurations), elements=st.floats(0.5, 2.0))
    return values.map(lambda array: np.hstack([np.ones((batches, 1)), array]))


def test_a_switch_is_made_from_the_tolerance_on():
    speedup = np.array([[1.0, 2.00, 1.95], [1.0, 1.90, 1.95], [1.0, 1.50, 1.53]])
    (only,) = merge_batches(speedup)
    assert (only.first, only.last, only.configuration) == (0, 2, 1)  # the best of the first stands
    assert len(merge_batches(speedup, switching_gain=0.02)) == 2
    assert [r.configuration for r in merge_batches(speedup, switching_gain=0.0)] == [1, 2]
    speedup = np.array([[1.0, 2.0, 1.94], [1.0, 1.94, 2.0]])  # 1.94 / 2 = 1 - 0.03
    assert len(merge_batches(speedup)) == 2
    assert len(merge_batches(speedup, switching_gain=0.0301)) == 1


def test_ranges_never_cross_break_even_nor_batches_told_apart():
    speedup = np.array([[1.0, 1.02], [1.0, 1.001], [1.0, 0.99], [1.0, 1.0], [1.0, 1.01]])
    ranges = merge_batches(speedup)
    assert ranges == (BatchRange(0, 1, 1), BatchRange(2, 3, 0), BatchRange(4, 4, 1))
    speedup = np.array([[1.0, 1.5]] * 4)
    assert [(r.first, r.last) for r in merge_batches(speedup, groups=np.array([0, 0, 1, 1]))] == [
        (0, 1),
        (2, 3),
    ]
    speedup = np.array([[1.0, 2.0, 1.5], [1.0, 2.0, 1.5]])
    allowed = np.array([[True, False, True], [False, False, False]])
    assert [r.configuration for r in merge_batches(speedup, allowed)] == [2, 0]


def test_a_range_that_pays_takes_no_configuration_that_loses_somewhere():
    speedup = np.array(
        [[1.0, 1.02, 1.01], [1.0, 0.995, 1.005]]
    )  # the first is within 3 % of the best at both
    assert merge_batches(speedup) == (BatchRange(0, 0, 1), BatchRange(1, 1, 2))
    speedup = np.array([[1.0, 1.02, 0.995], [1.0, 0.995, 1.005]])
    assert [r.configuration for r in merge_batches(speedup)] == [1, 2]


@given(speedups(6, 3), st.integers(0, 5), st.integers(0, 5))
def test_a_batch_has_one_verdict_in_every_range_that_it_is_asked_in(speedup, one, other):
    first, last = sorted((one, other))
    for asked in ((first, last), (0, 5)):
        for found in merge_batches(speedup[asked[0] : asked[1] + 1]):
            for batch in range(asked[0] + found.first, asked[0] + found.last + 1):
                assert (found.configuration > 0) == (speedup[batch].max() > 1.0)
                assert speedup[batch, found.configuration] > 1.0 or found.configuration == 0


def worst_loss(speedup: np.ndarray, ranges: tuple[BatchRange, ...]) -> float:
    """Largest share of its own best speedup that any batch gives up by sharing a configuration."""
    best = np.maximum(speedup.max(axis=1), speedup[:, 0])
    chosen = np.concatenate([speedup[r.first : r.last + 1, r.configuration] for r in ranges])
    return float(np.max(1.0 - chosen / best))


@given(speedups(8, 4))
def test_no_batch_loses_the_tolerance_and_every_batch_is_covered(speedup):
    ranges = merge_batches(speedup)
    assert [r.first for r in ranges] == [0, *(r.last + 1 for r in ranges[:-1])]
    assert ranges[-1].last == speedup.shape[0] - 1
    assert worst_loss(speedup, ranges) < SWITCHING_GAIN


@given(speedups(6, 3))
def test_a_range_begins_with_the_best_of_its_first_batch_and_ends_where_that_does_not_stand(speedup):
    ranges = merge_batches(speedup)
    for one, following in itertools.pairwise((*ranges, None)):
        own = one.configuration
        assert speedup[one.first, own] == max(1.0, speedup[one.first, 1:].max())
        if following is None:
            continue
        behind = speedup[following.first : following.last + 1]
        best, pays = behind.max(axis=1), behind.max(axis=1) > 1.0
        lost = 1.0 - behind[:, own] / best
        ends = (lost > SWITCHING_GAIN - 1e-9) | (pays != (own > 0)) | (pays & (behind[:, own] <= 1.0))
        assert ends.any()


@given(speedups(8, 3))
def test_a_switch_comes_as_early_as_nothing_is_lost_by_it(speedup):
    for before, after in itertools.pairwise(merge_batches(speedup)):
        if not before.configuration or not after.configuration:
            continue  # where speculation begins and ends is not a question of switches
        for place in range(before.first + 1, before.last + 1):
            others = np.delete(speedup[place], after.configuration)
            is_best = speedup[place, after.configuration] > others.max() + 1e-9
            later = speedup[place : before.last + 1]
            assert not is_best or (later[:, after.configuration] < later[:, before.configuration]).any()


def test_a_row_hands_over_before_it_has_lost_a_tolerance():
    """The second is faster from the third batch on, by 3 % from the fifth: the switch comes at the third."""
    speedup = np.array(
        [[1.0, 2.0, 1.7], [1.0, 1.9, 1.8], [1.0, 1.8, 1.81], [1.0, 1.7, 1.73], [1.0, 1.6, 1.7]]
    )
    assert merge_batches(speedup) == (BatchRange(0, 1, 1), BatchRange(2, 4, 2))
    dipping = speedup + np.array([[0.0, 0.0, 0.0]] * 3 + [[0.0, 0.0, -0.04], [0.0, 0.0, 0.0]])
    assert merge_batches(dipping) == (BatchRange(0, 3, 1), BatchRange(4, 4, 2))
    third_is_best = np.column_stack((speedup, [1.0, 1.0, 1.82, 1.0, 1.0]))
    assert merge_batches(third_is_best) == (BatchRange(0, 2, 1), BatchRange(3, 4, 2))


def test_a_count_is_changed_only_where_the_gain_is_larger_than_the_doubt():
    speedup = np.array([[1.0, 1.50, 1.45], [1.0, 1.40, 1.48], [1.0, 1.20, 1.38]])
    halves = np.array([[0.0, 0.06, 0.09]] * 3)  # doubt of the two: 0.067
    assert [r.configuration for r in merge_batches(speedup)] == [1, 2]
    assert merge_batches(speedup[:2], halves=halves[:2]) == (BatchRange(0, 1, 1),)
    assert merge_batches(speedup, halves=halves) == (BatchRange(0, 0, 1), BatchRange(1, 2, 2))
    same = np.array([[0.0, 0.06, 0.06]] * 3)  # as uncertain and of the same kind: nothing tells them apart
    assert merge_batches(speedup, halves=same) == merge_batches(speedup)


@pytest.mark.parametrize("gain", [-0.1, 1.0, float("nan")])
def test_a_senseless_gain_is_refused(gain):
    with pytest.raises(UsageError, match="0 to below 1"):
        merge_batches(np.ones((1, 2)), switching_gain=gain)
