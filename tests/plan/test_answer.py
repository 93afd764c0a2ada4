"""What a sweep says: best counts, free budgets, cliffs, where speculation stops paying; whole requests."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from medusa_sim.errors import UsageError
from medusa_sim.grid.axes import Grid
from medusa_sim.grid.cells import price
from medusa_sim.grid.request_latency import RequestLatency, request_latency
from medusa_sim.plan.break_even import break_even_batches, find_break_even
from medusa_sim.plan.coarse_search import coarse_searches
from medusa_sim.plan.count_curves import cliffs, free_count, near_best, quicker_pairs
from medusa_sim.plan.recommend import recommend
from medusa_sim.plan.surprises import COSTLY, activated_experts
from medusa_sim.plan.sweep_answer import sweep_answer
from medusa_sim.plan.verdict import LOSES, PAYS, KnownOdds
from medusa_sim.report.recommend.sentences import sentence
from medusa_sim.report.words.break_even import break_even_text
from medusa_sim.scenario.question import Question
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.step.drafter.medusa import Medusa
from medusa_sim.step.expert_union import union
from medusa_sim.step.step import decode_step, prefill_step


@given(st.lists(st.floats(0.9, 1.4), min_size=1, max_size=40))
def test_the_free_count_is_the_end_of_the_first_free_run(overhead):
    """Of plain decoding and chains of 2, 4, 6 ... candidates."""
    counts = np.array([1, *range(2, 2 * len(overhead), 2)])
    free = list(itertools.takewhile(lambda value: value <= 1.1 * (1 + 1e-12), overhead))
    assert int(free_count(counts, np.asarray(overhead))) == counts[max(len(free), 1) - 1]


def test_free_budgets_cliffs_and_quicker_counts_by_hand():
    assert free_count(np.arange(1, 5), np.array([1.0, 1.05, 1.2, 1.08])) == 2
    assert free_count(np.arange(1, 4), np.array([1.0, 1.1, 1.1])) == 3
    stairs = np.repeat([1.0, 1.2, 1.5], 64)
    assert list(cliffs(stairs)) == [64, 128]
    for counts in range(1, 7):
        assert list(cliffs(np.ones(counts))) == []
    assert list(cliffs(np.array([1.0, 1.0, 2.0]))) == [2]
    assert list(cliffs(np.arange(10.0, 30.0))) == []  # every token costs the same: no cliff
    for rise, found in ((1.049, []), (1.052, [4])):  # from a twentieth on
        assert list(cliffs(np.repeat([1.0, rise], 4))) == found
    counts = np.array([64, 80, 96])
    # A6000, n 4096, k 14336: 208 us at m = 80, 175 us at 96 (DESIGN section 5.7)
    assert quicker_pairs(counts, np.array([170.0, 208.0, 175.0])) == [(80, 96)]
    assert quicker_pairs(counts, np.array([170.0, 176.0, 175.0])) == []
    counts = np.array([1, 2, 4, 8, 16, 32])
    speedup = np.array([1.0, 1.995, 1.5, 1.99, 2.0, 1.985])
    fits = np.ones(6, dtype=bool)
    assert near_best(counts, speedup, fits, 4) == (8, 32)
    assert near_best(counts, speedup, fits & (counts < 32), 4) == (8, 16)
    assert near_best(counts, speedup, fits, 0) == (1, 1)


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return Scenario(runtime="cuda-graph", latency="roofline")


def test_the_best_count_must_fit_in_memory(scenario):
    most = price(scenario, [1], [4000]).surface.max_batch[0]
    batches = [int(most.min()) - 1, int(most[1:].max())]
    long = sweep_answer(scenario, Grid.of(batches, [4000], [1, 64]))
    every = price(scenario, batches, [4000]).by_count
    for case in range(2):
        allowed = every.speedup[case, 0][every.fits[case, 0]].max()
        assert long.column("speedup")[case] == allowed
    assert not every.fits[1, 0].all()


def test_verification_alone_is_free_further(scenario):
    free = sweep_answer(scenario, Grid.of([1, 4], [1024], [1])).free
    assert (free.whole <= free.verification).all()
    # more sequences fill the memory time sooner
    assert free.verification[0] > free.verification[1]


def test_a_large_model_that_does_not_fit_pays_nowhere():
    large = Scenario(model="llama-2-70b", runtime="cuda-graph", latency="roofline")
    (found,) = break_even_batches(coarse_searches(large, large.options(), np.array([1024])))
    assert (found.direction, found.searched_to, found.spans) == ("does not fit", 0, ())


def test_it_never_pays_beyond_the_memory_or_the_positions_of_the_model(scenario):
    found = recommend(scenario, Question(batch_min=1, batch_max=1))
    assert found.break_even_context.searched_to == scenario.model.max_seq_len
    large = recommend(scenario, Question(batch_min=64, batch_max=64))
    context, batches = large.break_even_context.searched_to, large.break_even_batches[0].searched_to
    by_length = price(scenario, [64], [context, context + 1]).fits[0, :, 1:].any(axis=-1)
    by_batch = price(scenario, [batches, batches + 1], [1024]).fits[:, 0, 1:].any(axis=-1)
    assert by_length.tolist() == by_batch.tolist() == [True, False]


def test_an_answer_at_the_end_of_its_profile_or_of_the_room_says_so():
    short = Scenario(latency="roofline", drafter="eagle", acceptance="0.9,0.85,0.8")
    for scenario, candidates in ((short, 7), (short.but(max_drafts=2), 3)):
        row = recommend(scenario, Question(batch_max=1)).schedule[0]
        assert (row.candidates, row.best_ends_profile) == (candidates, candidates == 7)
    assert sweep_answer(short, Grid.of([1], [1024], [1, 4])).best_ends_profile
    assert not sweep_answer(short.but(max_drafts=2), Grid.of([1], [1024], [1, 3])).best_ends_profile
    scenario = Scenario(model="vicuna-13b", runtime="cuda-graph", latency="roofline")
    found = recommend(scenario, Question(batch_min=64, batch_max=64))
    assert not found.enable
    (row,) = found.where_it_fits
    assert row.batch_max < 64
    assert row.speedup > 1.03
    assert row.fits_memory
    one = scenario.but(drafter="eagle", acceptance="0.8", max_drafts=1)  # of which every count gains
    (row,) = recommend(one, Question(batch_min=64, batch_max=64)).where_it_fits
    assert (row.candidates, row.batch_max < 64) == (2, True)


SCENARIO = Scenario(latency="roofline")
SETTING = SCENARIO.setting
OPTION = SCENARIO.but(drafter="ngram", acceptance=0.7).options()[2]


def requested(option: object, candidates: int, batch: int, prompt: int, output: int) -> RequestLatency:
    sizes = {"batch": batch, "prompt_tokens": prompt, "output_tokens": output}
    return request_latency(SCENARIO, option, candidates, **sizes)


def test_without_speculation_it_is_prefill_and_decode_steps():
    r = requested(None, 1, 2, 500, 101)
    first = float(prefill_step(SETTING, 2, 500).time_us)
    steps = sum(float(decode_step(SETTING, 2, 500 + i).time_us) for i in range(1, 101))
    assert r.first_token_us == r.plain_first_token_us == first
    assert r.total_us == r.plain_total_us == pytest.approx(first + steps, rel=1e-3)
    assert r.request_speedup == 1.0


def test_speculation_divides_the_steps_and_delays_the_first_token():
    heads = SCENARIO.but(acceptance=0.6).options()[2]
    assert isinstance(heads.drafter, Medusa)
    r = requested(heads, 4, 1, 300, 200)
    assert r.tokens_per_step == pytest.approx(1 + 0.6 + 0.36 + 0.216)
    assert r.first_token_us > r.plain_first_token_us
    assert r.total_us < r.plain_total_us
    assert r.request_speedup < r.plain_per_token_us / r.per_token_us  # the prompt is not accelerated


def test_one_output_token_is_the_prefill_the_context_grows_and_nothing_is_no_request():
    r = requested(OPTION, 4, 1, 10, 1)
    assert r.total_us == r.first_token_us
    short, long = (requested(None, 1, 8, 500, output).plain_per_token_us for output in (100, 1500))
    assert long > short * 1.05
    for sizes in ((0, 1, 1), (1, 0, 1), (1, 1, 0)):
        with pytest.raises(UsageError, match="from 1"):
            requested(None, 1, *sizes)


def test_requests_are_shown_of_batches_that_fit():
    """At the largest batch that was asked for, which did not fit, a request had a time all the same."""
    scenario = Scenario(gpu="rtx-4090", model="llama-3.1-8b", drafter="eagle3", acceptance=0.7)
    asked = Question(batch_max=300, seq_len=(1100,), request=(1000, 200))
    found = recommend(scenario, asked)
    fits = found.cells.surface.batch[found.cells.fits[:, 0, 0]]
    assert [each.batch for each in found.request_latencies] == [1, int(fits.max())]
    assert not recommend(scenario, replace(asked, batch_min=290)).request_latencies


def test_no_crossing_speaks_of_what_was_not_searched():
    """At 64 requests it "loses from length 2330 on", of 2336 that fit, and the best at 32,768 was 1.09x."""
    for direction in ("loses from", "pays from"):
        values = np.array([16, 99, 100, 400])
        odds = np.where((values >= 100) == (direction == "pays from"), PAYS, LOSES)
        found = find_break_even(KnownOdds(values, odds), pytest.fail)  # nothing lies between 99 and 100
        assert (found.at, found.direction) == (100, direction)
        assert break_even_text(found, "length").endswith("from length 100 on (searched to 400)")


MOE = Scenario(
    gpu="h100-sxm", model="qwen3-30b-a3b", drafter="eagle3", acceptance=[0.7, 0.5], latency="roofline"
)
BATCHES = [1, 2, 4, 8, 16, 32, 64, 128, 256]


def test_the_range_is_where_a_draft_costs_and_wakes():
    cells = price(MOE, BATCHES, [1024])
    surface, found = cells.surface, activated_experts(cells)
    experts = surface.setting.model.experts
    assert found.first <= found.worst <= found.last < 256
    assert not found.capped
    assert found.plain == pytest.approx(float(union(experts.experts, experts.topk, found.worst, 1)))
    assert found.activated == pytest.approx(float(union(experts.experts, experts.topk, found.worst, 2)))
    assert found.plain < found.activated < found.experts == experts.experts
    assert found.cost >= COSTLY
    # what the experts cost is part of what verification costs
    overhead = np.ravel(surface.verify.time_us[..., 0]) / np.ravel(surface.decode.time_us) - 1.0
    assert found.cost <= overhead[BATCHES.index(found.worst)] + 1e-9


def test_a_range_is_named_and_its_end_only_where_the_search_found_it():
    found = activated_experts(price(MOE, [1, 2, 4], [1024]))
    assert (found.last, found.capped) == (4, True)
    assert "above" not in sentence(recommend(MOE, Question(batch_max=4))).split("activates more experts")[1]
    answer = recommend(MOE, Question(batch_max=128))
    found, told = activated_experts(answer.cells), sentence(answer)
    assert f"From {found.first} to {found.last} requests each draft activates more experts" in told
    assert f"of the {found.experts} experts of a layer" in told


def test_dense_models_wake_nothing_and_alike_tokens_fewer_experts():
    dense = MOE.but(model="llama-3.1-8b")
    assert activated_experts(price(dense, BATCHES, [1024])) is None
    assert "experts" not in sentence(recommend(dense, Question(batch_max=4)))
    few, many = (
        activated_experts(price(MOE.but(overlap=name), BATCHES, [1024])) for name in ("chain", "independent")
    )
    assert few.activated < many.activated or few.worst != many.worst
    assert few.cost < many.cost
