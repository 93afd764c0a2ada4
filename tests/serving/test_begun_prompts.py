"""How many prompts begin on a step, by hand."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import stats

from medusa_sim.serving.begun_prompts import begun_prompts


def cohorts(chances: list[list[float]], begin: list[float], passes: list[float]) -> dict[str, Any]:
    return {
        "cohort_chances": np.array(chances), "begin_chances": np.array([begin] * len(chances)),
        "returning": SimpleNamespace(passes=np.array([passes] * len(chances))),
    }  # fmt: skip


def a_cycle(running: float, begin: float, *, held: int = 0, joining: float = 0.0, chance: float = 0.0) -> Any:
    return SimpleNamespace(
        running=np.array([99.0, running]), begin_chance=np.array([0.9, begin]),
        joining=np.array([0.0, joining]), joining_chance=np.array([0.0, chance]),
        most_held_steps=np.array([held]), **cohorts([[0.0, 1.0]] * 2, [0.0, begin], [1.0, 1.0]),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("running", "gpus", "chances"),
    [
        (8.0, 1, {k: math.comb(8, k) * 0.1**k * 0.9 ** (8 - k) for k in range(8)}),  # of all eight too rare
        (8.0, 4, {0: 0.81, 4: 0.18, 8: 0.01}),  # requests of four GPUs begin together: two groups
        (1.0, 4, {0: 0.9, 1: 0.1}),
    ],
)  # fmt: skip
def test_prompts_begin_on_every_gpu_at_once(running, gpus, chances):
    hits = begun_prompts(a_cycle(running, 0.1), np.array([1]), gpus)
    found = {
        round(number, 9): weight
        for number, weight in zip(hits.number.tolist(), hits.weight.tolist(), strict=True)
    }
    assert found == pytest.approx(chances)
    assert set(hits.place.tolist()) == {0}


def test_cohorts_that_meet_begin_together_or_on_passes_in_a_row():
    """Of twenty: two cohorts on half of the steps; or these in two passes, each of which has some."""
    cycle = a_cycle(20.0, 0.1)
    vars(cycle).update(cohorts([[0.0, 1.0, 0.0], [0.5, 0.0, 0.5]], [0.0, 0.1, 0.2], [1.0, 1.0, 1.0]))
    hits = begun_prompts(cycle, np.array([1]))
    assert hits.number @ hits.weight == pytest.approx(2.0)
    assert hits.weight[hits.number == 0.0].sum() == pytest.approx(0.5 + 0.5 * 0.8**20, rel=1e-3)
    vars(cycle).update(cohorts([[0.75, 0.0, 0.25]] * 2, [0.0, 0.1, 0.4], [1.0, 1.0, 2.0]))
    hits = begun_prompts(cycle, np.array([1]))
    some = hits.number > 0.0
    assert hits.number @ hits.weight == pytest.approx(2.0)
    one = stats.binom(20, 0.2)
    chance, square = one.sf(0), one.var() + one.mean() ** 2
    spread = 2.0 * (square / chance - (one.mean() / chance) ** 2)  # of two passes, each by itself
    found = hits.weight[some] / hits.weight[some].sum()
    assert found @ hits.number[some] ** 2 - (found @ hits.number[some]) ** 2 == pytest.approx(
        spread, rel=0.02
    )
    assert set(hits.passes[some].tolist()) == {2.0}


def test_the_first_prompt_that_is_held_takes_along_those_that_join_it():
    """Nine requests begin 0.9 prompts a step: three at once, with two of eight that join, in 0.3 of all."""
    hits = begun_prompts(a_cycle(9.0, 0.1, held=5, joining=2.0, chance=0.25), np.array([1]), 1)
    assert hits.weight.sum() == pytest.approx(1.0)
    assert float((hits.number * hits.weight).sum()) == pytest.approx(9.0 * 0.1)
    by_number = {k: hits.weight[np.isclose(hits.number, k)].sum() for k in (0, 1, 2)}
    assert by_number == pytest.approx({0: 0.7, 1: 0.3 * 0.75**8, 2: 0.3 * 8 * 0.25 * 0.75**7})
    every = begun_prompts(a_cycle(9.0, 0.9, held=5, joining=2.0, chance=0.25), np.array([1]), 1)
    assert every.weight[np.isclose(every.number, 0)].sum() == pytest.approx(0.0)  # 8.1 / 3: in all
    alone = begun_prompts(a_cycle(1.0, 0.1, held=5), np.array([1]), 1)
    assert float((alone.number * alone.weight).sum()) == pytest.approx(0.1)
