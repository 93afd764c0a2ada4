"""Visits in turns with a reference kernel: what is measured on a machine that others use.

Such a machine is slower now than it was a minute ago, by a tenth or by a half. So nothing is measured in one
piece: every operator and every step is visited once, then all of them again, for as long as there is time,
and what a visit finds is divided by the state of the machine in that moment.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field

from medusa_sim.lab.measure.spread import lower_quartile
from medusa_sim.units import US_PER_S

_LEAST_ROUNDS = 2
"""So that there are passes to compare; a machine that is far too busy takes longer than its budget."""
_FIRST_SHARE = 1 / 6
"""Share of the budget that the first round may take, so that five more follow."""
_REFERENCE_ROWS, _REFERENCE_SIZE, _REFERENCE_CALLS = 128, 256, 2
_FEWEST, _MOST, _VISIT_US = 2, 8, 30_000.0
"""Times that a visit takes, and after how long it takes no more."""


def step_clock() -> Callable[[], float]:
    """Seconds of this thread's own CPU time where torch uses one thread, else of the wall clock.

    With one thread a kernel runs where it was called; what other processes take from the core in between
    is not the kernel's.
    """
    import torch

    return time.thread_time if torch.get_num_threads() == 1 else time.perf_counter


class ReferenceKernel:
    """A product that stays in the nearest caches: how fast the core is just now."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.seen_us: list[float] = []
        import torch

        generator = torch.Generator().manual_seed(0)
        self._left = torch.randn(_REFERENCE_ROWS, _REFERENCE_SIZE, generator=generator)
        self._right = torch.randn(_REFERENCE_SIZE, _REFERENCE_SIZE, generator=generator)

    def __call__(self) -> float:
        """Microseconds of the product."""
        import torch

        torch.matmul(self._left, self._right)
        started = self.clock()
        for _ in range(_REFERENCE_CALLS):
            torch.matmul(self._left, self._right)
        self.seen_us.append(US_PER_S * (self.clock() - started))
        return self.seen_us[-1]


@dataclass(frozen=True, slots=True)
class Visit:
    """Something to measure, which a round comes by so often."""

    key: Hashable
    ready: Callable[[], Callable[[], float]]
    """Warms it up; what it returns times it once a call, us."""
    often: int = 1


@dataclass(slots=True)
class Turns:
    """What the visits of a run found: by key, for each round, its times over the reference's beside it."""

    reference: Callable[[], float]
    found: dict[Hashable, list[list[float]]] = field(default_factory=dict)
    rounds: int = 0
    states_us: list[float] = field(default_factory=list)

    def take(self, visit: Visit) -> None:
        """Time it a few times, a short one oftener, and the reference as often: lower quartiles of both."""
        run = visit.ready()
        times_us: list[float] = []
        states_us: list[float] = []
        while len(times_us) < _FEWEST or (len(times_us) < _MOST and sum(times_us) < _VISIT_US):
            states_us.append(self.reference())
            times_us.append(run())
        state_us = lower_quartile(states_us)
        self.states_us.append(state_us)
        rounds = self.found.setdefault(visit.key, [])
        if len(rounds) <= self.rounds:
            rounds.append([])
        rounds[-1].append(lower_quartile(times_us) / state_us)

    @property
    def typical_us(self) -> float:
        """The state in which the run's times are given."""
        return statistics.median(self.states_us)

    def times_us(self, key: Hashable) -> list[float]:
        """One time a round, us, as of the run's typical state: the median of a round's visits."""
        return [statistics.median(ratios) * self.typical_us for ratios in self.found[key]]


def take_turns(
    turns: Turns,
    first: Sequence[Visit],
    more: Sequence[Visit],
    *,
    budget_s: float,
    is_steady: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[int]:
    """Visit all of `first` whatever the budget, of `more` what a sixth of it leaves room for, and then all
    of these round by round, at least once more, until the budget is used or nothing moves any more. Yields
    the rounds done.
    """
    started = clock()
    for visit in first:
        turns.take(visit)
    chosen = list(first)
    for visit in more:
        if clock() - started > _FIRST_SHARE * budget_s:
            break
        turns.take(visit)
        chosen.append(visit)
    turns.rounds = 1
    yield turns.rounds
    round_s = clock() - started
    while (turns.rounds < _LEAST_ROUNDS or clock() - started + round_s <= budget_s) and not is_steady():
        began = clock()
        for visit in chosen:
            turns.take(visit)
        round_s = clock() - began
        turns.rounds += 1
        yield turns.rounds
