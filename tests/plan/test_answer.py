"""What a sweep says: best counts, free budgets, cliffs, and where speculation stops paying."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from medusa_sim.plan.break_even import break_even_batches
from medusa_sim.plan.insights import answer, cheaper_pairs, cliffs, free_budget, near_best
from medusa_sim.plan.question import Question
from medusa_sim.plan.recommend import recommend
from medusa_sim.plan.scenario import Scenario
from medusa_sim.plan.surface import price
from medusa_sim.step.workload import Grid


@given(st.lists(st.floats(0.9, 1.4), min_size=1, max_size=40))
def test_free_budget_is_the_end_of_the_first_free_run(overhead):
    budget = int(free_budget(np.asarray(overhead)))
    expected = 0
    for value in overhead:
        if value > 1.1 * (1 + 1e-12):
            break
        expected += 1
    assert budget == expected


def test_free_budgets_cliffs_and_cheaper_counts_by_hand():
    assert free_budget(np.array([1.0, 1.05, 1.2, 1.08])) == 2
    assert free_budget(np.array([1.0, 1.1, 1.1])) == 3
    stairs = np.repeat([1.0, 1.2, 1.5], 64)
    assert list(cliffs(stairs)) == [64, 128]
    for counts in range(1, 7):
        assert list(cliffs(np.ones(counts))) == []
    assert list(cliffs(np.array([1.0, 1.0, 2.0]))) == [2]
    assert list(cliffs(np.arange(10.0, 30.0))) == []  # every token costs the same: no cliff
    counts = np.array([64, 80, 96])
    # A6000, n 4096, k 14336: 208 us at m = 80, 175 us at 96 (DESIGN section 5.7)
    assert cheaper_pairs(counts, np.array([170.0, 208.0, 175.0])) == [(80, 96)]
    assert cheaper_pairs(counts, np.array([170.0, 176.0, 175.0])) == []
    counts = np.array([1, 2, 4, 8, 16, 32])
    speedup = np.array([1.0, 1.995, 1.5, 1.99, 2.0, 1.985])
    fits = np.ones(6, dtype=bool)
    assert near_best(counts, speedup, fits, 4) == (8, 32)
    assert near_best(counts, speedup, fits & (counts < 32), 4) == (8, 16)
    assert near_best(counts, speedup, fits, 0) == (1, 1)


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return Scenario(runtime="cuda-graph", latency="roofline")


def test_the_best_of_a_sweep_is_the_best_of_every_count(scenario):
    grid = Grid.of([1, 16], [512, 2048], [1, 16, 64])
    found = answer(scenario, grid)
    best = found.best.columns
    for case, (batch, seq_len) in enumerate((b, s) for b in (1, 16) for s in (512, 2048)):
        assert (best["batch"][case], best["seq_len"][case]) == (batch, seq_len)
        row = recommend(scenario, Question(batch_min=batch, batch_max=batch, seq_len=(seq_len,))).schedule[0]
        assert best["candidates"][case] == row.best_candidates
        assert best["speedup"][case] == pytest.approx(row.best_speedup, rel=1e-12)
        assert tuple(found.best.near[case]) == row.near_best
        assert found.free.whole[case] == row.free_candidates
    assert set(found.best.of_grid) <= {1, 16, 64}
    assert (found.best.of_grid_speedup <= best["speedup"] + 1e-12).all()
    assert found.drafting_share > 0.0


def test_the_best_count_must_fit_in_memory(scenario):
    most = price(scenario, [1], [4000]).max_batch[0]
    batches = [int(most.min()) - 1, int(most[1:].max())]
    long = answer(scenario, Grid.of(batches, [4000], [1, 64]))
    every = price(scenario, batches, [4000]).by_count
    for case in range(2):
        allowed = every.speedup[case, 0][every.fits[case, 0]].max()
        assert long.best.columns["speedup"][case] == allowed
    assert not every.fits[1, 0].all()


def test_verification_alone_is_free_further(scenario):
    free = answer(scenario, Grid.of([1, 4], [1024], [1])).free
    assert (free.whole <= free.verification).all()
    # more sequences fill the memory time sooner
    assert free.verification[0] > free.verification[1]


def test_a_large_model_that_does_not_fit_pays_nowhere():
    large = Scenario(model="llama-2-70b", runtime="cuda-graph", latency="roofline")
    (found,) = break_even_batches(large, large.options(), np.array([1024]))
    assert (found.direction, found.searched_to, found.spans) == ("does not fit", 0, ())


def test_paying_stops_where_the_best_speedup_falls_to_one():
    weak = Scenario(runtime="cuda-graph", latency="roofline", acceptance=0.1, drafter="medusa")
    (found,) = break_even_batches(weak, weak.options(), np.array([16]))
    assert found.direction == "loses from"
    last = found.spans[0][1]
    assert found.at == last + 1
    best = price(weak, [last, last + 1], [16]).speedup[:, 0, 1:].max(axis=-1)
    assert best[0] > 1.0
    assert best[1] <= 1.0


def test_it_never_pays_beyond_the_memory_or_the_positions_of_the_model(scenario):
    found = recommend(scenario, Question(batch_min=1, batch_max=1))
    assert found.break_even_context.searched_to == scenario.model.max_seq_len
    large = recommend(scenario, Question(batch_min=64, batch_max=64))
    context = large.break_even_context.searched_to
    room = price(scenario, [64], [context, context + 1]).fits[0, :, 1:].any(axis=-1)
    assert room.tolist() == [True, False]
    batches = large.break_even_batches[0].searched_to
    assert price(scenario, [batches, batches + 1], [1024]).fits[:, 0, 1:].any(axis=-1).tolist() == [
        True,
        False,
    ]


def test_an_answer_at_the_end_of_its_profile_says_that_more_may_pay():
    short = Scenario(latency="roofline", drafter="eagle", acceptance="0.9,0.85,0.8")
    row = recommend(short, Question(batch_max=1)).schedule[0]
    assert row.candidates == 4
    assert row.ends_profile
    assert answer(short, Grid.of([1], [1024], [1, 4])).ends_profile
    limited = recommend(short.but(max_drafts=2), Question(batch_max=1)).schedule[0]
    assert limited.candidates == 3
    assert not limited.ends_profile


def test_what_fits_is_told_where_a_batch_leaves_no_room():
    scenario = Scenario(model="vicuna-13b", runtime="cuda-graph", latency="roofline")
    found = recommend(scenario, Question(batch_min=64, batch_max=64))
    assert not found.enable
    (row,) = found.where_it_fits
    assert row.batch_max < 64
    assert row.speedup > 1.03
    assert row.fits_memory
