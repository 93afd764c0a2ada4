"""A row of a schedule: its batches, and how it compares with other acceptance or other counts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from medusa_sim.arrays import FloatArray, IntArray, among
from medusa_sim.grid.configurations import PLAIN
from medusa_sim.plan.batch_row import BatchRow
from medusa_sim.plan.counts import cheaper_pairs, cliffs, free_budget, near_best
from medusa_sim.step.drafter.base import Medusa
from medusa_sim.step.step import verify_step

_NEIGHBOURS = 5
"""A cliff stands out from the counts around it; a few chain lengths have none."""
SENSITIVITY = 0.10
"""Acceptance is moved by this share up and down."""

HeldBy = Literal["cost", "shared row", "memory", "end of the acceptance", "end of the search"]
"""What keeps a row from a larger count: it costs more than it gives, it would pay more at the fullest batch
but the row is shared, it does not fit, nobody knows its acceptance, or it was not searched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NextCount:
    """The next larger count of the same kind and what it would change: shares of tokens and of step time."""

    candidates: int
    tokens_gain: float
    step_cost: float


@dataclass(frozen=True, kw_only=True, eq=False)
class ScheduleRow(BatchRow):
    """A row of the schedule, and how it compares with other acceptance, more candidates or a chain."""

    # What acceptance it needs.

    def _speedup_if(self, times_as_long: float) -> float:
        """The speedup if the row's step took so many times as long for each of its tokens."""
        place = (self.b, self.s, 0)
        own_us = float((self.cells.in_flight.step_us / self.cells.tokens_per_step)[place])
        longer_us = float(self.cells.token_us[place]) + own_us * (times_as_long - 1.0)
        return float(np.broadcast_to(self.cells.plain.token_us, self.cells.shape)[place]) / longer_us

    def _speedup_if_accepted(self, factor: float) -> float:
        tokens = float(self._tokens[self._configuration])
        scaled = 1.0 if self._option is None else self._option.scaled_tokens(self.candidates, factor)
        return self._speedup_if(tokens / scaled)

    @property
    def speedup_acceptance_minus_10_percent(self) -> float:
        """The speedup with every accuracy a tenth lower."""
        return self._speedup_if_accepted(1.0 - SENSITIVITY)

    @property
    def speedup_acceptance_plus_10_percent(self) -> float:
        """The speedup with every accuracy a tenth higher."""
        return self._speedup_if_accepted(1.0 + SENSITIVITY)

    @property
    def required_tokens_per_step(self) -> float | None:
        """Tokens per step at which the row, or of a plain row the best, breaks even; None where none does."""
        place, would = (self.b, self.s, 0), self._shown_cells
        own_us = float((would.in_flight.step_us / would.tokens_per_step)[place])
        plain_us = float(np.broadcast_to(would.plain.token_us, would.shape)[place])
        left_us = plain_us - float(would.token_us[place]) + own_us  # of a plain token, for the step
        return float(self._tokens[self._shown]) * own_us / left_us if left_us > 0.0 else None

    @property
    def required_acceptance_factor(self) -> float | None:
        """Factor on every accuracy that gives `required_tokens_per_step`; None where none does."""
        required = self.required_tokens_per_step
        option = self.every.configurations.option_of(self._shown)
        if required is None or option is None:
            return None
        return option.factor_for(int(self.every.configurations.candidates[self._shown]), required)

    # Its neighbours.

    @cached_property
    def _best_columns(self) -> IntArray:
        """Column of the best of every count that fits, at each of the row's batches."""
        return self.every.by_count.best_places()[self._places, self.s]

    @property
    def best_candidates(self) -> int:
        """The best count at the fullest batch, which the row gives up where other batches share it."""
        return int(self.every.configurations.counts[self._best_columns[-1]])

    @property
    def best_speedup(self) -> float:
        """Speedup of best_candidates at the fullest batch."""
        return float(self.every.by_count.speedup[self.b, self.s, self._best_columns[-1]])

    @property
    def near_best(self) -> tuple[int, int]:
        """Smallest and largest count around best_candidates within 1 % of it."""
        by_count, place = self.every.by_count, (self.b, self.s)
        fits = np.broadcast_to(by_count.fits, by_count.shape)[place]
        best = int(self._best_columns[-1])
        return near_best(by_count.configurations.counts, by_count.speedup[place], fits, best)

    @property
    def ends_profile(self) -> bool:
        """Whether the best count of some batch is the largest that the acceptance describes: more may pay."""
        last = self.every.configurations.counts.size - 1
        return last > 0 and bool((self._best_columns == last).any()) and self._surface.ends_profile

    @property
    def _best_chain(self) -> int | None:
        """The chain that gains most; None where shapes are unknown."""
        configurations = self.every.configurations
        chains = [i for i, option in enumerate(configurations.options) if option.chain]
        members = np.flatnonzero(among(configurations.option, chains))
        return int(members[np.argmax(self._speedups[members])]) if members.size else None

    @property
    def chain_candidates(self) -> int | None:
        """Candidates of the best chain; None where shapes are unknown."""
        return (
            None if self._best_chain is None else int(self.every.configurations.candidates[self._best_chain])
        )

    @property
    def chain_speedup(self) -> float | None:
        """Speedup of the best chain; None where shapes are unknown."""
        chain = self._best_chain
        return None if chain is None else float(self._speedups[chain])

    @property
    def speedup_heads_on_accepted_row(self) -> float | None:
        """The speedup if the heads ran after acceptance, on one row a request; None where they do already."""
        on_accepted = self._surface.setting.runtime.head_rows == "accepted"
        if self._option is None or not isinstance(self._option.drafter, Medusa) or on_accepted:
            return None
        setting = replace(
            self._surface.setting,
            drafter=self._option.drafter,
            runtime=replace(self._surface.setting.runtime, head_rows="accepted"),
        )
        step_us = verify_step(setting, self.batch_max, self.seq_len, self.candidates).time_us
        return self._speedup_if(float(step_us / self._steps_us[self._configuration]))

    @property
    def free_candidates(self) -> int:
        """The largest free count: up to it overhead stays within `free_within`; 1 where nothing is free."""
        by_count, counts = self.every.by_count, self.every.configurations.counts
        return int(counts[free_budget(by_count.overhead[self.b, self.s], self.question.free_within) - 1])

    @cached_property
    def _family(self) -> IntArray:
        """Configurations that differ from the speculative one in size alone, by count."""
        return self.every.configurations.sizes_of(self._shown)

    @cached_property
    def _larger(self) -> IntArray:
        """Configurations of the family with more candidates than the row, by count."""
        sizes = self.every.configurations.candidates[self._family]
        return np.asarray(self._family[sizes > self.candidates])

    @property
    def next_count(self) -> NextCount | None:
        """What the next larger count would change; None where there is none, or nothing is drafted."""
        if self._configuration == PLAIN or self._larger.size == 0:
            return None
        following = int(self._larger[0])
        return NextCount(
            candidates=int(self.every.configurations.candidates[following]),
            tokens_gain=float(self._tokens[following] / self._tokens[self._configuration]) - 1.0,
            step_cost=float(self._steps_us[following] / self._steps_us[self._configuration]) - 1.0,
        )

    @property
    def held_by(self) -> HeldBy | None:
        """What keeps the row from more; None for a plain row."""
        option, surface = self._option, self._surface
        if option is None:
            return None
        if self._larger.size == 0:
            ends = self.candidates == self.every.configurations.counts[-1] and surface.ends_profile
            heads = surface.scenario.profile.heads
            # a chain as long as its acceptance was measured
            ends |= option.chain and heads is not None and option.depth >= heads.heads
            return "end of the acceptance" if ends else "end of the search"
        better = self._speedups[self._larger] > self._speedups[self._configuration]
        if (better & self.every.fits[self.b, self.s, self._larger]).any():
            return "shared row"
        return "memory" if better.any() else "cost"

    @property
    def _counts(self) -> tuple[IntArray, FloatArray]:
        """Plain decoding and the row's family: counts, and the time of their steps."""
        counts = np.concatenate([[1], self.every.configurations.candidates[self._family]])
        return counts, self._steps_us[np.concatenate([[PLAIN], self._family])]

    @property
    def cliff_after(self) -> int | None:
        """The first count from the row's up behind which the step jumps; None where none does."""
        counts, times = self._counts
        if counts.size <= _NEIGHBOURS:
            return None
        places = counts[cliffs(times) - 1]
        behind = places[places >= self.candidates]
        return int(behind[0]) if behind.size else None

    @property
    def cheaper_larger(self) -> tuple[tuple[int, int], ...]:
        """Pairs (count, larger count whose step is shorter) of plain decoding and the family."""
        return tuple(cheaper_pairs(*self._counts))
