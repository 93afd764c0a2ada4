"""Policies of speculation: how many drafts every request gets in the next step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from dataclasses import dataclass, field
from functools import lru_cache
from operator import itemgetter
from typing import ClassVar, NamedTuple

import numpy as np

from medusa_sim.arrays import FloatArray, IntArray
from medusa_sim.errors import UsageError, shown
from medusa_sim.load.step_table import StepTable
from medusa_sim.plan.batch_ranges import merge_batches

FOREVER = 1 << 30
"""`hold_steps` of a policy that depends only on the number of requests."""
CONTEXT_STEPS = 16
"""Steps after which lengths in flight have grown enough to look again."""
_NEWTON_STEPS, _SHORTEST_STEP = 60, 1e-7
"""Of Newton's method: the most steps, and one so short that the next would be below rounding."""


class State(NamedTuple):
    """The server as a policy sees it before a step.

    requests: that decode in it; unadmitted: in the queue; mean_length: mean committed tokens of a request;
    kv_share: share of the KV cache in use; drafts: of the step before. accepted: mean drafts that a request
    had accepted in a step since the policy was last asked, None where nothing was drafted; steps: in which
    something was.
    """

    now_s: float
    requests: int
    unadmitted: int
    mean_length: float
    kv_share: float
    drafts: int
    accepted: float | None
    steps: int


class Policy(ABC):
    """Chooses the drafts of the next step; derive from it for a policy of your own.

    It is asked again after `hold_steps` steps, and before that when the number of requests that decode has
    changed, unless `asked_on_change` is False. Until then its answer holds, and a run may take steps at once.
    """

    hold_steps: ClassVar[int] = 1
    asked_on_change: ClassVar[bool] = True

    @property
    @abstractmethod
    def name(self) -> str:
        """Name under which results are listed."""

    @abstractmethod
    def drafts(self, state: State) -> int:
        """Drafts of every request, from 0 to the longest draft that the scenario describes."""

    @property
    def longest(self) -> int | None:
        """The most drafts that it ever chooses, for which its server holds memory.

        None: as many as the scenario describes.
        """
        return None


def check_drafts(policy: Policy, drafts: int, requests: int, drafts_max: int) -> int:
    """The number of drafts that a policy chose. Raises UsageError for what is none."""
    if isinstance(drafts, bool) or not isinstance(drafts, int | np.integer) or not 0 <= drafts <= drafts_max:
        raise UsageError(
            f"policy {policy.name} chose {shown(drafts)} drafts at {requests} requests; whole numbers "
            f"from 0 to {drafts_max} are allowed"
        )
    return int(drafts)


@dataclass(frozen=True)
class Fixed(Policy):
    """The same number of drafts in every step, as every engine has it; 0 loads no drafter."""

    count: int
    hold_steps: ClassVar[int] = FOREVER
    asked_on_change: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """`none`, or `K=3`."""
        return f"K={self.count}" if self.count else "none"

    def drafts(self, state: State) -> int:
        """The fixed number of drafts."""
        del state
        return self.count

    @property
    def longest(self) -> int:
        """The number of drafts, whatever the state."""
        return self.count


@dataclass(frozen=True)
class BySize(Policy):
    """Drafts by the number of requests: entries (first requests, drafts), rising from 1.

    vLLM's `num_speculative_tokens_per_batch_size`, TensorRT-LLM's `draft_len_schedule`.
    """

    entries: tuple[tuple[int, int], ...]
    name: str = "schedule"
    hold_steps: ClassVar[int] = FOREVER

    def drafts(self, state: State) -> int:
        """The drafts of the last entry that begins at or below the number of requests."""
        place = bisect_right(self.entries, max(state.requests, 1), key=itemgetter(0)) - 1
        return self.entries[max(place, 0)][1]

    @property
    def longest(self) -> int:
        """The most drafts of its entries, at least 1: the drafter is loaded even where all are 0."""
        return max(1, *(drafts for _, drafts in self.entries))


@dataclass
class Adaptive(Policy):
    """The tier that measured acceptance asks for, as SGLang does it (`--speculative-adaptive`).

    tiers: numbers of drafts to choose from. After `warmup` steps, every `hold_steps` steps: with e the moving
    average of accepted drafts, the next tier up while

        e > tier - 1/2 + up

    and the one below while e <= tier below - 1/2 + down. Acceptance alone decides, not load.
    """

    tiers: tuple[int, ...] = (1, 3, 7)
    alpha: float = 0.2
    warmup: int = 10
    down: float = -0.25
    up: float = 0.0
    name: str = "adaptive"
    hold_steps: ClassVar[int] = 5
    asked_on_change: ClassVar[bool] = False
    _tier: int = 0
    _average: float | None = None
    _steps: int = 0
    _since: int = 0

    def __post_init__(self) -> None:
        # SGLang starts at its configured number of steps; its example has 3
        self._tier = int(np.argmin(np.abs(np.asarray(self.tiers) - 3)))

    def drafts(self, state: State) -> int:
        """The tier for the next steps."""
        if state.accepted is not None:
            past = (1.0 - self.alpha) ** state.steps
            before = state.accepted if self._average is None else self._average
            self._average = past * before + (1.0 - past) * state.accepted
            self._steps += state.steps
            self._since += state.steps
        if self._average is not None and self._steps > self.warmup and self._since >= self.hold_steps:
            self._since = 0
            while self._tier + 1 < len(self.tiers) and self._average > self.tiers[self._tier] - 0.5 + self.up:
                self._tier += 1
            while self._tier and self._average <= self.tiers[self._tier - 1] - 0.5 + self.down:
                self._tier -= 1
        return self.tiers[self._tier]

    @property
    def longest(self) -> int:
        """The highest tier."""
        return max(self.tiers)


