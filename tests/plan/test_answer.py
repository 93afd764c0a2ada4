"""What a sweep says: best counts, free budgets, cliffs, and where speculation stops paying."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from medusa_sim.plan.insights import (
    SEARCHED,
    answer,
    best_counts,
    cheaper_pairs,
    cliffs,
    fine_search,
    free_budget,
    paying_batches,
)
from medusa_sim.plan.scenario import sweep_settings
from medusa_sim.plan.sweep import SweepTable, sweep
from medusa_sim.step.grid import Grid


@given(st.lists(st.floats(0.9, 1.4), min_size=1, max_size=40))
def test_free_budget_is_the_end_of_the_first_free_run(overhead: list[float]) -> None:
    budget = int(free_budget(np.asarray(overhead)))
    expected = 0
    for value in overhead:
        if value > 1.1 * (1 + 1e-12):
            break
        expected += 1
    assert budget == expected


def test_a_later_free_count_does_not_count() -> None:
    assert free_budget(np.array([1.0, 1.05, 1.2, 1.08])) == 2
    assert free_budget(np.array([1.0, 1.1, 1.1])) == 3


def test_cliffs_are_steps_and_not_slopes() -> None:
    stairs = np.repeat([1.0, 1.2, 1.5], 64)
    assert list(cliffs(stairs)) == [64, 128]
    assert list(cliffs(np.arange(10.0, 30.0))) == []  # every token costs the same: no cliff


def test_a_larger_count_that_costs_less_is_named() -> None:
    counts = np.array([64, 80, 96])
    # A6000, n 4096, k 14336: 208 us at m = 80, 175 us at 96 (DESIGN section 5.7)
    assert cheaper_pairs(counts, np.array([170.0, 208.0, 175.0])) == [(80, 96)]
    assert cheaper_pairs(counts, np.array([170.0, 176.0, 175.0])) == []


def test_the_best_count_must_fit_in_memory() -> None:
    table = SweepTable(
        text={},
        numbers={
            "batch": np.array([1, 1, 1]),
            "seq_len": np.array([8, 8, 8]),
            "candidates": np.array([1, 8, 16]),
            "speedup": np.array([1.0, 2.0, 3.0]),
            "tokens_per_s": np.array([1.0, 2.0, 3.0]),
            "decode_step_us": np.array([1e6, 1e6, 1e6]),
            "fits_memory": np.array([True, True, False]),
        },
        codes={"bound": np.array([0, 1, 2], dtype=np.int8)},
    )
    best = best_counts(table, 3)
    assert best.columns["candidates"].tolist() == [8]
    assert best.bound.tolist() == [1]
    assert best.plain_tokens_per_s.tolist() == [1.0]


@pytest.fixture(scope="module")
def setting():  # the sweep setting of the default command, at the roofline
    return sweep_settings(latency="roofline")[0]


def test_the_answer_agrees_with_the_rows(setting) -> None:
    grid = Grid.of([1, 16], [512, 2048], [1, 16, 64])
    found = answer(setting, grid)
    rows = next(sweep([setting], grid)).pandas()
    by_case = rows.loc[rows.groupby(["batch", "seq_len"])["speedup"].idxmax()]
    assert found.best.columns["candidates"].tolist() == by_case["candidates"].tolist()
    assert found.best.columns["speedup"].tolist() == by_case["speedup"].tolist()
    assert (found.fine.speedup >= found.best.columns["speedup"] - 1e-12).all()
    assert found.drafting_share > 0.0


def test_the_fine_search_finds_the_free_budget_of_verification(setting) -> None:
    batch, seq_len = np.array([1, 4]), np.array([1024])
    fine = fine_search(setting, batch, seq_len)
    assert (fine.free <= fine.free_verification).all()
    # more sequences fill the memory time sooner
    assert fine.free_verification[0] > fine.free_verification[1]
    assert (fine.count <= SEARCHED).all()


def test_a_large_model_that_does_not_fit_pays_nowhere() -> None:
    large = sweep_settings(models=("llama-2-70b",), latency="roofline")[0]
    paying = paying_batches(large, np.array([1024]))
    assert paying.searched.tolist() == [0]
    assert paying.last.tolist() == [0]


def test_paying_stops_where_the_best_speedup_falls_to_one(setting) -> None:
    short = np.array([16])
    paying = paying_batches(setting, short)
    last = int(paying.last[0])
    assert 0 < last <= paying.searched[0]
    if last < paying.searched[0]:
        gains = [fine_search(setting, np.array([b]), short).speedup[0] for b in (last, last + 8)]
        assert gains[0] > 1.0
        assert gains[1] <= 1.0 + 1e-9
