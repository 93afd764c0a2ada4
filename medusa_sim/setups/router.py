"""A router before the copies of a fleet: one stream of requests, each sent to one copy."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from medusa_sim.arrays import IntArray
from medusa_sim.load.arrivals import Drawn
from medusa_sim.load.requests import Requests

Router = Literal["least-load", "round-robin"]
ROUTERS: tuple[Router, ...] = get_args(Router)


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """The share of one copy of the requests of all, a `load.arrivals.Source`: the seed says which copy.

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
    def has_own_rate(self) -> bool:
        """A stream needs a rate."""
        return False

    def requests(self, rate_per_s: float | None, seed: int, most: int) -> Requests:
        """Those of a copy, at a mean rate of one copy."""
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