@dataclass
class ThroughputAware(Policy):
    """The tier that emits most tokens a second, by measured acceptance and a table of costs.

    As SGLang does it (`--speculative-adaptive-strategy throughput_aware`, sglang pull request 28045).
    Accepted drafts are taken as one rate for every position, whose moving average gives the tokens of every
    tier.
    step_s: (1 + drafts, 1 + requests), which dummy runs fill at the start, at the shortest contexts: it does
    not see them grow.
    """

    step_s: FloatArray = field(repr=False)
    tiers: tuple[int, ...] = (1, 3, 7)
    alpha: float = 0.2
    name: str = "throughput_aware"
    hold_steps: ClassVar[int] = 5
    asked_on_change: ClassVar[bool] = False
    _rate: float | None = None

    def drafts(self, state: State) -> int:
        """The tier for the next steps; the middle one before anything was measured."""
        if state.accepted is not None and state.drafts:
            past = (1.0 - self.alpha) ** state.steps
            now = _one_rate(state.accepted, state.drafts)
            self._rate = now if self._rate is None else past * self._rate + (1.0 - past) * now
        if self._rate is None:
            return self.tiers[len(self.tiers) // 2]
        emitted = _emitted(self._rate, max(self.tiers))
        gain = [emitted[tier] / self.step_s.item(tier, state.requests) for tier in self.tiers]
        return self.tiers[gain.index(max(gain))]

    @property
    def longest(self) -> int:
        """The highest tier."""
        return max(self.tiers)


@lru_cache(maxsize=1 << 15)  # a mean of few rows, which come again and again
def _one_rate(accepted: float, drafts: int) -> float:
    """The acceptance of every position with which a chain of so many drafts gives so many on average.

    Newton's steps down from where all positions give as little as the last: the mean rises ever faster with
    the rate.
    """
    rate: float = min((accepted / drafts) ** (1.0 / drafts), 1.0)
    for _ in range(_NEWTON_STEPS):
        estimate, slope = rate, 1.0
        for _ in range(drafts - 1):
            estimate, slope = (estimate + 1.0) * rate, slope * rate + estimate + 1.0
        step = (estimate - accepted) / slope
        rate -= step
        if step < _SHORTEST_STEP:
            break
    return max(rate, 0.0)


def _emitted(rate: float, drafts: int) -> list[float]:
    """Mean tokens of a step with chains of 0, 1, ... drafts and one rate at every position."""
    emitted = [1.0]
    for _ in range(drafts):
        emitted.append(1.0 + emitted[-1] * rate)
    return emitted


@dataclass(frozen=True)
class Budget(Policy):
    """The number of drafts whose step emits most tokens a second, looked up before every few steps.

    No engine's: what its own could gain, knowing every step's time and the profile's mean acceptance.
    best: (1 + requests, lengths) of the table, with what a loaded drafter costs.
    """

    table: StepTable = field(repr=False)
    best: IntArray = field(repr=False)
    name: str = "budget"
    hold_steps: ClassVar[int] = CONTEXT_STEPS

    @classmethod
    def from_table(cls, table: StepTable) -> Budget:
        """From the step times of a scenario."""
        rate = table.rate_per_s.copy()
        rate[0] /= 1.0 + table.idle_share[:, None]
        return cls(table=table, best=np.argmax(rate, axis=0))

    def drafts(self, state: State) -> int:
        """At the number of requests and the nearest length."""
        return self.best.item(state.requests, self.table.nearest(state.mean_length))


def schedule_for(table: StepTable, length: float) -> BySize:
    """A schedule by requests at the length of the table nearest to `length`: few entries that lose little.

    Made from steps without prompts, over plain ones of a server that has the drafter loaded. `recommend`
    merges batches in the same way, but by the time per token of a server that also reads prompts, and whose
    plain steps load no drafter: its schedule differs, and is run as `schedule=1:5,45:3`. For a runtime
    without a server both are the same.
    """
    j = int(np.argmin(np.abs(table.lengths - length)))
    seconds = table.step_s[:, 1:, j].copy()
    seconds[0] *= 1.0 + table.idle_share[1:]
    speedup = table.accepted.tokens_per_step[:, None] * seconds[0] / seconds
    ranges = merge_batches(speedup.T)
    return BySize(tuple((part.first + 1, part.configuration) for part in ranges))
