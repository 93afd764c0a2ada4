"""Rates that a scenario carries: where it saturates, up to where it keeps its limits, where drafts lose.

Searches run the requests and seeds of the test. Shares that keep the limits are pooled over the seeds; where
each seed alone crosses the wanted share gives the interval. Where drafts lose is searched with the
first seed alone, over all rates: drafts of a mixture may lose, win and lose again, since they wake experts
that are awake anyway in a full step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_DOWN, Context
from itertools import pairwise, zip_longest
from typing import NamedTuple

import numpy as np

from medusa_sim.arrays import FloatArray
from medusa_sim.load.load_test import LoadTest, PolicyServer
from medusa_sim.load.metrics import Metrics, metrics_of
from medusa_sim.load.point import half_width
from medusa_sim.load.policies import Fixed, Policy
from medusa_sim.load.requests import Requests
from medusa_sim.load.serving_loop import Advance
from medusa_sim.load.step_table import StepTable

SEARCH_REQUESTS = 2000
"""Requests of each trial of a search, over its seeds: the first of a trace."""
_PRECISION = 0.01
_ROUNDING = 1e-9
"""Of a server: 2.1 requests/s are three of 0.7 each."""
_LEAST_REQUESTS = 500
"""Of a seed: shorter runs end before their queues have grown."""
_MOST_TRIALS = 16
_USUAL_TRIALS = 6
_USUAL_PAIRS = 10
"""Of a policy: rates tried for the limits, and runs against plain decoding, in the middle of many loads."""
_COMPARED = tuple(np.geomspace(0.02, 1.0, 6).tolist())
"""Shares of saturation at which drafts are compared with plain decoding."""
_NEARLY_EVEN = 0.05
"""Share by which drafts win or lose at most where they may do the other between this rate and the next."""
_EDGE_PRECISION = 0.02
"""Of the rates between which drafts begin to lose, or to win."""
BELOW_FULL = 0.97
"""Of saturation: beyond, queues grow for as long as a run lasts."""
SURELY_STEADY = 0.9
"""Of saturation: up to it queues end, and what still grows in a run is a server that fills."""
_LEAST_QUEUE_SHARE = 0.1
"""Of rho': below, the time per token hardly follows the rate, and the rate can be any."""
_TWO_DIGITS = Context(prec=2, rounding=ROUND_DOWN)
_OF_95 = 0.65
"""80 % interval over the 95 % one of a normal distribution."""
_STEPS_DOWN = (0.5, 0.125, 1.0 / 256.0)
"""Shares of saturation that are tried until one keeps the limits."""


Spans = tuple[tuple[float, float | None], ...]
"""(first, last) rates of spans that do not meet, rising; None: without an end."""


