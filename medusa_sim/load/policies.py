"""Policies of speculation: how many drafts the next step carries.

A policy is any object with `name` and `choose(state) -> drafts`. It is queried whenever a request comes or
goes, and every `hold_steps` steps (default 1): policies that depend only on batch size are queried rarely.
With `waits = True` it is queried every `hold_steps` steps only. A policy with `at` is queried by `at` instead
of `choose`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np

from medusa_sim.arrays import FloatArray
from medusa_sim.errors import UsageError, shown
from medusa_sim.load.step_table import StepTable
from medusa_sim.plan import SWITCHING_GAIN
from medusa_sim.plan.schedule import merge_batches

UNTIL_CHANGE = 1 << 30
"""`hold_steps` of a policy that depends on the number of requests alone."""
_STEPS, _EDGE = 60, 1e-7
"""Of Newton's method: the most steps, and one so short that the next would be below rounding."""
CONTEXT_STEPS = 16
"""Steps after which lengths in flight have grown enough to look again."""


@dataclass(frozen=True, eq=False)
class Costs:
    """Seconds of steps as a policy believes them: its engine's table of one context, or the right one.

    context: committed tokens of a request when they were measured; None: as they are.
    """

    table: StepTable
    context: float | None = None
    _listed: dict[tuple[int, int], list[float]] = field(default_factory=dict, repr=False)

    @cached_property
    def measured(self) -> FloatArray:
        """(K, b) seconds at that context."""
        return self.table.at(0.0 if self.context is None else self.context)

    def place(self, length: float) -> int:
        """What of a length in the mean it depends on: the nearest of the table's, or nothing."""
        return self.table.nearest(length) if self.context is None else 0

    def at(self, requests: int, place: int) -> FloatArray:
        """(K,) seconds for so many requests of a length in that place."""
        return self.table.step_s[:, requests, place] if self.context is None else self.measured[:, requests]

    def listed(self, requests: int, length: float) -> list[float]:
        """`at` of a length in the mean, looked up from the second time on."""
        key = requests, self.place(length)
        costs = self._listed.get(key)
        if costs is None:
            costs = self._listed[key] = self.at(*key).tolist()
        return costs


class State(NamedTuple):
    """What a policy sees before a step.

    requests: that decode in it; waiting: not yet admitted; mean_length: committed tokens of a request in the
    mean; kv_share: of the KV cache in use; drafts: of the step before; accepted: mean drafts accepted by a
    request in each step since the policy was last asked, None where none speculated; steps: since then.
    """

    now_s: float
    requests: int
    waiting: int
    mean_length: float
    kv_share: float
    drafts: int
    accepted: float | None
    steps: int


@runtime_checkable
class Policy(Protocol):
    """Anything that chooses the number of drafts of the next step."""

    @property
    def name(self) -> str:
        """What results are listed under."""

    def choose(self, state: State) -> int:
        """Drafts of the next step: from 0 to the longest draft that the scenario describes."""


At: TypeAlias = Callable[[int, float, int, float | None, int], int]
"""Drafts by what a policy looks at: requests, mean_length, drafts, accepted and steps of a `State`."""


@runtime_checkable
class ByNumbers(Policy, Protocol):
    """One that looks at no more of a `State`, and is asked by that alone."""

    def at(self, requests: int, length: float, drafts: int, accepted: float | None, steps: int) -> int:
        """`choose` by what it looks at."""


def at_of(policy: Policy) -> At | None:
    """`at` of a policy; None where only a whole state will do: it has none, or a `choose` of its own."""
    if not isinstance(policy, ByNumbers):
        return None
    owners = [next(kind for kind in type(policy).__mro__ if name in vars(kind)) for name in ("at", "choose")]
    return policy.at if owners[0] is owners[1] else None


def longest_draft(policy: Policy, described: int) -> int:
    """The most drafts that a policy ever chooses, which its server holds memory for.

    described: by the scenario; what a policy that may choose any number has, and one that never says.
    """
    match policy:
        case Fixed(drafts=drafts):
            return drafts
        case BySize(entries=entries):
            return max(1, *(drafts for _, drafts in entries))
        case BySizeAndLength(schedules=schedules):
            return max(longest_draft(each, described) for each in schedules)
        case Adaptive(tiers=tiers) | ThroughputAware(tiers=tiers):
            return max(tiers)
    return described


