"""Chosen set-ups as fleets under load."""

from __future__ import annotations

import heapq

import numpy as np
import pytest

import medusa_sim as ms
from medusa_sim.load.arrivals import Drawn, Lengths
from medusa_sim.setups.loaded import MOST_FLEETS, second_level, under_load

SMALL = {
    "model": "llama-3.1-8b", "gpus": "h100-sxm", "counts": 1, "engines": "vllm",
    "drafters": ("none", "eagle3"), "batches": (8, 32), "weight_dtypes": "bf16",
}  # fmt: skip


def test_a_full_server_is_the_steady_one() -> None:
    """A closed loop at the row's batch: the step of the row, with prompts between steps (10 %)."""
    found = ms.compare(**SMALL)
    for row in found.comparison.best.to_dict("records"):
        loaded = under_load(found.comparison, row, requests=300)
        assert loaded.replicas == row["replicas"] == 1
        assert loaded.point.mean["tokens_per_s"] == pytest.approx(row["tokens_per_s_per_gpu"], rel=0.1)
        assert loaded.usd_per_million_tokens == pytest.approx(row["usd_per_million_tokens"], rel=0.1)


def test_copies_are_added_until_the_limits_hold() -> None:
    found = ms.compare(**SMALL, rate=30.0, tokens_per_s_per_user=100, ttft_ms=400)
    chosen, plain = found.under_load(requests=300)[:2]
    assert chosen.row["drafter"] == "eagle3"
    assert plain.row["drafter"] == "none"
    for loaded in (chosen, plain):
        assert loaded.keeps
        assert loaded.replicas >= loaded.row["replicas"]
        assert loaded.gpus == loaded.replicas


def _held(arrive: np.ndarray, leave: np.ndarray) -> np.ndarray:
    """How many are there at even times, the start and the end left out."""
    times = np.linspace(0.2 * arrive[-1], 0.9 * arrive[-1], 4000)
    return np.searchsorted(arrive, times, side="right") - np.searchsorted(np.sort(leave), times, side="right")


def _least_load(copies: int, stay: float, count: int) -> tuple[np.ndarray, np.ndarray]:
    """When requests reach and leave one copy behind a router that counts who is where; unit rate."""
    random = np.random.default_rng(5)
    there: list[list[float]] = [[] for _ in range(copies)]
    seen = []
    for now in np.cumsum(random.exponential(1.0, count)):
        for copy in there:
            while copy and copy[0] <= now:
                heapq.heappop(copy)
        place = min(range(copies), key=lambda i: (len(there[i]), random.random()))
        leave = now + stay * random.uniform(0.9, 1.1)
        heapq.heappush(there[place], leave)
        if place == 0:
            seen.append((now, leave))
    arrive, left = np.array(seen).T
    return arrive, left


@pytest.mark.parametrize("copies", [2, 4, 8])
def test_turns_fill_a_copy_as_evenly_as_the_least_load_does(copies: int) -> None:
    stay = 12.0 * copies  # a dozen requests a copy
    counted = _held(*_least_load(copies, stay, 20_000))
    drawn = Drawn(lengths=Lengths(), count=20_000 // copies, burstiness=float(copies))
    arrive = drawn.requests(1.0 / copies, 0, 10**6).arrival_s
    turns = _held(arrive, arrive + stay)
    for held in (counted, turns):
        assert held.mean() == pytest.approx(12.0, rel=0.05)
        assert held.var() / held.mean() == pytest.approx(1.0 / copies, rel=0.35)  # 1 where lots are drawn


def test_the_second_level_is_the_frontier_within_the_limits() -> None:
    answer = ms.compare(**SMALL, tokens_per_s_per_user=60).comparison
    rows = second_level(answer)
    assert rows[0]["chosen"]
    assert answer.key(rows[1]) == answer.key(answer.chosen_plain)
    assert len({answer.key(row) for row in rows}) == len(rows) <= MOST_FLEETS
    within = answer.frontier[answer.frontier.meets_limits]
    assert {answer.key(row) for row in within.to_dict("records")} <= {answer.key(row) for row in rows}
