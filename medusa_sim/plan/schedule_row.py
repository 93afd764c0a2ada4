"""A row of a schedule: batches of one length that share a configuration, and what is known about it there.

A row is a view of cells: what `quantities` declares is read from them by name at its fullest batch. Here
stands what depends on all of its batches, and how it compares with other counts and other acceptance.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from medusa_sim.acceptance.tree import Path
from medusa_sim.arrays import FloatArray, IntArray
from medusa_sim.grid.cell import Cell
from medusa_sim.grid.cells import Cells
from medusa_sim.grid.configurations import PLAIN
from medusa_sim.grid.surface import Surface
from medusa_sim.plan.batch_ranges import BatchRange
from medusa_sim.plan.counts import cheaper_pairs, cliffs, free_budget, near_best
from medusa_sim.plan.verdict import Verdict
from medusa_sim.scenario.draft_options import DraftOption
from medusa_sim.scenario.question import Question
from medusa_sim.step.drafter.medusa import Medusa
from medusa_sim.step.step import speculative_step

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
    """A configuration that runs batches `batch_min..batch_max` at one length.

    Every figure is at `batch_max`, the row's fullest batch, unless it says otherwise. Where not every
    batch was searched, the sizes between two rows belong to the later one. A `plain_` figure is without
    speculation, a `speculative_` one with what the row drafts, of a plain row with the best that it
    could. Speedups, rates and times per token are the step's, and with the scenario's traffic those of its
    server.

    cells: (B, S, 1) what the schedule runs where; every: (B, S, J) all configurations.
    """

    every: Cells
    batches: BatchRange
    question: Question

    @property
    def _surface(self) -> Surface:
        return self.every.surface

    @property
    def _configuration(self) -> int:
        return self.batches.configuration

    @property
    def _option(self) -> DraftOption | None:
        return self.every.configurations.option_of(self._configuration)

    @property
    def _places(self) -> slice:
        """Places of the row's batches."""
        return slice(self.batches.first, self.batches.last + 1)

    @cached_property
    def _speedups(self) -> FloatArray:
        """(J,) of every configuration at the fullest batch."""
        return self.every.speedup_at(self.b, self.s)

    @cached_property
    def _steps_us(self) -> FloatArray:
        """(J,) step of every configuration at the fullest batch."""
        return np.asarray(self.every.step_us[self.b, self.s])

    @property
    def _tokens(self) -> FloatArray:
        """(J,) tokens per step."""
        return self.every.configurations.tokens_per_step

    # The range.

    @property
    def batch_min(self) -> int:
        """The smallest batch: behind the row before it, or the first that was searched."""
        batch, first = self._surface.batch, self.batches.first
        return int(batch[first - 1]) + 1 if first and not self.batches.begins_at_first else int(batch[first])

    @property
    def batch_max(self) -> int:
        """The largest batch, at which the row's figures are."""
        return int(self._surface.batch[self.b])

    @cached_property
    def _speedup_by_batch(self) -> FloatArray:
        """(batches,) speedup of the configuration at each batch of the row."""
        return np.asarray(self.cells.speedup[self._places, self.s, 0])

    @property
    def speedup_lowest(self) -> float:
        """The lowest speedup of the row's batches."""
        return float(self._speedup_by_batch.min())

    @property
    def speedup_highest(self) -> float:
        """The highest speedup of the row's batches."""
        return float(self._speedup_by_batch.max())

    @property
    def speedup_at_batch_min(self) -> float:
        """Speedup at the first batch of the row that was searched."""
        return float(self._speedup_by_batch[0])

    @property
    def batch_lowest(self) -> int:
        """The batch at which the speedup is lowest."""
        return int(self._surface.batch[self._places][np.argmin(self._speedup_by_batch)])

    def _band_by_batch(self, cells: Cells) -> list[FloatArray]:
        """(low, high) ends of the 80 % interval of the speedup, (batches,) each, of cells (B, S, 1)."""
        return [np.broadcast_to(end, cells.shape)[self._places, self.s, 0] for end in cells.band]

    @property
    def speedup_low(self) -> float:
        """The lowest end of the 80 % intervals over the row's batches."""
        return float(self._band_by_batch(self.cells)[0].min())

    @property
    def speedup_high(self) -> float:
        """The highest end of the 80 % intervals over the row's batches."""
        return float(self._band_by_batch(self.cells)[1].max())

    # What is drafted.

    @property
    def paths(self) -> tuple[Path, ...] | None:
        """Paths of the tree, root implied; None where the acceptance profile knows no shapes."""
        return () if self._option is None else self._option.paths(self.candidates)

    @property
    def drafts(self) -> int:
        """Draft length (Medusa: heads to run); 0 of plain decoding."""
        return 0 if self._option is None else self._option.drafts(self.candidates)

    @property
    def width(self) -> int:
        """Children that a drafter keeps on each level of its tree; 0: as many as there are."""
        return 0 if self._option is None else self._option.width

    @property
    def chain(self) -> bool:
        """Whether its tree is a chain."""
        return self._option is not None and self._option.is_chain(self.candidates)

    @property
    def max_batch_without(self) -> int:
        """Largest batch that fits without speculation."""
        return int(self._surface.max_batch[self.s, PLAIN])

    @property
    def max_batch_with(self) -> int:
        """Largest batch that fits with the row's configuration."""
        return int(self._surface.max_batch[self.s, self._configuration])

    @property
    def meets_latency(self) -> bool | None:
        """Whether a token takes no longer than was asked; None where no limit was given."""
        limit_us = self.question.max_latency_us
        return None if limit_us is None else bool(self.tpot_us <= limit_us)

    @property
    def step_speedup(self) -> float:
        """Speedup of the step alone, without the prompts that a server reads beside it; 1 of a plain row."""
        return float(self.cells.step_speedup[self.b, self.s, 0])

    @property
    def kernels_speedup(self) -> float | None:
        """Speedup with the engine's kernels alone, 1 of a plain row; None where the runtime is no engine."""
        alone = self.cells.with_kernels_alone
        return None if alone is None else float(alone.step_speedup[self.b, self.s, 0])

    # What speculates: the row's configuration, or of a plain row the best that could.

    @property
    def _best_drafting(self) -> int:
        """The configuration that gains most of those that draft."""
        return 1 + int(np.argmax(self._speedups[1:]))

    @cached_property
    def _shown(self) -> int:
        """The row's configuration, or of a plain row the best that drafts."""
        return self._best_drafting if self._configuration == PLAIN else self._configuration

    @cached_property
    def _shown_cells(self) -> Cells:
        """(B, S, 1) the configuration of `_shown` at every batch and length."""
        return (
            self.cells if self._configuration != PLAIN else self.every.with_index(np.array([[[self._shown]]]))
        )

    @property
    def speculative_candidates(self) -> int:
        """Candidates of what is drafted, or of the best that could be."""
        return int(self.every.configurations.candidates[self._shown])

    @property
    def speculative_speedup(self) -> float:
        """Speedup of what is drafted, or of the best that could be, at the fullest batch."""
        return float(self._speedups[self._shown])

    @cached_property
    def _speculative_band(self) -> list[FloatArray]:
        return self._band_by_batch(self._shown_cells)

    @property
    def speculative_speedup_low(self) -> float:
        """Lower end of the 80 % interval of what is drafted, or of the best that could be."""
        return float(self._speculative_band[0][-1])

    @property
    def speculative_speedup_high(self) -> float:
        """Upper end of the 80 % interval of what is drafted, or of the best that could be."""
        return float(self._speculative_band[1][-1])

    @property
    def verdict(self) -> Verdict:
        """`pays` where all 80 % intervals lie above 1, `loses` where none reaches above, else `uncertain`."""
        low, high = self._speculative_band
        if bool((low > 1.0).all()):
            return "pays"
        return "loses" if bool((high <= 1.0).all()) else "uncertain"

    @property
    def uncertain(self) -> tuple[int, int] | None:
        """First and last batch whose 80 % interval holds a gain and a loss; None where none does."""
        low, high = self._speculative_band
        batches = self._surface.batch[self._places][(low <= 1.0) & (high > 1.0)]
        return (int(batches[0]), int(batches[-1])) if batches.size else None

    # What acceptance it needs.

    def _speedup_if(self, times_as_long: float) -> float:
        """The speedup if the row's step took so many times as long for each of its tokens."""
        place = (self.b, self.s, 0)
        own_us = float((self.cells.steps.in_flight.time_us / self.cells.tokens_per_step)[place])
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
        own_us = float((would.steps.in_flight.time_us / would.tokens_per_step)[place])
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
        """The chain that gains most of those that fit; None where none does or shapes are unknown."""
        configurations = self.every.configurations
        chains = [i for i, option in enumerate(configurations.options) if option.chain]
        fits = self.every.fits[self.b, self.s]
        members = np.flatnonzero(np.isin(configurations.option, chains) & fits)
        return int(members[np.argmax(self._speedups[members])]) if members.size else None

    @property
    def chain_candidates(self) -> int | None:
        """Candidates of the best chain that fits; None where there is none."""
        return (
            None if self._best_chain is None else int(self.every.configurations.candidates[self._best_chain])
        )

    @property
    def chain_speedup(self) -> float | None:
        """Speedup of the best chain that fits; None where there is none."""
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
        step_us = speculative_step(setting, self.batch_max, self.seq_len, self.candidates).time_us
        return self._speedup_if(float(step_us / self._steps_us[self._configuration]))

    @property
    def free_candidates(self) -> int:
        """The largest free count: up to it overhead stays within `free_within`; 1 where nothing is free."""
        by_count, counts = self.every.by_count, self.every.configurations.counts
        return int(counts[free_budget(by_count.overhead[self.b, self.s], self.question.free_within) - 1])

    @cached_property
    def _family(self) -> IntArray:
        """Configurations that draft as `_shown` does, with every count, by count."""
        return self.every.configurations.sizes_of(self._shown)

    @cached_property
    def _larger(self) -> IntArray:
        """Those of them with more candidates than the row."""
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
