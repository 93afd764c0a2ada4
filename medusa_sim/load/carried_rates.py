"""Rates that each policy carries: where it saturates, where it keeps its limits, where its drafts lose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from decimal import ROUND_DOWN, Context

import numpy as np

from medusa_sim.load.largest_rate import LargestRate, largest_rate
from medusa_sim.load.load_test import LoadTest
from medusa_sim.load.losses import USUAL_PAIRS, Spans, off_from, spans_lost
from medusa_sim.load.saturation import filling_requests, requests_held, saturation
from medusa_sim.load.serving_loop import Advance
from medusa_sim.load.trial import search_requests, trial_requests

BELOW_FULL = 0.97
"""Of saturation: beyond, queues grow for as long as a run lasts."""
SURELY_STEADY = 0.9
"""Of saturation: up to it queues end, and what still grows in a run is a server that fills."""
_USUAL_TRIALS = 6
"""Rates of a policy that are usually tried for the limits."""
_ROUNDING = 1e-9
"""Of a server: 2.1 requests/s are three of 0.7 each."""
_TWO_DIGITS = Context(prec=2, rounding=ROUND_DOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class CarriedRates(LargestRate):
    """Rates that one policy carries.

    saturated_per_s: requests a second with the server always full; above it queues grow without end.
    saturated_low_per_s, saturated_high_per_s: its 80 % interval, with the band of the step. loses: (first,
    last) rates of every span in which the mean request takes longer than without speculation, from 0 where it
    does at the lowest and to None where it does until one server is full; None where that is not known.
    off_from: requests in flight, of those that the memory holds, from which steps that draft emit fewer
    tokens a second than plain ones. searched: whether rates were tried; a closed loop has none.
    """

    policy: str
    saturated_per_s: float
    saturated_tokens_per_s: float
    saturated_low_per_s: float | None = None
    saturated_high_per_s: float | None = None
    loses: Spans | None = None
    off_from: int | None
    searched: bool = True

    def gpus_for(self, rate_per_s: float, gpus: int) -> int | None:
        """GPUs of as many equal servers as carry a rate within the limits; None where none can."""
        rate = self.saturated_per_s if self.largest_per_s is None else self.largest_per_s
        return None if rate <= 0.0 else int(np.ceil(rate_per_s / rate - _ROUNDING)) * gpus


def find_carried(test: LoadTest, advance: Advance | None = None) -> tuple[CarriedRates, ...]:
    """Search what every policy carries; the first one without speculation is what the others lose against.

    A closed loop, and requests that all come at once, have no rate to search: there only saturation is known.
    """
    has_rates = bool(np.isfinite(trial_requests(test, test.sample).rate_per_s))
    full = [saturation(test, server, advance) for server in test.servers]
    plain = next((i for i, server in enumerate(test.servers) if server.table.drafts_max == 0), None)
    carried = []
    for server, saturated in zip(test.servers, full, strict=True):
        off = off_from(server.table, server.policy(), test.mean_length, requests_held(test, server))
        within, loses = LargestRate(), None
        if has_rates and test.slos.given:
            within = largest_rate(test, server, saturated, advance)
        if has_rates and plain is not None and server is not test.servers[plain]:
            # by the first seed alone, over all rates at which both servers keep up
            top = min(saturated.requests_per_s, full[plain].requests_per_s)
            loses = spans_lost(test, server, test.servers[plain], top, advance)
        found = CarriedRates(
            **asdict(within),
            policy=server.name,
            saturated_per_s=saturated.requests_per_s,
            saturated_tokens_per_s=saturated.tokens_per_s,
            saturated_low_per_s=saturated.low_per_s,
            saturated_high_per_s=saturated.high_per_s,
            loses=loses,
            off_from=off,
            searched=has_rates,
        )
        carried.append(found)
    return tuple(carried)


def usual_requests(test: LoadTest) -> int:
    """Requests that a search usually simulates, for an estimate of its time."""
    runs = _USUAL_TRIALS * test.seeds * len(test.servers) if test.slos.given else 0
    drafting = sum(server.table.drafts_max > 0 for server in test.servers)
    runs += 2 * USUAL_PAIRS * drafting if drafting < len(test.servers) else 0
    return search_requests(test) * runs + sum(filling_requests(test, server).count for server in test.servers)


def rates_to_try(full_per_s: float, carried: Sequence[CarriedRates] = ()) -> tuple[float, ...]:
    """Rates below and above what each policy carries, and half of the least, with two digits.

    Where no limits were asked for, a quarter to nine tenths of what the first policy is full at. A policy
    that keeps its limits until it is full has no rate above: its last is the last that is surely steady.
    """
    rates = [share * full_per_s for share in (0.25, 0.5, 0.75, SURELY_STEADY)]
    knees = [policy for policy in carried if policy.largest_per_s]
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
