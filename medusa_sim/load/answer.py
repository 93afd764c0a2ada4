"""The answer about a load: every policy at every rate, and what each carries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from medusa_sim.errors import UsageError
from medusa_sim.grid.surface import GrownPrompts
from medusa_sim.load.carried_rates import (
    BELOW_FULL,
    SURELY_STEADY,
    CarriedRates,
    find_carried,
    rates_to_try,
    usual_requests,
)
from medusa_sim.load.load_test import LoadTest
from medusa_sim.load.point import LoadPoint
from medusa_sim.load.requests import check_rate
from medusa_sim.load.saturation import saturation
from medusa_sim.load.step_table import chains
from medusa_sim.plan.break_even import BreakEven, break_even_context, longest_searched

_USUAL_RATES = 4
"""Rates of an answer that were not asked for, before it is known which."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LoadAnswer:
    """Every policy at every rate, and what each carries (empty where that was not searched)."""

    test: LoadTest
    points: tuple[LoadPoint, ...]
    carried: tuple[CarriedRates, ...]
    target_rate: float | None = None

    @cached_property
    def full_per_s(self) -> dict[str, float]:
        """Rates at which policies saturate; empty for traces and closed loops that were not searched."""
        if self.carried:
            return {rates.policy: rates.saturated_per_s for rates in self.carried}
        if self.test.source.sets_rate:
            return {}
        return {server.name: saturation(self.test, server).requests_per_s for server in self.test.servers}

    def is_steady(self, point: LoadPoint) -> bool:
        """Whether times and shares do not depend on how long the run was: its queue does not grow."""
        full = self.full_per_s.get(point.policy, np.inf)
        if not np.isfinite(full) or not np.isfinite(point.arrivals_per_s):
            return point.is_steady
        if point.arrivals_per_s <= SURELY_STEADY * full:
            return True
        return point.is_steady and point.arrivals_per_s <= BELOW_FULL * full

    @cached_property
    def context(self) -> tuple[int, BreakEven] | None:
        """(requests that decode on average at the last rate, the contexts at which chains pay for so many).

        Of the policy that drafts with the most of them; None where none drafts.
        """
        drafting = {server.name for server in self.test.servers if server.table.drafts_max}
        busy = [point.mean["requests_decoding"] for point in self.last if point.policy in drafting]
        if not busy:
            return None
        requests = max(round(max(busy)), 1)
        longest = longest_searched(self.test.scenario, int(self.test.table.lengths[-1]))
        options = chains(self.test.scenario, self.test.drafts_max)
        scenario, asked, sample = self.test.scenario, self.test.asked, self.test.sample
        grown = GrownPrompts(
            float(sample.output_tokens.mean()) / 2.0
            if scenario.traffic is None
            else scenario.length - scenario.traffic.prompt_tokens,
            found_share=asked.prefix_hit_rate,
            held_once=asked.prefix == "system",
        )
        return requests, break_even_context(scenario, options, requests, longest, grown=grown)

    @property
    def last(self) -> tuple[LoadPoint, ...]:
        """Every policy at the last rate."""
        return self.at_rate_of(self.points[-1])

    def at_rate_of(self, point: LoadPoint) -> tuple[LoadPoint, ...]:
        """Every policy at the rate of a point; the first is what the others are compared with."""
        return tuple(other for other in self.points if other.rate_per_s == point.rate_per_s)


def run_load(
    test: LoadTest,
    rates: Sequence[float] | None = None,
    *,
    search: bool = True,
    target_rate: float | None = None,
    advance: Callable[[int, int], None] | None = None,
) -> LoadAnswer:
    """Run the test. rates: requests a second (None: the source's own, else shares of what is carried).

    advance: called with (requests simulated, requests in all as far as known). Raises UsageError for rates
    of a closed loop, and for what is no rate.
    """
    if rates is not None and test.asked.users is not None:
        raise UsageError("--users is a closed loop, which has no --rate: give one of them")
    if rates is not None and not rates:
        raise UsageError("rates are empty: give at least one number of requests a second")
    if target_rate is not None:
        check_rate(target_rate, "target rate")
    at_a_rate = test.seeds * len(test.servers) * test.sample.count
    usual_rates = len(rates) if rates is not None else 1 if test.source.sets_rate else _USUAL_RATES
    progress = _Progress(advance, usual_requests(test) if search else 0, at_a_rate * usual_rates)
    found = find_carried(test, progress.add) if search else ()
    chosen = _rates_to_run(test, rates, found)
    progress.begin_rates(at_a_rate * len(chosen))
    points = test.points(chosen, progress.add)
    return LoadAnswer(test=test, points=points, carried=found, target_rate=target_rate)


def _rates_to_run(
    test: LoadTest, rates: Sequence[float] | None, found: Sequence[CarriedRates]
) -> tuple[float | None, ...]:
    """The rates that were asked for, the source's own (None), or shares of what is carried."""
    if rates is not None:
        return tuple(rates)
    if test.source.sets_rate:
        return (None,)
    full_per_s = found[0].saturated_per_s if found else saturation(test, test.servers[0]).requests_per_s
    return rates_to_try(full_per_s, found)


class _Progress:
    """Reports how many requests have been simulated, of how many: a search can only guess that."""

    def __init__(self, tell: Callable[[int, int], None] | None, searched: int, at_rates: int) -> None:
        self._tell, self._at_rates = tell, at_rates
        self._done, self._total = 0, searched + at_rates

    def add(self, requests: int) -> None:
        """Count requests that have been simulated."""
        self._done += requests
        if self._tell is not None:
            self._tell(self._done, max(self._total, self._done + self._at_rates))

    def begin_rates(self, requests: int) -> None:
        """Note that the search has ended and how many requests are left to simulate."""
        self._at_rates, self._total = 0, self._done + requests
