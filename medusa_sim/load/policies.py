"""Policies of speculation: how many drafts the next step carries.

A policy is any object with `name` and `choose(state) -> drafts`. It is asked at least whenever a request
comes or goes, and after `hold_steps` steps (1 where it has no such attribute), so that one that only looks at
the number of requests can be asked seldom.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np

from medusa_sim.errors import UsageError, shown
from medusa_sim.load.step_table import StepTable
from medusa_sim.plan.defaults import SWITCHING_GAIN
from medusa_sim.plan.schedule import merge_batches

UNTIL_CHANGE = 1 << 30
"""`hold_steps` of a policy that depends on the number of requests alone."""
_CONTEXT_STEPS = 16
"""Steps after which lengths in flight have grown enough to look again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
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


def chosen(policy: Policy, state: State, drafts_max: int) -> int:
    """The policy's choice. Raises UsageError for what is no number of drafts."""
    drafts = policy.choose(state)
    if isinstance(drafts, bool) or not isinstance(drafts, int | np.integer) or not 0 <= drafts <= drafts_max:
        raise UsageError(
            f"policy {policy.name} chose {shown(drafts)} drafts at {state.requests} requests; whole numbers "
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
    hold_steps: int = _CONTEXT_STEPS

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
    _tier: int = 0
    _average: float | None = None
    _steps: int = 0
    _since: int = 0

    def __post_init__(self) -> None:
        # SGLang starts at its configured number of steps; its example has 3
        self._tier = int(np.argmin(np.abs(np.asarray(self.tiers) - 3)))

    def choose(self, state: State) -> int:
        """The tier for the next steps."""
        if state.accepted is not None:
            kept = (1.0 - self.alpha) ** state.steps
            before = state.accepted if self._average is None else self._average
            self._average = kept * before + (1.0 - kept) * state.accepted
            self._steps += state.steps
            self._since += state.steps
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

    (`--speculative-adaptive-strategy throughput_aware`, sglang pull request 28045.) seconds: (K, b) of the
    table, which dummy runs fill when the server starts, at the shortest contexts: it does not see them grow.
    Accepted drafts are taken as one rate for every position, whose moving average gives the tokens of every
    tier.
    """

    seconds: np.ndarray = field(repr=False)
    tiers: tuple[int, ...] = (1, 3, 7)
    alpha: float = 0.2
    name: str = "throughput_aware"
    hold_steps: int = 5
    _rate: float | None = None

    def choose(self, state: State) -> int:
        """The tier for the next steps; the middle one before anything was measured."""
        if state.accepted is not None and state.drafts:
            kept = (1.0 - self.alpha) ** state.steps
            now = _one_rate(state.accepted, state.drafts)
            self._rate = now if self._rate is None else kept * self._rate + (1.0 - kept) * now
        if self._rate is None:
            return self.tiers[len(self.tiers) // 2]
        rate, requests = self._rate, max(state.requests, 1)
        gain = [
            (1.0 + sum(rate**i for i in range(1, drafts + 1))) / self.seconds[drafts, requests]
            for drafts in self.tiers
        ]
        return self.tiers[int(np.argmax(gain))]


def _one_rate(accepted: float, drafts: int) -> float:
    """The acceptance of every position with which a chain of so many drafts gives so many in the mean."""
    low, high = 0.0, 1.0
    for _ in range(30):
        middle = 0.5 * (low + high)
        low, high = (
            (middle, high) if sum(middle**i for i in range(1, drafts + 1)) < accepted else (low, middle)
        )
    return high


@dataclass(frozen=True, slots=True)
class Budget:
    """The number of drafts whose step emits most tokens a second, looked up before every few steps.

    best: (b, S) of the table, with the mean acceptance of the profile and what a loaded drafter costs.
    """

    table: StepTable
    best: np.ndarray = field(repr=False)
    name: str = "budget"
    hold_steps: int = _CONTEXT_STEPS

    @classmethod
    def of(cls, table: StepTable) -> Budget:
        """From the step times of a scenario."""
        rate = table.rate_per_s.copy()
        rate[0] /= 1.0 + table.idle_share[:, None]
        return cls(table=table, best=np.argmax(rate, axis=0))

    def choose(self, state: State) -> int:
        """At the number of requests and the nearest length."""
        j = self.table.place(state.mean_length)
        lengths = self.table.lengths
        nearer = state.mean_length - lengths[j] > lengths[j + 1] - state.mean_length
        return int(self.best[state.requests, j + int(nearer)])


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


ENGINE_NAMES = {
    "num_speculative_tokens_per_batch_size": "schedule",
    "speculative-adaptive": "adaptive",
    "draft_len_schedule": "schedule",
}
"""Settings of vLLM, SGLang and TensorRT-LLM that mean one of the policies here."""
NOT_SIMULATED = {
    "adaptive-verification": "vLLM's drops drafts by their confidence, which is not drawn",
    "enable_adaptive_verification": "vLLM's drops drafts by their confidence, which is not drawn",
    "priority": "requests are served first come first served",
}
"""Names that engines have, and why they mean nothing here."""
NAMES = (
    "none", "K", "schedule", "schedule=1:5,32:3,96:0", "draft_len_schedule=31:5,95:3", "schedule-context",
    "adaptive", "throughput_aware", "budget",
)  # fmt: skip
"""Forms of a policy's name; K is a whole number."""
_COMPUTED = ("schedule", "schedule-context", "adaptive", "throughput_aware", "budget")
_UP_TO = "draft_len_schedule"
"""TensorRT-LLM's form: drafts up to so many requests, none beyond the last (pull request 10860)."""


def drafts_asked(names: Sequence[str], known: int) -> int:
    """Longest draft that policies of these names may run, of `known` that the scenario describes.

    Raises UsageError for a name that means nothing, or that asks for more drafts.
    """
    longest = 0
    for name in names:
        entries = _entries(name)
        most = known if entries is None else max(drafts for _, drafts in entries)
        if most > known:
            raise UsageError(
                f"policy {shown(name)} drafts {most} tokens and the acceptance describes {known}: choose "
                "fewer, or a profile measured further out"
            )
        longest = max(longest, most if _fixed(name) is not None else known)
    return longest


def never_drafts(names: Sequence[str]) -> bool:
    """Whether all of these names are `none`, which takes no drafter."""
    return all(_fixed(name) == 0 for name in names)


def policy_of(name: str, table: StepTable, length: float) -> Policy:
    """The policy of a name that `drafts_asked` let pass. length: typical committed tokens of a request.

    Raises UsageError for a name that means nothing.
    """
    drafts, entries = _fixed(name), _entries(name)
    if drafts is not None:
        return Fixed(drafts)
    if entries is not None:
        return BySize(entries, name=name)
    computed: dict[str, Callable[[], Policy]] = {
        "schedule": lambda: schedule_of(table, length),
        "schedule-context": lambda: schedule_by_context(table),
        "adaptive": lambda: Adaptive(tiers=_tiers(table)),
        "throughput_aware": lambda: ThroughputAware(seconds=table.step_s[:, :, 0], tiers=_tiers(table)),
        "budget": lambda: Budget.of(table),
    }
    return computed[name]()


def _tiers(table: StepTable) -> tuple[int, ...]:
    """SGLang's numbers of drafts, as far as the table goes."""
    return tuple(sorted({min(tier, table.drafts_max) for tier in (1, 3, 7)}))


def _fixed(name: str) -> int | None:
    """0 for `none`, the number for `3` or `K=3`, None for another form."""
    text = name.strip().removeprefix("K=").removeprefix("k=")
    if text == "none":
        return 0
    return int(text) if text.isascii() and text.isdigit() and len(text) < 4 else None


def _entries(name: str) -> tuple[tuple[int, int], ...] | None:
    """(first requests, drafts) that a name gives; None where they are computed. Raises UsageError."""
    fixed = _fixed(name)
    if fixed is not None:
        return ((1, fixed),)
    if name in _COMPUTED:
        return None
    kind, _, given = name.partition("=")
    if name in NOT_SIMULATED:
        raise UsageError(
            f"policy {shown(name)} is not simulated: {NOT_SIMULATED[name]}; give one of {', '.join(NAMES)}"
        )
    if kind not in ("schedule", _UP_TO):
        raise UsageError(f"policy {shown(name)}: give one of {', '.join(NAMES)}")
    try:
        pairs = [tuple(int(part) for part in entry.split(":")) for entry in given.split(",")]
        entries = tuple((first, drafts) for first, drafts in pairs)
    except ValueError:
        raise UsageError(f"policy {shown(name)}: entries are REQUESTS:DRAFTS, as in 1:5,32:3,96:0") from None
    if kind == _UP_TO:
        lasts = [last for last, _ in entries]
        entries = tuple(
            zip((1, *(last + 1 for last in lasts)), (*(drafts for _, drafts in entries), 0), strict=True)
        )
    firsts = [first for first, _ in entries]
    if firsts[0] != 1 or firsts != sorted(set(firsts)) or min(drafts for _, drafts in entries) < 0:
        raise UsageError(f"policy {shown(name)}: entries rise from 1 request, as in 1:5,32:3,96:0")
    return entries
