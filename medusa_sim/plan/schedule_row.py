"""A row of a schedule: a configuration for a range of batches, with all that is known about it.

A row is a view of cells: what `quantities` declares is read from them by name at the row's fullest batch,
what a range of batches or its neighbours decide stands here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from medusa_sim.acceptance.tree import Path
from medusa_sim.arrays import FloatArray, IntArray
from medusa_sim.plan.alike import best_chain, best_speculative, is_chain, required_factor, same_option
from medusa_sim.plan.cell import Cell
from medusa_sim.plan.cells import Cells
from medusa_sim.plan.configurations import PLAIN
from medusa_sim.plan.counts import cheaper_pairs, cliffs, free_budget, near_best
from medusa_sim.plan.draft_options import DraftOption
from medusa_sim.plan.question import Question
from medusa_sim.plan.schedule import BatchRange
from medusa_sim.plan.surface import Surface
from medusa_sim.plan.verdict import Kind
from medusa_sim.step.drafter.base import Medusa

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
class ScheduleRow(Cell):
    """A configuration for batches `batch_min..batch_max` at one length.

    Every figure is at `batch_max`, the row's fullest batch, unless it says otherwise. Where not every
    batch was searched, the sizes between two rows belong to the later one. A `plain_` figure is without
    speculation, a `speculative_` one of the best configuration that does speculate. Speedups, rates and
    times per token are the step's, and with the scenario's traffic those of its server. Every quantity of
    `quantities` that cells have is one of a row, by its name.

    cells: (B, S, 1) what is run where; every: all configurations.
    """

    every: Cells
    batches: BatchRange
    question: Question

    @property
    def _surface(self) -> Surface:
        return self.every.surface

    @property
    def _j(self) -> int:
        return self.batches.configuration

    @property
    def _option(self) -> DraftOption | None:
        return self.every.configurations.option_of(self._j)

    @property
    def _rows(self) -> slice:
        """Places of the row's batches."""
        return slice(self.batches.first, self.batches.last + 1)

    @cached_property
    def _speedups(self) -> FloatArray:
        """(J,) of every configuration at the fullest batch."""
        return np.asarray(self.every.speedup[self.at, self.s])

    @cached_property
    def _steps_us(self) -> FloatArray:
        """(J,) likewise."""
        return np.asarray(self.every.step_us[self.at, self.s])

    @property
    def _tokens(self) -> FloatArray:
        """(J,) tokens per step."""
        return self.every.configurations.tokens_per_step

    # The range.

    @property
    def batch_min(self) -> int:
        """Behind the row before it, or the first that was searched."""
        batch, first = self._surface.batch, self.batches.first
        return int(batch[first - 1]) + 1 if first and not self.batches.alone else int(batch[first])

    @property
    def batch_max(self) -> int:
        """The fullest."""
        return int(self._surface.batch[self.at])

    @cached_property
    def _gains(self) -> FloatArray:
        """Speedup at each batch of the row."""
        return np.asarray(self.every.speedup[self._rows, self.s, self._j])

    @property
    def speedup_lowest(self) -> float:
        """Over the row's batches, at batch_lowest."""
        return float(self._gains.min())

    @property
    def speedup_highest(self) -> float:
        """Over the row's batches."""
        return float(self._gains.max())

    @property
    def speedup_at_batch_min(self) -> float:
        """At the first of them that was searched."""
        return float(self._gains[0])

    @property
    def batch_lowest(self) -> int:
        """Where the speedup is lowest."""
        return int(self._surface.batch[self._rows][np.argmin(self._gains)])

    def _ends(self, cells: Cells) -> list[FloatArray]:
        """(low, high) of the 80 % interval at each batch of the row."""
        return [np.broadcast_to(end, cells.shape)[self._rows, self.s, 0] for end in cells.band]

    @property
    def speedup_low(self) -> float:
        """The lowest end of the 80 % intervals over the row's batches."""
        return float(self._ends(self.cells)[0].min())

    @property
    def speedup_high(self) -> float:
        """The highest end of them."""
        return float(self._ends(self.cells)[1].max())

    # What is drafted.

    @property
    def paths(self) -> tuple[Path, ...] | None:
        """None where the acceptance profile knows no shapes."""
        return () if self._option is None else self._option.paths(self.candidates)

    @property
    def drafts(self) -> int:
        """Draft length (Medusa: heads to run)."""
        return 0 if self._option is None else self._option.drafts(self.candidates)

    @property
    def width(self) -> int:
        """Children kept a level by drafters that run level by level (0: not limited)."""
        return 0 if self._option is None else self._option.width

    @property
    def chain(self) -> bool:
        """Whether its tree has one path."""
        return self._option is not None and is_chain(self._option, self.candidates)

    @property
    def max_batch_without(self) -> int:
        """Largest batch that fits without speculation."""
        return int(self._surface.max_batch[self.s, PLAIN])

    @property
    def max_batch_with(self) -> int:
        """Largest batch that fits with the row's configuration."""
        return int(self._surface.max_batch[self.s, self._j])

    @property
    def meets_latency(self) -> bool | None:
        """None without a limit."""
        limit_us = self.question.max_latency_us
        return None if limit_us is None else bool(self.tpot_us <= limit_us)

    # The best that speculates: the row's configuration, or of a plain row the best that could.

    @property
    def _best(self) -> int:
        return best_speculative(self.every, self.at, self.s, PLAIN)

    @cached_property
    def _speculative(self) -> int:
        return self._best if self._j == PLAIN else self._j

    @cached_property
    def _would(self) -> Cells:
        """That configuration at every batch and length."""
        return self.cells if self._j != PLAIN else self.every.of(np.full((1, 1, 1), self._speculative))

    @property
    def step_speedup(self) -> float:
        """Of its step, beside which a server reads prompts."""
        return float(self._would.step_speedup[self.at, self.s, 0])

    @property
    def kernels_speedup(self) -> float | None:
        """With the engine's kernels alone; None where the runtime is no engine."""
        alone = self._would.with_kernels_alone
        return None if alone is None else float(alone.step_speedup[self.at, self.s, 0])

    @property
    def speculative_candidates(self) -> int:
        """Of the best that speculates."""
        return int(self.every.configurations.candidates[self._best])

    @property
    def speculative_speedup(self) -> float:
        """Of the best that speculates."""
        return float(self._speedups[self._best])

    @cached_property
    def _known(self) -> list[FloatArray]:
        return self._ends(self._would)

    @property
    def speculative_speedup_low(self) -> float:
        """Of what is drafted, else of the best that could be, as `speculative_speedup_high`: 80 %."""
        return float(self._known[0][-1])

    @property
    def speculative_speedup_high(self) -> float:
        """Upper end."""
        return float(self._known[1][-1])

    @property
    def verdict(self) -> Kind:
        """Whether the 80 % interval lies above 1 at all its batches, at or below 1 at all, or neither."""
        low, high = self._known
        if bool((low > 1.0).all()):
            return "pays"
        return "loses" if bool((high <= 1.0).all()) else "uncertain"

    @property
    def uncertain(self) -> tuple[int, int] | None:
        """The first and the last of its batches at which the interval holds both; None where none does."""
        low, high = self._known
        batches = self._surface.batch[self._rows][(low <= 1.0) & (high > 1.0)]
        return (int(batches[0]), int(batches[-1])) if batches.size else None

    # What acceptance it needs.

    def _speedup_if(self, times_as_long: float) -> float:
        """The speedup if the row's step took so many times as long for each of its tokens."""
        at = (self.at, self.s, 0)
        own_us = float((self.cells.in_flight.step_us / self.cells.tokens_per_step)[at])
        longer_us = float(self.cells.token_us[at]) + own_us * (times_as_long - 1.0)
        return float(np.broadcast_to(self.cells.plain.token_us, self.cells.shape)[at]) / longer_us

    def _speedup_if_accepted(self, factor: float) -> float:
        tokens = float(self._tokens[self._j])
        scaled = 1.0 if self._option is None else self._option.scaled_tokens(self.candidates, factor)
        return self._speedup_if(tokens / scaled)

    @property
    def speedup_acceptance_minus_10_percent(self) -> float:
        """With every accuracy a tenth lower."""
        return self._speedup_if_accepted(1.0 - SENSITIVITY)

    @property
    def speedup_acceptance_plus_10_percent(self) -> float:
        """With every accuracy a tenth higher."""
        return self._speedup_if_accepted(1.0 + SENSITIVITY)

    @property
    def required_tokens_per_step(self) -> float | None:
        """What the row's count (of a plain row: the best) must emit to break even; None: nothing does."""
        at, would = (self.at, self.s, 0), self._would
        own_us = float((would.in_flight.step_us / would.tokens_per_step)[at])
        plain_us = float(np.broadcast_to(would.plain.token_us, would.shape)[at])
        left_us = plain_us - float(would.token_us[at]) + own_us  # of a plain token, for the step
        return float(self._tokens[self._speculative]) * own_us / left_us if left_us > 0.0 else None

    @property
    def required_acceptance_factor(self) -> float | None:
        """By how much all accuracies would have to change for that."""
        required = self.required_tokens_per_step
        return None if required is None else required_factor(self.every, self._speculative, required)

    # Its neighbours.

    @cached_property
    def _places(self) -> IntArray:
        """Place of the best of every count that fits, at each of the row's batches."""
        return self.every.by_count.best_places()[self._rows, self.s]

    @property
    def best_candidates(self) -> int:
        """The row's own best of every count, which it gives up where it shares a row with other batches."""
        return int(self.every.configurations.counts[self._places[-1]])

    @property
    def best_speedup(self) -> float:
        """Speedup of best_candidates at the fullest batch."""
        return float(self.every.by_count.speedup[self.at, self.s, self._places[-1]])

    @property
    def near_best(self) -> tuple[int, int]:
        """Smallest and largest count around best_candidates within 1 % of it."""
        by_count, at = self.every.by_count, (self.at, self.s)
        fits = np.broadcast_to(by_count.fits, by_count.shape)[at]
        return near_best(self.every.configurations.counts, by_count.speedup[at], fits, int(self._places[-1]))

    @property
    def ends_profile(self) -> bool:
        """Whether the best count of some batch is the largest that the acceptance describes: more may pay."""
        last = self.every.configurations.counts.size - 1
        return last > 0 and bool((self._places == last).any()) and self._surface.ends_profile

    @property
    def _chain(self) -> int | None:
        return best_chain(self.every, self._speedups)

    @property
    def chain_candidates(self) -> int | None:
        """Of the best chain; None where shapes are unknown."""
        return None if self._chain is None else int(self.every.configurations.candidates[self._chain])

    @property
    def chain_speedup(self) -> float | None:
        """Of the best chain."""
        return None if self._chain is None else float(self._speedups[self._chain])

    @property
    def speedup_heads_on_accepted_row(self) -> float | None:
        """If the same heads ran after acceptance, on one row a sequence; None where they do so already."""
        on_accepted = self._surface.setting.runtime.head_rows == "accepted"
        if self._option is None or not isinstance(self._option.drafter, Medusa) or on_accepted:
            return None
        step_us = Cells(self._surface.on_accepted_rows, self.cells.index).step_us[self.at, self.s, 0]
        return self._speedup_if(float(step_us / self._steps_us[self._j]))

    @property
    def free_candidates(self) -> int:
        """Every count up to it costs at most so much more as asked; 1 where nothing is free."""
        by_count, counts = self.every.by_count, self.every.configurations.counts
        return int(counts[free_budget(by_count.overhead[self.at, self.s], self.question.free_within) - 1])

    @cached_property
    def _family(self) -> IntArray:
        """Configurations that differ from the speculative one in size alone, by count."""
        return same_option(self.every.configurations, self._speculative)

    @cached_property
    def _larger(self) -> IntArray:
        """Those with more candidates than the row."""
        sizes = self.every.configurations.candidates[self._family]
        return np.asarray(self._family[sizes > self.candidates])

    @property
    def next_count(self) -> NextCount | None:
        """What the next larger would change."""
        if self._j == PLAIN or self._larger.size == 0:
            return None
        following = int(self._larger[0])
        return NextCount(
            candidates=int(self.every.configurations.candidates[following]),
            tokens_gain=float(self._tokens[following] / self._tokens[self._j]) - 1.0,
            step_cost=float(self._steps_us[following] / self._steps_us[self._j]) - 1.0,
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
        better = self._speedups[self._larger] > self._speedups[self._j]
        if (better & self.every.fits[self.at, self.s, self._larger]).any():
            return "shared row"
        return "memory" if better.any() else "cost"

    @property
    def _counts(self) -> tuple[IntArray, FloatArray]:
        """Plain decoding and the row's family: counts, and the time of their steps."""
        counts = np.concatenate([[1], self.every.configurations.candidates[self._family]])
        return counts, self._steps_us[np.concatenate([[PLAIN], self._family])]

    @property
    def cliff_after(self) -> int | None:
        """The first count from the row's up behind which the step jumps; None without counts to compare."""
        counts, times = self._counts
        if counts.size <= _NEIGHBOURS:
            return None
        places = counts[cliffs(times) - 1]
        behind = places[places >= self.candidates]
        return int(behind[0]) if behind.size else None

    @property
    def cheaper_larger(self) -> tuple[tuple[int, int], ...]:
        """(count, larger count that is cheaper) among them."""
        return tuple(cheaper_pairs(*self._counts))


def schedule_rows(
    every: Cells, s: int, ranges: tuple[BatchRange, ...], question: Question
) -> list[ScheduleRow]:
    """The rows of these ranges of batches at the `s`-th length of a search."""
    index = np.zeros((every.shape[0], 1, 1), dtype=np.int64)
    for batches in ranges:
        index[batches.first : batches.last + 1] = batches.configuration
    run = every.of(index)
    return [
        ScheduleRow(cells=run, at=each.last, s=s, every=every, batches=each, question=question)
        for each in ranges
    ]