class Saturation(NamedTuple):
    """Output of a server that is always full."""

    requests_per_s: float
    tokens_per_s: float
    slower: float
    """Half-widths of its 80 % interval on the logarithm, those of its steps: towards fewer requests."""
    faster: float
    """Towards more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """Rates that one policy carries.

    saturated_per_s: requests a second with the server always full; above it queues grow without end.
    saturated_low_per_s, saturated_high_per_s: its 80 % interval, with the band of the step.
    largest_per_s: largest rate at which the asked share of requests keeps the limits, never above
    saturated_per_s; None without limits, 0 where no rate does. largest_half_width: of its 95 % interval over
    the seeds; None where the limits hold up to saturation, or for one seed.
    largest_low_per_s, largest_high_per_s: its 80 % interval likewise, never above that of saturation.
    best_share: of the requests that keep them at the lowest rate tried. loses: (first, last) rates of every
    span in which the mean request takes longer than without speculation, from 0 where it does at the lowest
    and to None where it does until one server is full; None where that is not known. off_from: requests in
    flight, of those that the memory holds, from which steps that draft emit fewer tokens a second than plain
    ones. searched: whether rates were tried; a closed loop has none.
    """

    policy: str
    saturated_per_s: float
    saturated_tokens_per_s: float
    saturated_low_per_s: float | None = None
    saturated_high_per_s: float | None = None
    largest_per_s: float | None = None
    largest_half_width: float | None = None
    largest_low_per_s: float | None = None
    largest_high_per_s: float | None = None
    best_share: float | None = None
    loses: Spans | None = None
    off_from: int | None
    searched: bool = True

    def gpus_for(self, rate_per_s: float, gpus: int) -> int | None:
        """GPUs of as many equal servers as carry a rate within the limits; None where none can."""
        rate = self.saturated_per_s if self.largest_per_s is None else self.largest_per_s
        return None if rate <= 0.0 else int(np.ceil(rate_per_s / rate - _ROUNDING)) * gpus


def saturation(test: LoadTest, server: PolicyServer, advance: Advance | None = None) -> Saturation:
    """Output of a server with `max_num_seqs` requests always in flight, of the lengths of the source."""
    requests = _always_full(test, server)
    metrics = metrics_of(server.run(requests, 0, advance), server.table, server.limits, test.goals)
    names = ("requests_per_s", "tokens_per_s", "step_slower", "step_faster")
    return Saturation(*(metrics[name] for name in names))


def _always_full(test: LoadTest, server: PolicyServer) -> Requests:
    pool, users = _of_trial(test, test.sample), server.limits.max_requests
    return pool.repeated(max(4 * users, pool.count), users)


def find_carried(test: LoadTest, advance: Advance | None = None) -> tuple[Carried, ...]:
    """Search what every policy carries; the first one without speculation is what the others lose against.

    A closed loop, and requests that all come at once, have no rate to search: there only saturation is known.
    """
    has_rates = bool(np.isfinite(_of_trial(test, test.sample).rate_per_s))
    full = [saturation(test, server, advance) for server in test.servers]
    plain = next((i for i, server in enumerate(test.servers) if server.table.drafts_max == 0), None)
    rates = []
    for server, saturated in zip(test.servers, full, strict=True):
        off = off_from(server.table, server.policy(), test.mean_length, requests_held(test, server))
        found = Carried(
            policy=server.name,
            saturated_per_s=saturated.requests_per_s,
            saturated_tokens_per_s=saturated.tokens_per_s,
            saturated_low_per_s=float(saturated.requests_per_s * np.exp(-saturated.slower)),
            saturated_high_per_s=float(saturated.requests_per_s * np.exp(saturated.faster)),
            off_from=off,
            searched=has_rates,
        )
        if has_rates and test.goals.given:
            found = _with_largest(found, test, server, advance)
        if has_rates and plain is not None and server is not test.servers[plain]:
            top = min(saturated.requests_per_s, full[plain].requests_per_s)
            found = replace(found, loses=_spans_lost(test, server, test.servers[plain], top, advance))
        rates.append(found)
    return tuple(rates)


def requests_held(test: LoadTest, server: PolicyServer) -> int:
    """Requests of the mean length that the KV cache of a server holds at once, at most those of a step."""
    limits = server.limits
    prompt = round(test.sample.prompt_tokens.mean())
    blocks = limits.blocks_of(max(round(test.mean_length), 1)) - limits.shared_blocks(prompt)
    held = limits.schedulers * (limits.kv_blocks_for(1, prompt) // max(blocks, 1))
    return min(limits.max_requests, max(held, 1))


def off_from(table: StepTable, policy: Policy, length: float, most: int) -> int | None:
    """Requests from which the policy's drafts emit fewer tokens a second than a plain step does.

    One that chooses its drafts: from which no number of them emits more. Plain steps of a server without a
    drafter. most: requests that there can be. None where drafting pays up to these.
    """
    if not table.drafts_max:
        return None
    j = int(np.argmin(np.abs(table.lengths - length)))
    rate = table.rate_per_s[:, 1 : most + 1, j]
    drafting = rate[policy.count] if isinstance(policy, Fixed) else rate[1:].max(axis=0)
    loses = drafting <= rate[0]
    if not loses[-1]:
        return None
    wins = np.flatnonzero(~loses)
    return 1 if wins.size == 0 else int(wins[-1]) + 2


def _of_trial(test: LoadTest, requests: Requests) -> Requests:
    return requests.first(min(requests.count, max(SEARCH_REQUESTS // test.seeds, _LEAST_REQUESTS)))


def search_requests(test: LoadTest) -> int:
    """Requests that a trial runs for each seed."""
    return _of_trial(test, test.sample).count


def usual_requests(test: LoadTest) -> int:
    """Requests that a search usually simulates, for an estimate of its time."""
    runs = _USUAL_TRIALS * test.seeds * len(test.servers) if test.goals.given else 0
    drafting = sum(server.table.drafts_max > 0 for server in test.servers)
    runs += 2 * _USUAL_PAIRS * drafting if drafting < len(test.servers) else 0
    return search_requests(test) * runs + sum(_always_full(test, each).count for each in test.servers)


def _metrics_at(
    test: LoadTest, server: PolicyServer, rate_per_s: float, advance: Advance | None, seed: int = 0
) -> dict[str, float]:
    requests = _of_trial(test, test.requests(rate_per_s, seed)[0])
    record = server.run(requests.at_rate(rate_per_s), seed, advance)
    return metrics_of(record, server.table, server.limits, test.goals)


def _with_largest(found: Carried, test: LoadTest, server: PolicyServer, advance: Advance | None) -> Carried:
    """The largest rate: the bracket of the knee, narrowed by false position on the logarithm of the rate."""
    saturated = found.saturated_per_s
    wanted = test.goals.share
    tried: dict[float, FloatArray] = {}
    last: dict[float, Metrics] = {}

    def excess_at(rate: float) -> float:
        """Pooled share of the requests that keep the limits, less the wanted one."""
        points = [_metrics_at(test, server, rate, advance, seed) for seed in range(test.seeds)]
        last[rate] = points[0]
        tried[rate] = np.array([metrics["goodput_share"] for metrics in points])
        return float(tried[rate].mean()) - wanted

    high, excess_high = saturated, excess_at(saturated)
    if excess_high >= 0.0:
        return _carrying(found, saturated, last[saturated], None, excess_high + wanted)
    for share in _STEPS_DOWN:
        low, excess_low = share * saturated, excess_at(share * saturated)
        if excess_low >= 0.0:
            break
        high, excess_high = low, excess_low
    else:
        return replace(found, largest_per_s=0.0, best_share=excess_low + wanted)
    best = excess_low + wanted
    moved = 0
    for _ in range(_MOST_TRIALS):
        if high / low <= 1.0 + _PRECISION:
            break
        # one end that stays twice is halved in weight (the Illinois rule), so that the bracket closes
        part = np.clip(excess_low / (excess_low - excess_high), 0.1, 0.9) if high / low < 2.0 else 0.5
        middle = low * float((high / low) ** part)
        excess = excess_at(middle)
        if excess >= 0.0:
            low, excess_low = middle, excess
            excess_high, moved = excess_high * (0.5 if moved > 0 else 1.0), 1
        else:
            high, excess_high = middle, excess
            excess_low, moved = excess_low * (0.5 if moved < 0 else 1.0), -1
    return _carrying(found, low, last[low], _spread(tried, wanted), best)


def _carrying(found: Carried, rate: float, metrics: Metrics, half: float | None, best: float) -> Carried:
    """The result with its rate and 80 % interval: a step longer by e carries a rate lower by e / rho'.

    At saturation the step grows with the requests as it does there: the rate is lower by e. half: of the 95 %
    interval over the seeds. The upper end is at most what a server with faster steps is full at.
    """
    saturated = found.saturated_per_s
    growing = 1.0 if rate >= saturated else max(metrics["queue_share"], _LEAST_QUEUE_SHARE)
    chance = _OF_95 * (half or 0.0) / rate
    down, up = (np.hypot(metrics[name] / growing, chance) for name in ("step_slower", "step_faster"))
    full = np.inf if found.saturated_high_per_s is None else found.saturated_high_per_s
    low, high = float(rate * np.exp(-down)), float(min(rate * np.exp(up), full))
    return replace(
        found,
        largest_per_s=rate,
        largest_half_width=half,
        largest_low_per_s=low,
        largest_high_per_s=high,
        best_share=best,
    )


def _spread(tried: dict[float, FloatArray], wanted: float) -> float | None:
    """Half of the 95 % interval of the knee: where each seed alone crosses the wanted share."""
    rates = np.array(sorted(tried))
    shares = np.minimum.accumulate(np.stack([tried[rate] for rate in rates]), axis=0)
    crossings = [float(np.interp(-wanted, -shares[:, seed], rates)) for seed in range(shares.shape[1])]
    half = half_width(np.array(crossings))
    return half if np.isfinite(half) else None


def _spans_lost(
    test: LoadTest, server: PolicyServer, plain: PolicyServer, top: float, advance: Advance | None
) -> Spans:
    """Spans of rates up to `top` in which the mean request takes longer than with `plain`.

    By pairs of the first seed's requests, at `_COMPARED` and between two of them where one is nearly even. A
    shorter span that begins and ends between two of these is not seen.
    """

    def slower(rate: float) -> float:
        """The mean request's time over that with `plain`, on the logarithm."""
        with_drafts, without = (_metrics_at(test, one, rate, advance) for one in (server, plain))
        return float(np.log(with_drafts["e2e_mean_s"] / without["e2e_mean_s"]))

    compared = {top * share: slower(top * share) for share in _COMPARED}
    for low, high in list(pairwise(compared)):
        ends = compared[low], compared[high]
        if min(map(abs, ends)) < _NEARLY_EVEN and (ends[0] > 0.0) == (ends[1] > 0.0):
            middle = float(np.sqrt(low * high))
            compared[middle] = slower(middle)

    def edge(low: float, high: float) -> float:
        """Where drafts begin to lose, or the last rate at which they do."""
        begins = compared[high] > 0.0
        while high > (1.0 + _EDGE_PRECISION) * low:
            middle = float(np.sqrt(low * high))
            low, high = (low, middle) if (slower(middle) > 0.0) == begins else (middle, high)
        return high if begins else low

    rates = sorted(compared)
    edges = [0.0] if compared[rates[0]] > 0.0 else []
    for low, high in pairwise(rates):
        if (compared[low] > 0.0) != (compared[high] > 0.0):
            edges.append(edge(low, high))
    return tuple(zip_longest(edges[::2], edges[1::2]))


def rates_to_try(full_per_s: float, known: Sequence[Carried] = ()) -> tuple[float, ...]:
    """Rates below and above what each policy carries, and half of the least, with two digits.

    Where no limits were asked for, a quarter to nine tenths of what the first policy is full at. A policy
    that keeps its limits until it is full has no rate above: its last is the last that is surely steady.
    """
    rates = [share * full_per_s for share in (0.25, 0.5, 0.75, SURELY_STEADY)]
    knees = [policy for policy in known if policy.largest_per_s]
    if knees:
        rates = [0.5 * min(policy.largest_per_s or 0.0 for policy in knees)]
        for policy in knees:
            knee = policy.largest_per_s or 0.0
            full = policy.saturated_per_s
            bracketed = knee < BELOW_FULL * full
            around = (0.9 * knee, min(1.1 * knee, BELOW_FULL * full))
            rates += around if bracketed else (0.7 * full, SURELY_STEADY * full)
    rounded = (_two_digits(rate) for rate in sorted(rates))
    return tuple(dict.fromkeys(rate for rate in rounded if rate > 0.0))


def _two_digits(rate: float) -> float:
    """Rounded down: a rate below saturation stays below."""
    return float(_TWO_DIGITS.create_decimal_from_float(rate))