def chosen(policy: Policy, state: State, drafts_max: int) -> int:
    """The policy's choice. Raises UsageError for what is no number of drafts."""
    return checked(policy, policy.choose(state), state.requests, drafts_max)


def checked(policy: Policy, drafts: int, requests: int, drafts_max: int) -> int:
    """What a policy chose at so many requests. Raises UsageError for what is no number of drafts."""
    if type(drafts) is int and 0 <= drafts <= drafts_max:
        return drafts
    if isinstance(drafts, bool) or not isinstance(drafts, int | np.integer) or not 0 <= drafts <= drafts_max:
        raise UsageError(
            f"policy {policy.name} chose {shown(drafts)} drafts at {requests} requests; whole numbers "
            f"from 0 to {drafts_max} are allowed"
        )
    return int(drafts)


@dataclass(frozen=True, slots=True)
class Fixed:
    """The same number of drafts in every step; 0 is no speculation, and no drafter is loaded."""

    drafts: int
    hold_steps: int = UNTIL_CHANGE

    @property
    def name(self) -> str:
        """`none`, or `K=3`."""
        return f"K={self.drafts}" if self.drafts else "none"

    def choose(self, state: State) -> int:
        """The same whatever the state."""
        del state
        return self.drafts


@dataclass(frozen=True, slots=True)
class BySize:
    """Drafts by the number of requests: entries (first requests, drafts), rising from 1 (vLLM's schedule)."""

    entries: tuple[tuple[int, int], ...]
    name: str = "schedule"
    hold_steps: int = UNTIL_CHANGE

    def choose(self, state: State) -> int:
        """The drafts of the last entry that begins at or below the number of requests."""
        place = bisect_right(self.entries, (max(state.requests, 1), UNTIL_CHANGE)) - 1
        return self.entries[max(place, 0)][1]


@dataclass(frozen=True, slots=True)
class BySizeAndLength:
    """Drafts by requests and mean length: a schedule for each of the lengths, the nearest below counts."""

    lengths: tuple[float, ...]
    schedules: tuple[BySize, ...]
    name: str = "schedule-context"
    hold_steps: int = CONTEXT_STEPS

    def choose(self, state: State) -> int:
        """The schedule of the last length at or below the mean one."""
        return self.schedules[max(bisect_right(self.lengths, state.mean_length) - 1, 0)].choose(state)


@dataclass(slots=True)
class Adaptive:
    """The tier that measured acceptance asks for, as SGLang does it (`--speculative-adaptive`).

    tiers: numbers of drafts to choose from. After `warmup` steps, every `interval` steps: with e the moving
    average of accepted drafts, the next tier up while round(e) + 1 lies above this one, the one below while
    it lies at or below that, each with its hysteresis. Acceptance alone decides, not load.
    """

    tiers: tuple[int, ...] = (1, 3, 7)
    alpha: float = 0.2
    warmup: int = 10
    interval: int = 5
    down: float = -0.25
    up: float = 0.0
    name: str = "adaptive"
    hold_steps: int = 5
    waits: bool = True
    _tier: int = 0
    _average: float | None = None
    _steps: int = 0
    _since: int = 0

    def __post_init__(self) -> None:
        # SGLang starts at its configured number of steps; its example has 3
        self._tier = int(np.argmin(np.abs(np.asarray(self.tiers) - 3)))

    def choose(self, state: State) -> int:
        """The tier for the next steps."""
        return self.at(state.requests, state.mean_length, state.drafts, state.accepted, state.steps)

    def at(self, requests: int, length: float, drafts: int, accepted: float | None, steps: int) -> int:
        """`choose` by what it looks at."""
        del requests, length, drafts
        if accepted is not None:
            kept = (1.0 - self.alpha) ** steps
            before = accepted if self._average is None else self._average
            self._average = kept * before + (1.0 - kept) * accepted
            self._steps += steps
            self._since += steps
        if self._average is not None and self._steps > self.warmup and self._since >= self.interval:
            self._since = 0
            while self._tier + 1 < len(self.tiers) and self._average > self.tiers[self._tier] - 0.5 + self.up:
                self._tier += 1
            while self._tier and self._average <= self.tiers[self._tier - 1] - 0.5 + self.down:
                self._tier -= 1
        return self.tiers[self._tier]


