"""Rates that a scenario carries: where it saturates, how far it keeps its limits, where speculation loses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from medusa_sim.load.metrics import measured
from medusa_sim.load.policies import Fixed, Policy
from medusa_sim.load.requests import Requests
from medusa_sim.load.simulate import Advance, LoadTest, Served
from medusa_sim.load.step_table import StepTable

SEARCH_REQUESTS = 2000
"""Requests of each trial of a search: the first of a trace."""
_PRECISION = 0.01
_LOWEST = 1.0 / 256.0
"""Rates down to this share of saturation are tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """What one policy carries.

    saturated_per_s: requests a second with the server always full; above it queues grow without end.
    largest_per_s: largest rate at which the asked share of requests keeps the limits; None without limits, 0
    where no rate does. best_share: of the requests that keep them at the lowest rate tried. loses_from: rate
    from which the mean request takes longer than without speculation; None where it never does.
    off_from: requests in flight from which steps that draft emit fewer tokens a second than plain ones.
    searched: whether rates were tried; a closed loop has none.
    """

    policy: str
    saturated_per_s: float
    saturated_tokens_per_s: float
    largest_per_s: float | None
    best_share: float | None
    loses_from: float | None
    off_from: int | None
    searched: bool = True

    def gpus_for(self, rate_per_s: float, gpus: int) -> int | None:
        """GPUs of as many equal servers as carry a rate within the limits; None where none can."""
        each = self.saturated_per_s if self.largest_per_s is None else self.largest_per_s
        return None if each <= 0.0 else int(np.ceil(rate_per_s / each)) * gpus


def saturation(test: LoadTest, served: Served) -> tuple[float, float]:
    """(requests/s, tokens/s) with `max_num_seqs` requests always in flight, of the lengths of the source."""
    users = served.limits.max_requests
    pool = _trial(test, test.any_rate)
    count = 4 * users
    places = np.arange(count) % pool.count
    requests = Requests(
        arrival_s=np.zeros(users),
        prompt_tokens=pool.prompt_tokens[places],
        output_tokens=pool.output_tokens[places],
        users=users,
        source="saturated",
    )
    found = measured(served.run(requests, 0), served.table, served.limits, test.goals)
    return found["requests_per_s"], found["tokens_per_s"]


def carried(test: LoadTest, advance: Advance | None = None) -> tuple[Carried, ...]:
    """What every policy carries; the first one without speculation is what the others lose against.

    A closed loop, and requests that all come at once, have no rate to search: there only saturation is known.
    """
    has_rates = bool(np.isfinite(_trial(test, test.any_rate).rate_per_s))
    limits = [saturation(test, served) for served in test.served]
    plain = next((i for i, served in enumerate(test.served) if served.table.drafts_max == 0), None)
    found = []
    for i, served in enumerate(test.served):
        largest: float | None = None
        share: float | None = None
        if has_rates and test.goals.given:
            largest, share = _largest(test, served, limits[i][0], advance)
        loses = None
        if has_rates and plain is not None and i != plain:
            top = min(limits[i][0], limits[plain][0])
            loses = _loses_from(test, served, test.served[plain], top, advance)
        found.append(
            Carried(
                policy=served.name,
                saturated_per_s=limits[i][0],
                saturated_tokens_per_s=limits[i][1],
                largest_per_s=largest,
                best_share=share,
                loses_from=loses,
                off_from=off_from(served.table, served.policy(), test.mean_length),
                searched=has_rates,
            )
        )
    return tuple(found)


def off_from(table: StepTable, policy: Policy, length: float) -> int | None:
    """Requests from which the policy's drafts emit fewer tokens a second than a plain step does.

    One that chooses its drafts: from which no number of them emits more. Plain steps of a server without a
    drafter. None where drafting pays up to the most requests.
    """
    if not table.drafts_max:
        return None
    j = int(np.argmin(np.abs(table.lengths - length)))
    rate = table.rate_per_s[:, 1:, j]
    drafting = rate[policy.drafts] if isinstance(policy, Fixed) else rate[1:].max(axis=0)
    loses = drafting <= rate[0]
    if not loses[-1]:
        return None
    wins = np.flatnonzero(~loses)
    return 1 if wins.size == 0 else int(wins[-1]) + 2


def _trial(test: LoadTest, rate_per_s: float | None) -> Requests:
    requests, _ = test.requests(rate_per_s, 0)
    return requests.first(SEARCH_REQUESTS) if requests.count > SEARCH_REQUESTS else requests


def _at(test: LoadTest, served: Served, rate_per_s: float, advance: Advance | None) -> dict[str, float]:
    requests = _trial(test, rate_per_s)
    record = served.run(requests.at_rate(rate_per_s), 0, advance)
    return measured(record, served.table, served.limits, test.goals)


def _largest(
    test: LoadTest, served: Served, saturated: float, advance: Advance | None
) -> tuple[float, float | None]:
    """(largest rate that keeps the limits, share of requests that keep them at the lowest rate tried)."""
    wanted = test.goals.share

    def share(rate: float) -> float:
        return _at(test, served, rate, advance)["goodput_share"]

    low, high = saturated * _LOWEST, saturated * 1.05
    least = share(low)
    if least < wanted:
        return 0.0, least
    if share(high) >= wanted:
        return saturated, least
    while high / low > 1.0 + _PRECISION:
        middle = float(np.sqrt(low * high)) if high / low > 1.5 else 0.5 * (low + high)
        low, high = (middle, high) if share(middle) >= wanted else (low, middle)
    return low, least


def _loses_from(
    test: LoadTest, served: Served, plain: Served, top: float, advance: Advance | None
) -> float | None:
    """The rate from which the mean request takes longer than with `plain`, pairs of the same requests."""

    def loses(rate: float) -> bool:
        with_drafts, without = (_at(test, each, rate, advance)["e2e_mean_s"] for each in (served, plain))
        return with_drafts > without

    if not loses(top):
        return None
    low, high = top * 0.02, top
    if loses(low):
        return 0.0
    while high - low > 0.02 * top:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if loses(middle) else (middle, high)
    return high


def rates_to_try(full_per_s: float) -> tuple[float, ...]:
    """Four rates, from a quarter to nine tenths of what a server carries, with two digits."""
    found = (float(f"{share * full_per_s:.2g}") for share in (0.25, 0.5, 0.75, 0.9))
    return tuple(dict.fromkeys(rate for rate in found if rate > 0.0))
