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
from medusa_sim.load.limits import Server
from medusa_sim.load.metrics import Goals
from medusa_sim.load.requests import check_rate
from medusa_sim.load.search import (
    BELOW_FULL,
    SURELY_STEADY,
    Carried,
    carried,
    rates_to_try,
    saturation,
    usual_requests,
)
from medusa_sim.load.simulate import LoadPoint, LoadTest
from medusa_sim.load.step_table import chains
from medusa_sim.load.trace import read_trace
from medusa_sim.plan.break_even import BreakEven, break_even_context, longest_asked
from medusa_sim.scenario.argument import check, takes
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
    at_one_rate = test.seeds * len(test.served) * test.requests(test.any_rate, 0)[0].count
    last = at_one_rate * (
        len(rates) if rates is not None else 1 if test.source.has_own_rate else _USUAL_RATES
    )
    done = [0, last + (usual_requests(test) if search else 0)]

    def report(requests: int) -> None:
        done[0] += requests
        if advance is not None:
            advance(done[0], max(done[1], done[0] + last))

    rates_carried = carried(test, report) if search else ()
    chosen: tuple[float | None, ...]
    if rates is not None:
        chosen = tuple(rates)
    elif test.source.has_own_rate:
        chosen = (None,)
    else:
        full = rates_carried[0].saturated_per_s if rates_carried else saturation(test, test.served[0])[0]
        chosen = rates_to_try(full, rates_carried)
    last = 0
    done[1] = done[0] + at_one_rate * len(chosen)
    points = test.points(chosen, report)
    return LoadAnswer(test=test, points=points, carried=rates_carried, target_rate=target_rate)