@dataclass(slots=True)
class ThroughputAware:
    """The tier that emits most tokens a second by measured acceptance and by a table of costs, as SGLang's.

    (`--speculative-adaptive-strategy throughput_aware`, sglang pull request 28045.) costs: the table, which
    dummy runs fill when the server starts, at the shortest contexts: it does not see them grow. Accepted
    drafts are taken as one rate for every position, whose moving average gives the tokens of every tier.
    """

    costs: Costs = field(repr=False)
    tiers: tuple[int, ...] = (1, 3, 7)
    alpha: float = 0.2
    name: str = "throughput_aware"
    hold_steps: int = 5
    waits: bool = True
    _rate: float | None = None

    def choose(self, state: State) -> int:
        """The tier for the next steps; the middle one before anything was measured."""
        return self.at(state.requests, state.mean_length, state.drafts, state.accepted, state.steps)

    def at(self, requests: int, length: float, drafts: int, accepted: float | None, steps: int) -> int:
        """`choose` by what it looks at."""
        if accepted is not None and drafts:
            kept = (1.0 - self.alpha) ** steps
            now = _one_rate(accepted, drafts)
            self._rate = now if self._rate is None else kept * self._rate + (1.0 - kept) * now
        if self._rate is None:
            return self.tiers[len(self.tiers) // 2]
        seconds, emitted = self.costs.listed(requests, length), _emitted(self._rate, max(self.tiers))
        gain = [emitted[tier] / seconds[tier] for tier in self.tiers]
        return self.tiers[gain.index(max(gain))]


@lru_cache(maxsize=1 << 15)  # a mean of few rows, which come again and again
def _one_rate(accepted: float, drafts: int) -> float:
    """The acceptance of every position with which a chain of so many drafts gives so many in the mean.

    Newton's steps down from where all positions give as little as the last: the mean rises ever faster with
    the rate.
    """
    rate: float = min((accepted / drafts) ** (1.0 / drafts), 1.0)
    for _ in range(_STEPS):
        estimate, slope = rate, 1.0
        for _ in range(drafts - 1):
            estimate, slope = (estimate + 1.0) * rate, slope * rate + estimate + 1.0
        step = (estimate - accepted) / slope
        rate -= step
        if step < _EDGE:
            break
    return max(rate, 0.0)


def _emitted(rate: float, drafts: int) -> list[float]:
    """Mean tokens of a step with chains of 0, 1, ... drafts and one rate at every position."""
    emitted = [1.0]
    for _ in range(drafts):
        emitted.append(1.0 + emitted[-1] * rate)
    return emitted


@dataclass(frozen=True, slots=True)
class Budget:
    """The number of drafts whose step emits most tokens a second, looked up before every few steps.

    best: (b, S) of the table, with the mean acceptance of the profile and what a loaded drafter costs.
    """

    table: StepTable
    best: np.ndarray = field(repr=False)
    name: str = "budget"
    hold_steps: int = CONTEXT_STEPS

    @classmethod
    def of(cls, table: StepTable) -> Budget:
        """From the step times of a scenario."""
        rate = table.rate_per_s.copy()
        rate[0] /= 1.0 + table.idle_share[:, None]
        return cls(table=table, best=np.argmax(rate, axis=0))

    def choose(self, state: State) -> int:
        """At the number of requests and the nearest length."""
        return self.at(state.requests, state.mean_length, state.drafts, state.accepted, state.steps)

    def at(self, requests: int, length: float, drafts: int, accepted: float | None, steps: int) -> int:
        """`choose` by what it looks at."""
        del drafts, accepted, steps
        best: int = self.best.item(requests, self.table.nearest(length))
        return best


def schedule_of(table: StepTable, length: float, gain: float = SWITCHING_GAIN) -> BySize:
    """The schedule by requests that `recommend` would write at one length: few entries that lose little."""
    j = int(np.argmin(np.abs(table.lengths - length)))
    seconds = table.step_s[:, 1:, j].copy()
    seconds[0] *= 1.0 + table.idle_share[1:]
    speedup = table.tokens_per_step[:, None] * seconds[0] / seconds
    ranges = merge_batches(speedup.T, gain=gain)
    return BySize(tuple((part.first + 1, part.configuration) for part in ranges))


def schedule_by_context(table: StepTable, gain: float = SWITCHING_GAIN) -> BySizeAndLength:
    """A schedule at every length of the table."""
    lengths = tuple(float(length) for length in table.lengths)
    return BySizeAndLength(lengths, tuple(schedule_of(table, length, gain) for length in lengths))
