"""One question about a load, from plain values to its answer: the same for command line, Python and app."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from medusa_sim.errors import UsageError
from medusa_sim.load.arrivals import Drawn, Lengths, Source, Traced
from medusa_sim.load.limits import BLOCK_TOKENS
from medusa_sim.load.metrics import Goals
from medusa_sim.load.policies import Policy
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
from medusa_sim.load.simulate import DEFAULT_POLICIES, LoadPoint, LoadTest, Server
from medusa_sim.load.trace import read_trace
from medusa_sim.plan.arguments import FLAG, NUMBER, WHOLE, check_kinds
from medusa_sim.plan.defaults import (
    LOAD_LENGTH_CV,
    LOAD_OUTPUT_TOKENS,
    LOAD_PREFIXES,
    LOAD_PROMPT_TOKENS,
    LOAD_REQUESTS,
    LOAD_SEEDS,
    LOAD_SHARE,
)
from medusa_sim.plan.scenario import Scenario
from medusa_sim.units import KILO

_KINDS = {
    **dict.fromkeys(
        ("users", "requests", "max_num_seqs", "max_num_batched_tokens", "block_size", "seeds"), WHOLE
    ),
    **dict.fromkeys(("think_s", "burstiness", "ramp", "prompt_tokens", "output_tokens", "length_cv"), NUMBER),
    **dict.fromkeys(
        ("ttft_ms", "tpot_ms", "e2e_ms", "share", "prefix_hit_rate", "acceptance_spread"), NUMBER
    ),
    "drop_long": FLAG,
    "trace": ("a path", (str, os.PathLike)),
}
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
            return {each.policy: each.saturated_per_s for each in self.carried}
        return {served.name: saturation(self.test, served)[0] for served in self.test.served}

    def is_steady(self, point: LoadPoint) -> bool:
        """Whether a run's times and shares do not tell its length: its queue does not grow, and need not."""
        full = self.full_per_s.get(point.policy, np.inf)
        if not np.isfinite(full) or not np.isfinite(point.rate):
            return point.is_steady
        if point.rate <= SURELY_STEADY * full:
            return True
        return point.is_steady and point.rate <= BELOW_FULL * full

    @property
    def last(self) -> tuple[LoadPoint, ...]:
        """Every policy at the last rate."""
        return tuple(point for point in self.points if point.rate_per_s == self.points[-1].rate_per_s)


def load_test(
    scenario: Scenario,
    *,
    policies: Sequence[str | Policy] = DEFAULT_POLICIES,
    trace: str | os.PathLike[str] | None = None,
    users: int | None = None,
    think_s: float = 0.0,
    requests: int = LOAD_REQUESTS,
    burstiness: float = 1.0,
    ramp: float = 1.0,
    prompt_tokens: float = LOAD_PROMPT_TOKENS,
    output_tokens: float = LOAD_OUTPUT_TOKENS,
    length_cv: float = LOAD_LENGTH_CV,
    ttft_ms: float | None = None,
    tpot_ms: float | None = None,
    e2e_ms: float | None = None,
    share: float = LOAD_SHARE,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
    block_size: int = BLOCK_TOKENS,
    prefix_hit_rate: float = 0.0,
    prefix: str = LOAD_PREFIXES[0],
    acceptance_spread: float = 0.0,
    seeds: int | None = None,
    drop_long: bool = False,
) -> LoadTest:
    """The test of a scenario, from plain values; names and defaults are those of `medusa-sim load`.

    Raises UsageError or DataError for values that make no sense, alone or together.
    """
    check_kinds(locals(), load_test.__kwdefaults__ or {}, _KINDS)
    if trace is not None and users is not None:
        raise UsageError("--trace has its own arrivals and --users a closed loop: give one of them")
    lengths = Lengths(
        prompt_tokens=prompt_tokens, output_tokens=output_tokens, prompt_cv=length_cv, output_cv=length_cv
    )
    source: Source = (
        Drawn(
            lengths=lengths,
            count=requests,
            burstiness=burstiness,
            ramp_to=ramp,
            users=users,
            think_s=think_s,
        )
        if trace is None
        else Traced(read_trace(Path(trace).expanduser()))
    )
    ttft_s, tpot_s, e2e_s = (None if ms is None else ms / KILO for ms in (ttft_ms, tpot_ms, e2e_ms))
    return LoadTest(
        scenario=scenario,
        source=source,
        policies=tuple(policies),
        server=Server(
            max_requests=max_num_seqs,
            token_budget=max_num_batched_tokens,
            block_tokens=block_size,
            prefix_hit_rate=prefix_hit_rate,
            prefix=prefix,
        ),
        goals=Goals(ttft_s=ttft_s, tpot_s=tpot_s, e2e_s=e2e_s, share=share),
        seeds=(LOAD_SEEDS if trace is None else 1) if seeds is None else seeds,
        drop_long=drop_long,
        spread=acceptance_spread,
    )


def answered(
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
    each = test.seeds * len(test.served) * test.requests(test.any_rate, 0)[0].count
    own = test.source.has_own_rate
    last = each * (len(rates) if rates is not None else 1 if own else _USUAL_RATES)
    done = [0, last + (usual_requests(test) if search else 0)]

    def more(requests: int) -> None:
        done[0] += requests
        if advance is not None:
            advance(done[0], max(done[1], done[0] + last))

    found = carried(test, more) if search else ()
    chosen: tuple[float | None, ...]
    if rates is not None:
        chosen = tuple(rates)
    elif own:
        chosen = (None,)
    else:
        full = found[0].saturated_per_s if found else saturation(test, test.served[0])[0]
        chosen = rates_to_try(full, found)
    last = 0
    done[1] = done[0] + each * len(chosen)
    points = test.points(chosen, more)
    return LoadAnswer(test=test, points=points, carried=found, target_rate=target_rate)
