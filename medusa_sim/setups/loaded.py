"""The second level: chosen set-ups as fleets under load, with arrivals, queues and prompts between the steps.

One stream of Poisson arrivals goes through a router to all copies (`Routed`), up to MOST_ROUTED of them;
MOST_SIMULATED of these are simulated, each with the requests that it was sent, and stand for all.
Copies are added until the share of the requests that must keep the limits does.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, Literal, get_args

import numpy as np

from medusa_sim.arrays import IntArray
from medusa_sim.errors import UsageError, unknown_name
from medusa_sim.grid.costs import usd_per_million_tokens
from medusa_sim.load.load_test import LoadTest, load_test
from medusa_sim.load.point import LoadPoint
from medusa_sim.load.requests import Requests
from medusa_sim.load.sources import Drawn
from medusa_sim.scenario.defaults import LOAD_SHARE
from medusa_sim.setups.comparison import Comparison
from medusa_sim.setups.setup import NO_DRAFTER
from medusa_sim.units import KILO, US_PER_MS

REQUESTS = 500
"""Requests of a run of one copy."""
MOST_FLEETS = 6
"""Set-ups that are simulated at most."""
MOST_ROUTED, MOST_SIMULATED = 16, 4
"""Copies that share a stream of requests, and the ones that are simulated."""
_TRIES = (1.0, 1.1, 1.25, 1.5, 2.0, 3.0)
"""Copies tried, over the copies of the steady server."""
Router = Literal["least-load", "round-robin"]
ROUTERS: tuple[Router, ...] = get_args(Router)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A set-up under load.

    share: of the requests that keep every limit. usd_per_million_tokens: of all copies.
    """

    row: Mapping[str, Any]
    replicas: int
    gpus: int
    share: float
    usd_per_million_tokens: float
    point: LoadPoint

    @property
    def keeps(self) -> bool:
        """Whether enough requests keep the limits."""
        return self.share >= LOAD_SHARE


def second_level(answer: Comparison) -> list[Mapping[str, Any]]:
    """Rows worth simulating: the chosen, the best without speculation, and the frontier within the limits.

    One row a set-up, the best first; at most MOST_FLEETS.
    """
    within = answer.frontier[answer.frontier.meets_limits]
    within = within.sort_values(answer.column, ascending=answer.less_is_better)
    rows: list[Any] = [answer.chosen, answer.chosen_plain, *within.to_dict("records")]
    best: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    for row in rows:
        if row is not None:
            best.setdefault(answer.key(row), row)
    return list(best.values())[:MOST_FLEETS]


def under_load(
    answer: Comparison, row: Mapping[str, Any], *, requests: int = REQUESTS, router: Router = "least-load"
) -> Loaded:
    """A row of a comparison simulated: the fewest copies tried that keep the limits, else the most tried.

    requests: of each copy that is simulated. Users hold their copies by closed loops; without a rate or a
    number of users one copy is held so at the row's batch. Raises UsageError for an unknown router.
    """
    if router not in ROUTERS:
        raise UsageError(unknown_name("router", router, ROUTERS))
    asked, scenario = answer.question, answer.scenario(row)
    drafts = NO_DRAFTER if row["drafter"] == NO_DRAFTER else str(row["drafts"])
    limit_us = asked.slowest_tpot_us
    loaded: Loaded | None = None
    for copies in dict.fromkeys(ceil(share * int(row["replicas"])) for share in _TRIES):
        users = None if asked.rate is not None else ceil((asked.users or int(row["batch"])) / copies)
        test = load_test(
            scenario.but(prompt_tokens=None, output_tokens=None),
            policies=[drafts],
            users=users,
            requests=requests,
            seeds=1,
            prompt_tokens=asked.prompt_tokens,
            output_tokens=asked.output_tokens,
            ttft_ms=asked.ttft_ms,
            tpot_ms=limit_us / US_PER_MS if limit_us < float("inf") else None,
            e2e_ms=asked.e2e_ms,
            max_num_seqs=answer.most_requests(row),
        )
        if asked.rate is not None:
            test = routed(test, copies, router, row)
        point = test.points([None if asked.rate is None else asked.rate / copies])[0]
        gpus = copies * int(row["tp"])
        rate = copies * point.mean["tokens_per_s"]
        loaded = Loaded(
            row=row, replicas=copies, gpus=gpus, share=point.mean["goodput_share"], point=point,
            usd_per_million_tokens=float(usd_per_million_tokens(scenario.usd_per_gpu_hour, gpus, rate)),
        )  # fmt: skip
        if loaded.keeps or (asked.rate is None and asked.users is None):
            break
    assert loaded is not None  # noqa: S101  # there is always one number of copies to try
    return loaded


def routed(test: LoadTest, copies: int, router: Router, row: Mapping[str, Any]) -> LoadTest:
    """The load test of one copy with the requests that a router sends to it."""
    shared = min(copies, MOST_ROUTED)
    source = Routed(
        stream=Drawn(replace(test.asked, requests=test.asked.requests * shared)),
        copies=shared,
        router=router,
        first_s=float(row["ttft_ms"]) / KILO,
        token_s=float(row["tpot_ms"]) / KILO,
    )
    return replace(test, asked=replace(test.asked, seeds=min(shared, MOST_SIMULATED)), source=source)


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """The share of one copy of the requests of all, a `load.sources.Source`: the seed says which copy.

    stream: requests of all copies together. router: least-load sends a request to the copy with the fewest
    outstanding ones, round-robin to each in turn. A request is taken to be outstanding for first_s and
    token_s a token of its output, as in the steady server.
    """

    stream: Drawn
    copies: int
    router: Router
    first_s: float
    token_s: float

    @property
    def sets_rate(self) -> bool:
        """A stream needs a rate."""
        return False

    @property
    def mean_output_tokens(self) -> float:
        """As the stream has it."""
        return self.stream.mean_output_tokens

    def requests(self, rate_per_s: float | None, seed: int, most: int) -> Requests:
        """Requests of one copy, at its mean rate."""
        whole = self.stream.requests(rate_per_s and rate_per_s * self.copies, 0, most)
        kept = self.places(whole) == seed
        return replace(
            whole,
            arrival_s=whole.arrival_s[kept],
            prompt_tokens=whole.prompt_tokens[kept],
            output_tokens=whole.output_tokens[kept],
            warm=int(kept[: whole.warm].sum()),
            source=f"{whole.source}, {self.router} over {self.copies} copies",
        )

    def places(self, whole: Requests) -> IntArray:
        """(requests,) the copy that each is sent to."""
        if self.router == "round-robin" or self.copies == 1:
            return np.arange(whole.count, dtype=np.int64) % self.copies
        stay_s = self.first_s + whole.output_tokens * self.token_s
        there: list[list[float]] = [[] for _ in range(self.copies)]
        places = np.empty(whole.count, dtype=np.int64)
        for i, (now, stay) in enumerate(zip(whole.arrival_s.tolist(), stay_s.tolist(), strict=True)):
            for copy in there:
                while copy and copy[0] <= now:
                    heapq.heappop(copy)
            # of equals the next in turn, as routers do
            turn = [(i + step) % self.copies for step in range(self.copies)]
            place = min(turn, key=lambda copy: len(there[copy]))
            heapq.heappush(there[place], now + stay)
            places[i] = place
        return places
