"""Set-ups under load: copies, what a router sends each, which of a frontier are tried."""

import numpy as np
import pytest

import medusa_sim as ms
from medusa_sim.errors import UsageError
from medusa_sim.load.arguments import LoadArguments
from medusa_sim.load.sources import Drawn
from medusa_sim.setups.loaded import MOST_FLEETS, ROUTERS, Routed, Router, second_level, under_load

SMALL = {
    "model": "llama-3.1-8b", "gpus": "h100-sxm", "counts": 1, "engines": "vllm",
    "drafters": ("none", "eagle3"), "batches": (8, 32), "weight_dtypes": "bf16",
}  # fmt: skip


def test_a_full_server_is_the_steady_one():
    """A closed loop at the row's batch: the step of the row, with prompts between steps (10 %)."""
    found = ms.compare(**SMALL)
    for row in found.answer.best.to_dict("records"):
        loaded = under_load(found.answer, row, requests=300)
        assert loaded.replicas == row["replicas"] == 1
        assert loaded.point.mean["tokens_per_s"] == pytest.approx(row["tokens_per_s_per_gpu"], rel=0.1)
        assert loaded.usd_per_million_tokens == pytest.approx(row["usd_per_million_tokens"], rel=0.1)


def test_copies_are_added_until_the_limits_hold():
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


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize("copies", [2, 4, 8])
def test_a_router_sends_each_request_once_and_fills_copies_evenly(copies, router):
    stay = 12.0 * copies  # a dozen requests a copy, arriving at one a second in all
    stream = Drawn(LoadArguments(length_cv=0.0, requests=20_000))
    routed = Routed(stream=stream, copies=copies, router=router, first_s=stay, token_s=0.0)
    shares = [routed.requests(1.0 / copies, copy, 10**6) for copy in range(copies)]
    whole = stream.requests(1.0, 0, 10**6)
    sent = np.sort(np.concatenate([each.arrival_s for each in shares]))
    assert np.array_equal(sent, whole.arrival_s)
    assert sum(each.warm for each in shares) == whole.warm
    for each in shares:
        held = _held(each.arrival_s, each.arrival_s + stay)
        assert held.mean() == pytest.approx(12.0, rel=0.05)
        assert held.var() / held.mean() == pytest.approx(1.0 / copies, rel=0.4)  # 1 where lots are drawn


def test_the_least_load_evens_out_unequal_lengths_where_turns_do_not():
    def spread(router: Router) -> float:
        stream = Drawn(LoadArguments(length_cv=1.5, requests=20_000))
        routed = Routed(stream=stream, copies=4, router=router, first_s=0.0, token_s=0.2)
        share = routed.requests(0.25, 0, 10**6)
        held = _held(share.arrival_s, share.arrival_s + 0.2 * share.output_tokens)
        return float(held.var() / held.mean())

    assert spread("least-load") < 0.7 * spread("round-robin")


def test_another_router_is_one_error():
    answer = ms.compare(**SMALL, rate=30.0).answer
    with pytest.raises(UsageError, match="least-load"):
        under_load(answer, answer.chosen, router="lots")


def test_the_second_level_is_the_frontier_within_the_limits():
    answer = ms.compare(**SMALL, tokens_per_s_per_user=60).answer
    rows = second_level(answer)
    assert rows[0]["chosen"]
    assert answer.key(rows[1]) == answer.key(answer.chosen_plain)
    assert len({answer.key(row) for row in rows}) == len(rows) <= MOST_FLEETS
    within = answer.frontier[answer.frontier.meets_limits]
    assert {answer.key(row) for row in within.to_dict("records")} <= {answer.key(row) for row in rows}
