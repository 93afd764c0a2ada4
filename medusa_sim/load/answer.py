"""One question about a load, from plain values to its answer: the same for command line, Python and app."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from medusa_sim.errors import UsageError
from medusa_sim.load.arguments import LOAD, LoadArguments
from medusa_sim.load.arrivals import Drawn, Lengths, Source, Traced
from medusa_sim.load.carried import (
    BELOW_FULL,
    SURELY_STEADY,
    Carried,
    find_carried,
    rates_to_try,
    saturation,
    usual_requests,
)
from medusa_sim.load.limits import Server
from medusa_sim.load.load_test import LoadPoint, LoadTest
from medusa_sim.load.metrics import Goals
from medusa_sim.load.requests import check_rate
from medusa_sim.load.step_table import chains
from medusa_sim.load.trace import read_trace
from medusa_sim.plan.break_even import BreakEven, break_even_context, longest_asked
from medusa_sim.scenario.declare import check, takes
from medusa_sim.scenario.defaults import LOAD_SEEDS
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.units import KILO

_USUAL_RATES = 4
"""Rates of an answer that were not asked for, before it is known which."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LoadAnswer:
    """Every policy at every rate, and what each carries (empty where that was not searched)."""

    test: LoadTest
    points: tuple[LoadPoint, ...]
    carried: tuple[Carried, ...]
    target_rate: float | None = None

    def first_at(self, point: LoadPoint) -> LoadPoint:
        """The first policy at the same rate: what the others are compared with."""
        return next(other for other in self.points if other.rate_per_s == point.rate_per_s)

    @cached_property
    def full_per_s(self) -> dict[str, float]:
        """What each policy is full at; empty for traces and closed loops that were not searched."""
        if self.carried or not isinstance(self.test.source, Drawn) or self.test.source.users is not None:
            return {rates.policy: rates.saturated_per_s for rates in self.carried}
        return {served.name: saturation(self.test, served)[0] for served in self.test.served}

    def is_steady(self, point: LoadPoint) -> bool:
        """Whether a run's times and shares do not tell its length: its queue does not grow, and need not."""
        full = self.full_per_s.get(point.policy, np.inf)
        if not np.isfinite(full) or not np.isfinite(point.rate):
            return point.is_steady
        if point.rate <= SURELY_STEADY * full:
            return True
        return point.is_steady and point.rate <= BELOW_FULL * full

    @cached_property
    def context(self) -> tuple[int, BreakEven] | None:
        """(requests that decode in the mean at the last rate, the contexts at which chains pay for so many).

        Of the policy that drafts with the most of them; None where none drafts.
        """
        drafting = {served.name for served in self.test.served if served.table.drafts_max}
        busy = [point.mean["requests_decoding"] for point in self.last if point.policy in drafting]
        if not busy:
            return None
        requests = max(round(max(busy)), 1)
        longest = longest_asked(self.test.scenario, int(self.test.table.lengths[-1]))
        options = chains(self.test.scenario, self.test.drafts_max)
        return requests, break_even_context(self.test.scenario, options, requests, longest)

    @property
    def last(self) -> tuple[LoadPoint, ...]:
        """Every policy at the last rate."""
        return self.beside(self.points[-1])

    def beside(self, point: LoadPoint) -> tuple[LoadPoint, ...]:
        """Every policy at the rate of a point."""
        return tuple(other for other in self.points if other.rate_per_s == point.rate_per_s)


