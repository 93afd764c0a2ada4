"""Where the requests of a load test come from: drawn, or a trace."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from medusa_sim.errors import UsageError
from medusa_sim.load.arrivals import closed_loop, open_loop
from medusa_sim.load.lengths import Lengths
from medusa_sim.load.requests import Requests
from medusa_sim.scenario.defaults import LOAD_REQUESTS


class Source(Protocol):
    """Where requests come from, at any rate and for any seed."""

    @property
    def sets_rate(self) -> bool:
        """Whether its requests have times of their own, so that no rate has to be given."""

    def requests(self, rate_per_s: float | None, seed: int, most: int) -> Requests:
        """Requests at a mean rate (None: their own); lengths that are drawn are at most `most` tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """Drawn requests. ramp_to: times the first rate that the last one is. users: of a closed loop."""

    lengths: Lengths = field(default_factory=Lengths)
    count: int = LOAD_REQUESTS
    burstiness: float = 1.0
    ramp_to: float = 1.0
    users: int | None = None
    think_s: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 < self.ramp_to < np.inf:
            raise UsageError(f"ramp {self.ramp_to:g}: a number above 0 is allowed")

    @property
    def sets_rate(self) -> bool:
        """True for a closed loop."""
        return self.users is not None

    def requests(self, rate_per_s: float | None, seed: int, most: int) -> Requests:
        """Requests drawn by the seed; one seed has the same pattern and lengths at every rate."""
        if self.users is not None:
            return closed_loop(
                self.users, self.lengths, count=self.count, think_s=self.think_s, seed=seed, most=most
            )
        if rate_per_s is None:
            raise UsageError("drawn requests need a rate: give --rate, or --users for a closed loop")
        first = 2.0 * rate_per_s / (1.0 + self.ramp_to)
        rate = rate_per_s if self.ramp_to == 1.0 else (first, first * self.ramp_to)
        return open_loop(
            rate, self.lengths, count=self.count, burstiness=self.burstiness, seed=seed, most=most
        )


@dataclass(frozen=True, slots=True)
class Traced:
    """Requests of a trace; the seed changes nothing about them."""

    trace: Requests

    @property
    def sets_rate(self) -> bool:
        """Always."""
        return True

    def requests(self, rate_per_s: float | None, seed: int, most: int) -> Requests:
        """The trace, in its own time or with time stretched to another mean rate."""
        del seed, most
        return self.trace if rate_per_s is None else self.trace.at_rate(rate_per_s)
