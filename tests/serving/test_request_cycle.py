"""Clients that wait for each other's prompts, and how many prompts a step carries, by hand and as counted."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as with_fields
from scipy import stats
from scipy.optimize import brentq
from servers import CHAT, full, setting

from medusa_sim.engines.engine import Term
from medusa_sim.engines.runtime import load_runtime
from medusa_sim.serving import first_tokens, request_cycle
from medusa_sim.serving.chance import log_normal
from medusa_sim.serving.first_tokens import following_us, starting_us
from medusa_sim.serving.request_cycle import RequestCycle
from medusa_sim.serving.returning import _WAY_SPREAD, returning
from medusa_sim.serving.running import Queue, Requests, fitting_prompts, in_queue
from medusa_sim.serving.traffic import Traffic
from medusa_sim.step.prompt_kernels import linear_us, prompt_attention_us
from medusa_sim.step.prompts import prompt_terms


def test_a_load_test_sees_a_tenth_of_those_that_begin_at_once_and_what_is_later_in_it(monkeypatch):
    """(N19): nine tenths of 40 and 80 us, a tenth of 140, then 7 us and half a step of 20 or 30 us."""
    engine = SimpleNamespace(
        load_test_us=SimpleNamespace(value=7.0), load_test_steps=SimpleNamespace(value=0.5)
    )
    monkeypatch.setattr(first_tokens, "following_us", lambda law: np.array([40.0, 80.0]))
    monkeypatch.setattr(first_tokens, "starting_us", lambda law: np.full(2, 240.0))
    monkeypatch.setattr(first_tokens, "REQUESTS_A_CLIENT", 10)
    means = SimpleNamespace(step_us=np.array([20.0, 30.0]))
    for of, later in ((engine, (17.0, 22.0)), (None, (0.0, 0.0))):
        law = SimpleNamespace(setting=SimpleNamespace(runtime=SimpleNamespace(engine=of)))
        found = first_tokens.load_test_first_token_us(law, means)
        assert found == pytest.approx(np.array([60.0, 96.0]) + later)


@pytest.mark.parametrize("runtime", ["vllm-0.11", "sglang-0.5"])
def test_clients_that_begin_at_once_wait_for_half_of_all_prompts(runtime):
    """(N19), a tenth of which a load test has in its mean."""
    of, traffic = setting(runtime), Traffic(prompt_tokens=1024.0, output_tokens=256.0)
    seen = full(of, np.array([64, 128]), traffic)
    prompt = np.array([1024.0])
    share = prompt_terms(of).share
    each_us = share * float((linear_us(of, 8.0 * prompt) / 8.0 + prompt_attention_us(of, prompt, prompt))[0])
    assert float(np.diff(starting_us(seen._law))[0]) == pytest.approx(32.0 * each_us, rel=0.15)
    later_us = 0.0 if of.runtime.engine is None else of.runtime.engine.load_test_us.value
    tested_us = (starting_us(seen._law) + 9.0 * following_us(seen._law)) / 10.0
    assert seen.benchmark_first_token_us == pytest.approx(tested_us + later_us)
    # as many as a step has room for are read by the same step
    few, alone = full(of, 4, traffic), full(of, 1, traffic)
    three_us = starting_us(few._law) - starting_us(alone._law)
    assert float(three_us[0]) == pytest.approx(3.0 * each_us, rel=0.25)


def cell(requests: float, begin_chance: float, **more: float) -> RequestCycle:
    """One cell of 300 steps of decoding."""
    common = {
        "step_us": 1e4, "candidates": 1.0, "verified_tokens": 1.0, "request_attention_us": 10.0,
        "room_tokens": 8000.0, "full_tokens": 8000.0, "decode_steps": 300.0,
        "after_prefill_steps": 0.0, "idle_trip_us": 0.0, "queued_steps": 0.0, "prompt_tokens": 1000.0,
        "most_held_steps": 0.0,
    }  # fmt: skip
    values = common | {"requests": requests, "running": requests, "begin_chance": begin_chance} | more
    of_one_step = returning(
        **dict.fromkeys(("way_us", "ahead", "carrying_us", "ends"), np.zeros(1)), alone_us=np.ones(1),
        apart=False,
    )  # fmt: skip
    columns = {name: np.full(1, float(value)) for name, value in values.items()}
    return RequestCycle(returning=of_one_step, **columns)


@pytest.mark.parametrize(("requests", "chance", "most"), [(2, 0.003, 20), (64, 0.004, 20), (200, 0.002, 40)])
def test_prompts_that_wait_for_each_other_wait_as_long_as_counted(requests, chance, most):
    """Step by step: requests that do not wait begin with the same probability; the first opens a wait."""
    cycle = cell(requests, chance, most_held_steps=most, prompt_tokens=8e-6)
    draw, waited, opened, riding, carried = np.random.default_rng(5), [], -1, [], []
    for step in range(60_000):
        if riding and step - opened == most:
            waited += [step - begun for begun in riding]
            carried.append(len(riding))
            riding = []
        begun = draw.binomial(requests - len(riding), chance)
        if begun and not riding:
            opened = step
        riding += [step] * begun
    assert float(cycle.held_steps[0]) == pytest.approx(np.mean(waited), rel=0.05)
    assert 1.0 + float(cycle.joining[0]) == pytest.approx(np.mean(carried), rel=0.1)


def test_a_wait_for_others_ends_when_they_fill_a_step():
    cycle = cell(101, 0.01, most_held_steps=500, prompt_tokens=8000.0 / 9.0)
    assert float(cycle.first_held_steps[0]) == pytest.approx(8.0)  # one begins on each step
    assert float(cell(1, 0.01).held_steps[0]) == 0.0
    full_by_one = cell(101, 0.01, most_held_steps=500, prompt_tokens=8000.0)
    assert float(full_by_one.first_held_steps[0]) == 0.0


def test_prompts_that_wait_for_each_other_begin_as_often_as_others():
    runtime = load_runtime("tensorrt-llm-1.2")
    held = replace(runtime, engine=with_fields(runtime.engine, prompt_wait_steps=20))
    law = full(setting(runtime=held), 64, CHAT)._law
    unheld = full(setting(runtime=runtime), 64, CHAT)._law.cycle
    longer = 1.0 / law.cycle.begin_chance - 1.0 / unheld.begin_chance
    assert longer - (law.cycle.returning.away_steps - unheld.returning.away_steps) == pytest.approx(
        law.cycle.held_steps
    )
    begun = law.begun_prompts(np.zeros(1, dtype=np.int64))
    assert begun.weight.sum() == pytest.approx(1.0)
    assert begun.weight @ begun.number == pytest.approx(64.0 * float(law.cycle.begin_chance[0]), rel=1e-3)
    assert begun.number[begun.number > 0.0] @ begun.weight[begun.number > 0.0] > 1.5 * begun.weight[1:].sum()


def test_requests_of_a_load_test_begin_together_until_their_outputs_have_parted_them(monkeypatch):
    cycle = cell(32, 1.0 / 300.0, prompt_tokens=8e-6)

    def chances(output_cv: float, requests_a_client: int) -> np.ndarray:
        monkeypatch.setattr(first_tokens, "TESTED_CV", output_cv)
        monkeypatch.setattr(first_tokens, "REQUESTS_A_CLIENT", requests_a_client)
        return first_tokens.gathered_chances(cycle)

    np.testing.assert_allclose(chances(0.0, 10), 1.0, rtol=1e-6)
    early, late = chances(0.064, 3), chances(0.064, 11)
    assert early.mean() > late.mean() > 1.0 / 300.0
    # far apart, they begin alike at all times but for the first and the last of them
    assert np.median(chances(0.5, 101)) == pytest.approx(1.0 / 300.0, rel=0.1)


def queue(
    requests: float, prompt: float, budget: float, cv: float = 0.0, *, whole: bool = False, **more: float
) -> Queue:
    """Of one cell whose requests verify one token of each in 150 steps and are nowhere else."""
    values = {"requests": requests, "prompt_tokens": prompt, "candidates": 1.0, "verified_tokens": 1.0}
    values = {"decode_steps": 150.0, "away_steps": 0.0} | values | more
    cells = {name: np.full(1, float(value)) for name, value in values.items()}
    away_steps, asked = cells.pop("away_steps"), Requests(**cells)
    found = in_queue(asked, away_steps=away_steps, budget=np.full(1, budget), prompt_cv=cv, whole=whole)
    return Queue(*(each.item() for each in found))


@pytest.mark.parametrize(
    ("requests", "prompt", "cv", "budget"), [(8, 500, 0.0, 8000), (200, 8000, 0.5, 16000)]
)
def test_prompts_queue_for_room_as_in_an_mg1_queue(requests, prompt, cv, budget):
    """b = rate (others + reading + wait), wait that of Pollaczek and Khinchine in steps; by bisection.

    Of it what is read before on the same step, half of what begins there, is no wait. Those that queue are
    normal around what their number and the room allow, cut at 0: of few on average, 1 / (1 - rate s) of them.
    """

    def wait(rate):
        of_step = prompt / (budget - rate * 150.0)
        others, cycles = (requests - 1) / requests, (2 * 151.0 / of_step / (1 + cv**2)) ** 0.5
        slack = cycles * (1 - rate * of_step)
        place = brentq(lambda a: stats.norm.logpdf(a) - stats.norm.logcdf(a) - np.log(slack), -1e3, 30.0)
        whole = others * rate * of_step**2 * (1 + cv**2) / 2 * cycles * (place + slack)
        return max(whole - others * rate * of_step / 2, 0.0)

    def read(rate):
        lengths = prompt * log_normal(np.array([cv]))
        return 1.0 + float(np.floor(lengths / (budget - rate * 150.0)).mean())

    def missing(rate):
        return rate * (150.0 + read(rate) + wait(rate)) - requests

    rate = brentq(missing, 1e-9, 0.999 * budget / (prompt + 150.0), xtol=1e-14)
    found = queue(requests, prompt, budget, cv)
    assert found.running == pytest.approx((150.0 + read(rate)) * rate, rel=1e-6)
    assert found.queued_steps == pytest.approx(wait(rate), rel=1e-4, abs=1e-6)
    assert found.room_tokens == pytest.approx(budget - 150.0 * rate, rel=1e-6)
    assert found.read_steps == pytest.approx(read(rate))
    assert (found.queued_steps > 0.1) == (prompt == 8000)


@pytest.mark.parametrize(("cv", "room"), [(0.0, 2.5), (0.4, 1.6), (0.4, 7.3), (0.8, 2.0), (0.8, 30.0)])
def test_whole_prompts_leave_the_room_empty_that_the_next_does_not_fit(cv, room):
    """One after the other, by hand; one longer than a step is cut."""
    drawn = np.random.default_rng(2).lognormal(-np.log1p(cv**2) / 2, np.log1p(cv**2) ** 0.5, 6000)
    steps, left = 1, room
    for length in drawn.tolist():
        if length <= room and length > left:
            steps, left = steps + 1, room
        left -= length
        while left < 0.0:
            steps, left = steps + 1, left + room
    assert float(fitting_prompts(cv, np.array([room]))[0]) == pytest.approx(drawn.size / steps, rel=0.02)


def test_whole_prompts_begin_no_more_often_than_they_fit():
    """Two of 3,200 tokens in 8,192; cut ones fill it. Unequal ones wait behind those that hardly fit."""
    sizes = {"requests": 400.0, "prompt": 3200.0, "budget": 8192.0, "verified_tokens": 2.0}
    whole, cut = queue(**sizes, whole=True), queue(**sizes)
    assert whole.running / (150.0 + whole.read_steps) == pytest.approx(2.0, rel=1e-3)
    assert cut.running / (150.0 + cut.read_steps) == pytest.approx(8192.0 / 3500.0, rel=0.02)
    few = {"requests": 64.0, "prompt": 3300.0, "budget": 8192.0}
    assert queue(**few, whole=True).queued_steps == pytest.approx(0.0, abs=1e-6)
    assert queue(**few, cv=0.4, whole=True).queued_steps > 0.5


def meetings(
    way: float, alone: float, carrying: float, begins: float, ahead: int, *, apart: bool
) -> tuple[float, np.ndarray]:
    """Steps that a cohort is away, and shares of steps on which none, one, ... begin: one after the other."""
    draw = np.random.default_rng(3)
    steps = 6000
    ways, some = way * draw.uniform(1.0 - _WAY_SPREAD, 1.0 + _WAY_SPREAD, steps), draw.random((steps, 9))
    ends, on_the_way, away, row, rows = [0.0] * (ahead + 1), [], [], 0, []
    for step in range(steps):
        come = [cohort for cohort in on_the_way if cohort[0] <= ends[-1 - ahead]]
        on_the_way = [cohort for cohort in on_the_way if cohort[0] > ends[-1 - ahead]]
        away += [len(rows) - ended for _, ended in come]
        carries = bool((some[step, : len(come)] < begins).any())
        row += len(come) if carries or not apart else 0
        ends.append(ends[-1] + (carrying if carries else alone))
        if not (carries and apart):
            rows.append(row)
            row = 0
            on_the_way.append((ends[-1] + ways[step], len(rows)))
    return float(np.mean(away)), np.bincount(rows, minlength=9)[:9] / len(rows)


@pytest.mark.parametrize(
    ("way", "alone", "carrying", "begins", "ahead", "apart"),
    [
        (8.6, 7.5, 15.0, 0.92, 1, False),  # every second step carries the prompts of two
        (15.0, 6.0, 20.0, 0.3, 0, False),
        (25.0, 12.0, 13.0, 0.4, 1, False),
        (9.0, 10.0, 30.0, 0.5, 1, True),
        (15.0, 6.0, 20.0, 0.3, 0, True),
    ],
)
def test_cohorts_meet_as_often_as_counted(way, alone, carrying, begins, ahead, apart):
    away, counted = meetings(way, alone, carrying, begins, ahead, apart=apart)
    found = returning(
        **{
            name: np.full(1, float(value))
            for name, value in {
                "way_us": way, "alone_us": alone, "carrying_us": carrying, "ends": begins, "ahead": ahead,
            }.items()
        },
        apart=apart,
    )  # fmt: skip
    assert float(found.away_steps[0]) == pytest.approx(away, rel=0.03)
    chances = found.chances[0]
    assert chances @ np.arange(9) == pytest.approx(1.0, rel=0.02)
    if apart:  # as passes that some prompt has begun
        chances = chances * (1.0 - (1.0 - begins) ** (np.arange(9) / found.passes[0]))
        chances[0] = 1.0 - chances.sum()
    assert chances == pytest.approx(counted, abs=0.03)


def test_the_way_is_longer_by_what_is_sent_to_others_that_decode(monkeypatch):
    """Nine others that decode 8 of 10 steps, one of which is scheduled ahead: 50 + 9 x 0.8 x 5 us."""
    runtime = load_runtime("vllm")
    engine = runtime.engine.with_terms(
        {
            name: Term(value=value, source="a test")
            for name, value in {"server_us": 50.0, "server_us_per_request": 5.0, "steps_ahead": 1.0}.items()
        }
    )
    asked = SimpleNamespace(
        requests=np.array([1.0, 10.0]), decode_steps=np.full(2, 8.0), verified_tokens=np.ones(2)
    )
    monkeypatch.setattr(request_cycle, "returning", lambda **given: given)
    seen = request_cycle.steps_alone(np.full(2, 10.0))
    given = request_cycle._returning(setting(replace(runtime, engine=engine)), asked, seen)
    assert given["way_us"].tolist() == pytest.approx([0.0, 86.0])


def test_a_server_whose_steps_outlast_the_way_has_one_cohort_on_each():
    """Two steps later: the one that runs, and the one that is put together meanwhile."""
    times = {"way_us": 5400.0, "alone_us": 9000.0, "carrying_us": 20000.0, "ends": 0.9, "ahead": 1.0}
    found = returning(**{name: np.full(1, time) for name, time in times.items()}, apart=False)
    assert (found.away_steps.item(), found.away_on_plain.item(), found.chances[0, 1]) == (2.0, 1.0, 1.0)


@given(
    requests=st.integers(1, 4096), prompt=st.floats(1.0, 1e5), verified=st.floats(1.0, 64.0),
    steps=st.floats(0.0, 4000.0), away=st.floats(0.0, 4.0), budget=st.sampled_from([512.0, 2048.0, 16384.0]),
    cv=st.floats(0.0, 1.0),
)  # fmt: skip
def test_tokens_of_a_step_are_never_more_than_its_budget(requests, prompt, verified, steps, away, budget, cv):
    """However many requests, those that run fit with their prompts; the others queue, and none is lost."""
    cell_of = {"verified_tokens": verified, "decode_steps": steps, "away_steps": away}
    found = queue(requests, prompt, budget, cv, **cell_of)
    rate = found.running / (steps + away + found.read_steps)
    assert rate * (verified * steps + prompt) <= budget * (1.0 + 1e-9)
    assert found.room_tokens > 0.0
    assert 0.0 < found.running <= requests
    assert found.running + rate * found.queued_steps == pytest.approx(requests)
    more = queue(2 * requests, prompt, budget, cv, **cell_of)
    assert more.running / (steps + away + more.read_steps) >= rate * (1.0 - 1e-6)
