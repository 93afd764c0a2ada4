"""Where the requests of a load test come from: drawn, in an open loop or a closed one, or a trace.

An open loop sends requests whether or not the server keeps up: Poisson, bursty, in a ramp. In a closed one
users send the next request when the last one has finished.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from medusa_sim.arrays import FloatArray
from medusa_sim.errors import UsageError
from medusa_sim.load.arguments import LoadArguments
from medusa_sim.load.lengths import Lengths
from medusa_sim.load.requests import Requests, check_rate

_WARM = 10
_LEAST_TO_WARM = 200
"""One request in so many comes before measuring begins, where there are enough; a ramp is measured whole."""


class Source(Protocol):
    """Where requests come from, at any rate and for any seed."""

    @property
    def sets_rate(self) -> bool:
        """Whether its requests have times of their own, so that no rate has to be given."""

    @property
    def mean_output_tokens(self) -> float:
        """Of a request."""

    def requests(self, rate_per_s: float | None, seed: int, most: int) -> Requests:
        """Requests at a mean rate (None: their own); lengths that are drawn are at most `most` tokens."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """Requests drawn as asked for: at a rate, or of users in a closed loop."""

    asked: LoadArguments

    @property
    def sets_rate(self) -> bool:
        """True for a closed loop."""
        return self.asked.users is not None

    @property
    def mean_output_tokens(self) -> float:
        """As asked for."""
        return self.asked.output_tokens

    def requests(self, rate_per_s: float | None, seed: int, most: int) -> Requests:
        """Requests drawn by the seed; one seed has the same pattern and lengths at every rate."""
        asked = self.asked
        lengths = Lengths(
            prompt_tokens=asked.prompt_tokens,
            output_tokens=asked.output_tokens,
            prompt_cv=asked.length_cv,
            output_cv=asked.length_cv,
        )
        if asked.users is not None:
            return closed_loop(
                asked.users, lengths, count=asked.requests, think_s=asked.think_s, seed=seed, most=most
            )
        if rate_per_s is None:
            raise UsageError("drawn requests need a rate: give --rate, or --users for a closed loop")
        first = 2.0 * rate_per_s / (1.0 + asked.ramp)
        rate = rate_per_s if asked.ramp == 1.0 else (first, first * asked.ramp)
        return open_loop(
            rate, lengths, count=asked.requests, burstiness=asked.burstiness, seed=seed, most=most
        )


@dataclass(frozen=True, slots=True)
class Traced:
    """Requests of a trace; the seed changes nothing about them."""

    trace: Requests

    @property
    def sets_rate(self) -> bool:
        """True: a trace has its own times."""
        return True

    @property
    def mean_output_tokens(self) -> float:
        """Of the trace's requests."""
        return float(self.trace.output_tokens.mean())

    def requests(self, rate_per_s: float | None, seed: int, most: int) -> Requests:
        """The trace, in its own time or with time stretched to another mean rate."""
        del seed, most
        return self.trace if rate_per_s is None else self.trace.at_rate(rate_per_s)


def open_loop(
    rate_per_s: float | tuple[float, float],
    lengths: Lengths,
    *,
    count: int,
    burstiness: float = 1.0,
    seed: int = 0,
    most: int | None = None,
) -> Requests:
    """Requests that come whether or not the server keeps up.

    rate_per_s: mean arrivals a second, or (first, last) of a ramp, linear in time. burstiness: shape of
    gamma-distributed gaps, 1 is Poisson, below 1 comes in bursts (as `vllm bench serve --burstiness`). The
    gaps are those of rate 1 with time stretched, so that one seed gives the same pattern at every rate, and
    the rate over the whole is exactly what was asked.
    most: tokens that a request may have. Raises UsageError for what is no rate.
    """
    first, last = rate_per_s if isinstance(rate_per_s, tuple) else (rate_per_s, rate_per_s)
    for rate in (first, last):
        check_rate(rate)
    random = np.random.default_rng([seed, 2])
    unit = np.cumsum(random.gamma(burstiness, 1.0 / burstiness, count))
    unit -= unit[0]
    if unit[-1] > 0.0:
        unit *= (count - 1) / unit[-1]
    prompt, output, cut = lengths.drawn(count, seed, most)
    arrival = unit / first if first == last else _ramp(unit, first, last)
    rates_text = f"{first:g} requests/s" if first == last else f"{first:g} to {last:g} requests/s"
    return Requests(
        arrival_s=arrival,
        prompt_tokens=prompt,
        output_tokens=output,
        warm=count // _WARM if first == last and count >= _LEAST_TO_WARM else 0,
        source=f"{rates_text}, burstiness {burstiness:g}",
        cut=cut,
    )


def _ramp(unit: FloatArray, first: float, last: float) -> FloatArray:
    """Times at which a rate that goes linearly from first to last has brought `unit` arrivals.

    The ramp ends with the last arrival: its length D solves (first + last) D / 2 = unit[-1].
    """
    if unit[-1] == 0.0:
        return unit
    length = 2.0 * unit[-1] / (first + last)
    slope = (last - first) / length
    return np.asarray((np.sqrt(first**2 + 2.0 * slope * unit) - first) / slope)


def closed_loop(
    users: int, lengths: Lengths, *, count: int, think_s: float = 0.0, seed: int = 0, most: int | None = None
) -> Requests:
    """`users` requests in flight: a finished one is followed by the next after think_s."""
    prompt, output, cut = lengths.drawn(count, seed, most)
    return Requests(
        arrival_s=np.zeros(min(users, count)),
        prompt_tokens=prompt,
        output_tokens=output,
        users=users,
        think_s=think_s,
        source=f"{users} users",
        cut=cut,
    )
