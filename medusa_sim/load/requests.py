"""Requests: when each arrives, how long its prompt is, how many tokens it asks for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from medusa_sim.arrays import BoolArray, FloatArray, IntArray
from medusa_sim.errors import UsageError
from medusa_sim.load.arguments import MOST_IN_RUN
from medusa_sim.load.limits import SchedulerLimits

LEAST_RATE, MOST_RATE = 1e-6, 1e6
"""Requests a second: below, clocks of runs lose the milliseconds."""


def check_rate(rate_per_s: float, what: str = "rate") -> None:
    """Raises UsageError for what is no rate of requests."""
    if not LEAST_RATE <= rate_per_s <= MOST_RATE:
        raise UsageError(
            f"{what} {rate_per_s:g}: from {LEAST_RATE:g} to {MOST_RATE:g} requests a second are allowed"
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Requests:
    """Requests in the order of their arrival: arrays (requests,).

    arrival_s: seconds from the start, never falling. prompt_tokens, output_tokens: whole numbers from 1.
    users: in a closed loop, how many are in flight; a finished request is followed by the next one after
    think_s, and arrival_s holds only the first ones' times. warm: of an open loop, how many come before
    measuring begins; it then ends with the last arrival. source: where they come from, in words. cut: how
    many were drawn longer than what fits, and shortened to it.
    session: a number for each session, below 0 for a request that has none. In an open loop a request comes
    when the one before it in its session has finished and pause_s have passed, not before its arrival_s.
    cancelled: whether the client goes away before a request's whole output; its output_tokens are those until
    then. None where none does.
    """

    arrival_s: FloatArray
    prompt_tokens: IntArray
    output_tokens: IntArray
    users: int | None = None
    think_s: float = 0.0
    warm: int = 0
    source: str = "given"
    cut: int = 0
    session: IntArray | None = None
    pause_s: FloatArray | None = None
    cancelled: BoolArray | None = None

    @property
    def count(self) -> int:
        """Number of requests."""
        return int(self.prompt_tokens.size)

    @property
    def rate_per_s(self) -> float:
        """Mean arrivals a second over the span of the arrivals; infinite where all come at once."""
        span_s = float(self.arrival_s[-1] - self.arrival_s[0])
        return (self.count - 1) / span_s if span_s > 0.0 else np.inf

    @cached_property
    def before(self) -> IntArray:
        """(requests,) the request before each in its session, -1 where none is."""
        before = np.full(self.count, -1, dtype=np.int64)
        if self.session is not None:
            order = np.argsort(self.session, kind="stable")
            sessions = self.session[order]
            follows = (sessions[1:] == sessions[:-1]) & (sessions[1:] >= 0)
            before[order[1:][follows]] = order[:-1][follows]
        return before

    @cached_property
    def session_tokens(self) -> IntArray | None:
        """(requests,) tokens of each one's session up to the answer before it; None without sessions."""
        if self.session is None:
            return None
        tokens = self.prompt_tokens + self.output_tokens
        return np.where(self.before < 0, 0, tokens[self.before])

    @property
    def completes(self) -> BoolArray:
        """(requests,) whether each is served to the end of its output."""
        return np.ones(self.count, dtype=np.bool_) if self.cancelled is None else ~self.cancelled

    @property
    def longest(self) -> int:
        """Most committed tokens that any of the requests reaches."""
        return int((self.prompt_tokens + self.output_tokens).max())

    def at_rate(self, rate_per_s: float) -> Requests:
        """The same requests in the same pattern at another mean rate."""
        if self.users is not None:
            raise UsageError("a closed loop has users and no rate; give --users, or arrivals at a --rate")
        check_rate(rate_per_s)
        if self.count < 2:
            return self
        if not np.isfinite(self.rate_per_s):
            raise UsageError(
                f"requests {self.source}: all {self.count} come at once, which no --rate can stretch; leave "
                "--rate out, or give arrivals that differ"
            )
        return replace(self, arrival_s=self.arrival_s * (self.rate_per_s / rate_per_s))

    def with_cancelled(self, share: float, seed: int) -> Requests:
        """The same requests, of which a share is cancelled: each at a uniformly random point of its output.

        An engine learns of it and frees their blocks; all arrays keep their order.
        """
        if not share:
            return self
        draw = np.random.default_rng([seed, 4])
        leaves, share_served = draw.random(self.count) < share, draw.random(self.count)
        ended = np.maximum(np.ceil(share_served * self.output_tokens), 1.0).astype(np.int64)
        cancelled = leaves & (ended < self.output_tokens)
        return replace(
            self, output_tokens=np.where(cancelled, ended, self.output_tokens), cancelled=cancelled
        )

    def repeated(self, count: int, users: int) -> Requests:
        """So many requests, these over and over, in a closed loop; sessions start over each time."""
        turn, place = np.divmod(np.arange(count), self.count)
        session = None if self.session is None else self.session[place]
        if session is not None:
            session = np.where(session < 0, -1, session + turn * (session.max() + 1))
        return Requests(
            arrival_s=np.zeros(users),
            prompt_tokens=self.prompt_tokens[place],
            output_tokens=self.output_tokens[place],
            users=users,
            source=f"{self.source}, repeated",
            session=session,
            cancelled=None if self.cancelled is None else self.cancelled[place],
        )

    def first(self, count: int) -> Requests:
        """The first `count` requests."""
        return self._select(np.arange(self.count) < count)

    def _select(self, chosen: BoolArray) -> Requests:
        """The chosen requests; a closed loop keeps the first arrivals."""
        count = int(chosen.sum())
        arrival_s = self.arrival_s[:count] if self.users is not None else self.arrival_s[chosen]
        return replace(
            self,
            arrival_s=arrival_s,
            prompt_tokens=self.prompt_tokens[chosen],
            output_tokens=self.output_tokens[chosen],
            warm=min(self.warm, count // 2),
            session=None if self.session is None else self.session[chosen],
            pause_s=None if self.pause_s is None else self.pause_s[chosen],
            cancelled=None if self.cancelled is None else self.cancelled[chosen],
        )

    def fitting(self, limits: SchedulerLimits, drafts: int, *, drop_long: bool) -> tuple[Requests, int]:
        """(the requests that can be served, how many were left out).

        Raises UsageError naming the first that the model's positions or the GPU's KV cache cannot hold,
        unless drop_long.
        """
        tokens = self.prompt_tokens + self.output_tokens
        most = limits.longest_request(drafts)
        too_long = tokens > most
        if not too_long.any():
            return self, 0
        first = int(np.argmax(too_long))
        if not drop_long or too_long.all():
            why = (
                f"the model has {limits.positions} positions"
                if most == limits.positions
                else f"the GPU's KV cache holds {limits.own_kv_tokens} tokens, the drafts' slots among them"
            )
            raise UsageError(
                f"{int(too_long.sum())} of {self.count} requests are too long, the first is request {first} "
                f"with {self.prompt_tokens[first]} prompt and {self.output_tokens[first]} output tokens; at "
                f"most {most} together fit ({why}): leave them out with --drop-long, or choose another model "
                "or GPU"
            )
        return self._select(~too_long), int(too_long.sum())


def checked_requests(
    arrival_s: FloatArray,
    prompt_tokens: IntArray,
    output_tokens: IntArray,
    source: str = "given",
    session: IntArray | None = None,
    pause_s: FloatArray | None = None,
) -> Requests:
    """Requests of an open loop. Raises UsageError for none, for unordered arrivals or sizes below 1."""
    if arrival_s.size == 0:
        raise UsageError(f"requests {source}: none are left; give at least one")
    if arrival_s.size > MOST_IN_RUN:
        raise UsageError(f"requests {source}: {arrival_s.size:,}; at most {MOST_IN_RUN:,} are simulated")
    for name, sizes in (("prompt", prompt_tokens), ("output", output_tokens)):
        if sizes.min() < 1:
            place = int(np.argmin(sizes))
            raise UsageError(
                f"requests {source}: request {place} has {sizes[place]} {name} tokens; whole numbers from 1 "
                "are allowed"
            )
    falls = np.flatnonzero(np.diff(arrival_s) < 0.0)
    if falls.size:
        place = int(falls[0]) + 1
        raise UsageError(
            f"requests {source}: request {place} arrives at {arrival_s[place]:g} s, before the one above it "
            f"({arrival_s[place - 1]:g} s); sort them by arrival"
        )
    return Requests(
        arrival_s=np.ascontiguousarray(arrival_s - arrival_s[0]),
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        source=source,
        session=session,
        pause_s=pause_s,
    )