@takes(LoadArguments)
def load_test(scenario: Scenario, **given: Any) -> LoadTest:
    """The test of a scenario, from plain values: the arguments of `LoadArguments`.

    Raises UsageError or DataError for values that make no sense, alone or together.
    """
    check(given, LOAD, "argument of a load")
    asked = LoadArguments(**given)
    if asked.trace is not None and asked.users is not None:
        raise UsageError("--trace has its own arrivals and --users a closed loop: give one of them")
    lengths = Lengths(
        prompt_tokens=asked.prompt_tokens,
        output_tokens=asked.output_tokens,
        prompt_cv=asked.length_cv,
        output_cv=asked.length_cv,
    )
    source: Source = (
        Drawn(
            lengths=lengths,
            count=asked.requests,
            burstiness=asked.burstiness,
            ramp_to=asked.ramp,
            users=asked.users,
            think_s=asked.think_s,
        )
        if asked.trace is None
        else Traced(read_trace(Path(asked.trace).expanduser()))
    )
    if scenario.profile.by_output:
        mean = float(source.trace.output_tokens.mean()) if isinstance(source, Traced) else asked.output_tokens
        scenario = scenario.but(acceptance=scenario.profile.of_outputs(mean))
    limits_ms = {"ttft_s": asked.ttft_ms, "tpot_s": asked.tpot_ms, "e2e_s": asked.e2e_ms}
    return LoadTest(
        scenario=scenario,
        source=source,
        policies=tuple(asked.policies),
        server=Server(
            max_requests=asked.max_num_seqs,
            token_budget=asked.max_num_batched_tokens,
            block_tokens=asked.block_size,
            prompt_interval=asked.prompt_interval,
            prefix_hit_rate=asked.prefix_hit_rate,
            prefix=asked.prefix,
        ),
        goals=Goals(
            **{name: None if ms is None else ms / KILO for name, ms in limits_ms.items()}, share=asked.share
        ),
        seeds=(LOAD_SEEDS if asked.trace is None else 1) if asked.seeds is None else asked.seeds,
        drop_long=asked.drop_long,
        cancelled=asked.cancelled,
    )


def run_load(
    test: LoadTest,
    rates: Sequence[float] | None = None,
    *,
    search: bool = True,
    target_rate: float | None = None,
    advance: Callable[[int, int], None] | None = None,
) -> LoadAnswer:
    """Run the test. rates: requests a second (None: the source's own, else shares of what is carried).

    advance: told (requests simulated, requests in all as far as known). Raises UsageError for rates of a
    closed loop or rates that are none.
    """
    if rates is not None and isinstance(test.source, Drawn) and test.source.users is not None:
        raise UsageError("--users is a closed loop, which has no --rate: give one of them")
    if rates is not None and not rates:
        raise UsageError("rates are empty: give at least one number of requests a second")
    if target_rate is not None:
        check_rate(target_rate, "target rate")
    at_a_rate = test.seeds * len(test.served) * test.requests(test.any_rate, 0)[0].count
    usual_rates = len(rates) if rates is not None else 1 if test.source.has_own_rate else _USUAL_RATES
    progress = _Progress(advance, usual_requests(test) if search else 0, at_a_rate * usual_rates)
    found = find_carried(test, progress.add) if search else ()
    chosen = _rates_to_run(test, rates, found)
    progress.begin_rates(at_a_rate * len(chosen))
    points = test.points(chosen, progress.add)
    return LoadAnswer(test=test, points=points, carried=found, target_rate=target_rate)


def _rates_to_run(
    test: LoadTest, rates: Sequence[float] | None, found: Sequence[Carried]
) -> tuple[float | None, ...]:
    """Those that were asked for, the source's own (None), or shares of what is carried."""
    if rates is not None:
        return tuple(rates)
    if test.source.has_own_rate:
        return (None,)
    full_per_s = found[0].saturated_per_s if found else saturation(test, test.served[0])[0]
    return rates_to_try(full_per_s, found)


class _Progress:
    """Tells how many requests have been simulated, and of how many, which a search can only guess."""

    def __init__(self, tell: Callable[[int, int], None] | None, searched: int, at_rates: int) -> None:
        self._tell, self._at_rates = tell, at_rates
        self._done, self._total = 0, searched + at_rates

    def add(self, requests: int) -> None:
        """So many more have been simulated."""
        self._done += requests
        if self._tell is not None:
            self._tell(self._done, max(self._total, self._done + self._at_rates))

    def begin_rates(self, requests: int) -> None:
        """The search has ended; so many requests are left to simulate."""
        self._at_rates, self._total = 0, self._done + requests
