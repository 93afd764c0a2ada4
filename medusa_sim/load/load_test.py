"""A scenario under load: policies side by side at the same rates with the same seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from medusa_sim.errors import UsageError, shown
from medusa_sim.grid.costs import usd_per_million_tokens
from medusa_sim.load.arguments import LOAD, LoadArguments
from medusa_sim.load.energy import Energy, energy_of
from medusa_sim.load.limits import SchedulerLimits, limits_of
from medusa_sim.load.metrics import Metrics, metrics_of
from medusa_sim.load.point import LoadPoint
from medusa_sim.load.policies import Policy
from medusa_sim.load.policy_names import drafts_asked, name_here, never_drafts, policy_of
from medusa_sim.load.requests import Requests
from medusa_sim.load.run_result import RunResult
from medusa_sim.load.serving_loop import Advance, run
from medusa_sim.load.slos import Slos
from medusa_sim.load.sources import Drawn, Source, Traced
from medusa_sim.load.step_table import StepTable, chains, step_table
from medusa_sim.load.trace import read_trace
from medusa_sim.scenario.declare import check, takes
from medusa_sim.scenario.defaults import LOAD_SEEDS
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.units import KILO


@dataclass(frozen=True, eq=False)
class PolicyServer:
    """A server that runs one policy: step times and limits with the drafter that the policy needs."""

    policy: Callable[[], Policy]
    name: str
    table: StepTable
    limits: SchedulerLimits
    spread: float = 0.0

    def run(self, requests: Requests, seed: int, advance: Advance | None = None) -> RunResult:
        """One run from a fresh policy."""
        return run(requests, self.table, self.limits, self.policy(), seed, advance, self.spread)


@dataclass(eq=False)
class LoadTest:
    """A scenario, its server and where its requests come from: what every run shares.

    Raises UsageError for what makes no sense, SpecError or CoverageError from the scenario.
    """

    scenario: Scenario
    asked: LoadArguments
    source: Source

    def __post_init__(self) -> None:
        self.policies = _checked_policies(self.asked.policies)
        if self.scenario.scope != "model":
            raise UsageError("a load needs a whole model; scope block is one layer of it")

    @property
    def seeds(self) -> int:
        """Runs of each policy and rate; a trace is the same in every one."""
        return self.asked.seeds or (LOAD_SEEDS if self.asked.trace is None else 1)

    @cached_property
    def slos(self) -> Slos:
        """The limits on latency."""
        limits_ms = {"ttft_s": self.asked.ttft_ms, "tpot_s": self.asked.tpot_ms, "e2e_s": self.asked.e2e_ms}
        limits_s = {name: None if ms is None else ms / KILO for name, ms in limits_ms.items()}
        return Slos(**limits_s, share=self.asked.share)

    @property
    def spread(self) -> float:
        """Standard deviation of the requests on the logit of their acceptance, as the profile has it."""
        return self.scenario.profile.request_spread or 0.0

    @cached_property
    def drafts_max(self) -> int:
        """Longest draft of any policy; for your own policies, the longest that the scenario describes."""
        named = [policy for policy in self.policies if isinstance(policy, str)]
        if len(named) == len(self.policies) and never_drafts(named):
            return 0
        longest = len(chains(self.scenario))
        asked = drafts_asked(named, longest)
        return longest if len(named) < len(self.policies) else asked

    def limits(self, drafts: int) -> SchedulerLimits:
        """Limits of a server whose drafter makes so many drafts; 0: no drafter is loaded."""
        return limits_of(self.scenario, chains(self.scenario)[drafts - 1] if drafts else None, self.asked)

    def requests(self, rate_per_s: float | None, seed: int) -> tuple[Requests, int]:
        """(requests that fit every policy's server, how many were left out)."""
        drafts = self.drafts_max
        limits = self.limits(drafts)
        drawn = self.source.requests(rate_per_s, seed, limits.longest_request(drafts))
        drawn = drawn.with_cancelled(self.asked.cancelled, seed)
        return drawn.fitting(limits, drafts, drop_long=self.asked.drop_long)

    @property
    def any_rate(self) -> float | None:
        """A rate to look at requests by: their own, or one a second."""
        return None if self.source.sets_rate else 1.0

    @cached_property
    def sample(self) -> Requests:
        """The first seed's requests at their own rate, or at one a second where it is asked for."""
        requests, _ = self.requests(self.any_rate, 0)
        return requests

    @cached_property
    def table(self) -> StepTable:
        """Times of steps up to the longest draft and request."""
        longest = max(self.requests(self.any_rate, seed)[0].longest for seed in range(self.seeds))
        options = chains(self.scenario, self.drafts_max) if self.drafts_max else ()
        limits = self.limits(self.drafts_max)
        return step_table(self.scenario, options, replace(limits, max_requests=self.most_requests), longest)

    @property
    def most_requests(self) -> int:
        """Most requests of a step under any policy: an engine may take fewer where it loads a drafter."""
        return max(self.limits(drafts).max_requests for drafts in {0, self.drafts_max})

    @cached_property
    def mean_length(self) -> float:
        """Mean committed tokens of a request over its time in flight, roughly."""
        output = self.sample.output_tokens.astype(np.float64)
        return float(((self.sample.prompt_tokens + output / 2.0) * output).sum() / output.sum())

    @cached_property
    def energy(self) -> Energy | None:
        """What steps draw; None where the GPU's power is not known."""
        options = chains(self.scenario, self.drafts_max) if self.drafts_max else ()
        limits, prompts = self.limits(self.drafts_max), self.sample.prompt_tokens
        found = limits.all_found_tokens(prompts, self.sample.session_tokens)
        return energy_of(self.scenario, options, self.most_requests, self.mean_length, prompts, found)

    @cached_property
    def servers(self) -> tuple[PolicyServer, ...]:
        """Servers, one a policy."""
        return tuple(self._server_for(policy) for policy in self.policies)

    def _server_for(self, policy: str | Policy) -> PolicyServer:
        """The server of a policy, which holds memory for its longest draft."""
        made = self._fresh(policy, self.table)
        drafts = self.table.drafts_max if made.longest is None else made.longest
        table, limits = self.table.for_drafts(drafts), self.limits(drafts)
        return PolicyServer(partial(self._fresh, policy, table), made.name, table, limits, self.spread)

    def _fresh(self, policy: str | Policy, table: StepTable) -> Policy:
        """The policy in the state in which a run begins."""
        if isinstance(policy, str):
            return policy_of(policy, table, self.mean_length)
        return deepcopy(policy)

    def point(
        self, server: PolicyServer, rate_per_s: float | None, *, advance: Advance | None = None
    ) -> LoadPoint:
        """One policy at one rate, over the seeds."""
        requests, dropped = self.requests(rate_per_s, 0)
        first = server.run(requests, 0, advance)
        values = [self._metrics(server, first)]
        for seed in range(1, self.seeds):
            result = server.run(self.requests(rate_per_s, seed)[0], seed, advance)
            values.append(self._metrics(server, result))
        return LoadPoint(
            policy=server.name,
            rate_per_s=rate_per_s,
            offered_per_s=requests.rate_per_s if np.isfinite(requests.rate_per_s) else np.nan,
            values=tuple(values),
            first_result=first,
            dropped=dropped,
        )

    def _metrics(self, server: PolicyServer, result: RunResult) -> Metrics:
        """Metrics of a run, with its costs and energy."""
        metrics = metrics_of(result, server.table, server.limits, self.slos)
        usd = usd_per_million_tokens(
            self.scenario.usd_per_gpu_hour, self.scenario.gpus, metrics["tokens_per_s"]
        )
        watts, joules = np.nan, np.nan
        if self.energy is not None:
            watts, joules = self.energy.watts(result.inside), self.energy.joule_per_token(result.inside)
        return metrics | {"usd_per_million_tokens": float(usd), "watts": watts, "joule_per_token": joules}

    def points(self, rates: Iterable[float | None], advance: Advance | None = None) -> tuple[LoadPoint, ...]:
        """Every policy at every rate, rate by rate."""
        return tuple(self.point(server, rate, advance=advance) for rate in rates for server in self.servers)


def _checked_policies(asked: Sequence[Any]) -> tuple[str | Policy, ...]:
    """Names as `policy_names` has them, or objects of your own, without repeats. Raises UsageError."""
    if not asked:
        raise UsageError("policies are empty: give at least one, such as none,3,schedule")
    policies: list[str | Policy] = []
    for policy in (name_here(one) if isinstance(one, str) else one for one in asked):
        if not isinstance(policy, str | Policy):
            raise UsageError(
                f"policy {shown(policy)}: a name is needed, or an object of a class derived from "
                "medusa_sim.load.policies.Policy"
            )
        if not (isinstance(policy, str) and policy in policies):
            policies.append(policy)
    names = [policy if isinstance(policy, str) else policy.name for policy in policies]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"policy {shown(twice)} is the name of two: give each one of its own")
    return tuple(policies)


@takes(LoadArguments)
def load_test(scenario: Scenario, **given: Any) -> LoadTest:
    """The test of a scenario, from plain values: the arguments of `LoadArguments`.

    Raises UsageError or DataError for values that make no sense, alone or together.
    """
    check(given, LOAD, "argument of a load")
    asked = LoadArguments(**given)
    if asked.trace is not None and asked.users is not None:
        raise UsageError("--trace has its own arrivals and --users a closed loop: give one of them")
    source: Source = Drawn(asked)
    if asked.trace is not None:
        source = Traced(read_trace(Path(asked.trace).expanduser()))
    if scenario.profile.by_output:
        mean = source.mean_output_tokens
        scenario = scenario.but(acceptance=scenario.measured_acceptance.of_outputs(mean))
    return LoadTest(scenario, asked, source)
