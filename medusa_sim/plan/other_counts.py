"""Other counts beside the one that a row of a schedule runs: the best, the next larger, cheaper ones."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from medusa_sim.arrays import FloatArray, IntArray
from medusa_sim.grid.configurations import PLAIN
from medusa_sim.plan.counts import cheaper_pairs, cliffs, free_count, near_best
from medusa_sim.plan.row_cells import RowCells

_NEIGHBOURS = 5
"""A cliff stands out from the counts around it; a few chain lengths have none."""

HeldBy = Literal["cost", "shared row", "memory", "end of the acceptance", "end of the search"]
"""Reasons that keep a row from a larger count: it costs more than it gives, it would pay more at the fullest
batch but the row is shared, it does not fit, its acceptance is unknown, or it was not searched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NextCount:
    """The next larger count of the same kind and what it would change: shares of tokens and of step time."""

    candidates: int
    tokens_gain: float
    step_cost: float


@dataclass(frozen=True, eq=False)
class OtherCounts:
    """A row's configuration beside others at its fullest batch, and the reason why it is not a larger one."""

    row: RowCells

    @cached_property
    def _best_columns(self) -> IntArray:
        """Column of the best of every count that fits, at each of the row's batches."""
        return self.row.every.by_count.best_places()[self.row.places, self.row.s]

    @property
    def best_candidates(self) -> int:
        """The best count at the fullest batch, which the row gives up where other batches share it."""
        return int(self.row.every.configurations.counts[self._best_columns[-1]])

    @property
    def best_speedup(self) -> float:
        """Speedup of best_candidates at the fullest batch."""
        return float(self.row.every.by_count.speedup[self.row.b, self.row.s, self._best_columns[-1]])

    @property
    def near_best(self) -> tuple[int, int]:
        """Smallest and largest count around best_candidates within 1 % of it."""
        by_count, place = self.row.every.by_count, (self.row.b, self.row.s)
        fits = np.broadcast_to(by_count.fits, by_count.shape)[place]
        best = int(self._best_columns[-1])
        return near_best(by_count.configurations.counts, by_count.speedup[place], fits, best)

    @property
    def best_ends_profile(self) -> bool:
        """Whether the best count of some batch is the largest that the acceptance describes: more may pay."""
        last = self.row.every.configurations.counts.size - 1
        return last > 0 and bool((self._best_columns == last).any()) and self.row.surface.search_ends_profile

    @property
    def _best_chain(self) -> int | None:
        """The chain that gains most of those that fit; None where none does or shapes are unknown."""
        configurations = self.row.every.configurations
        chains = [i for i, option in enumerate(configurations.options) if option.chain]
        fits = self.row.every.fits[self.row.b, self.row.s]
        members = np.flatnonzero(np.isin(configurations.option, chains) & fits)
        return int(members[np.argmax(self.row.speedups[members])]) if members.size else None

    @property
    def chain_candidates(self) -> int | None:
        """Candidates of the best chain that fits; None where there is none."""
        return (
            None
            if self._best_chain is None
            else int(self.row.every.configurations.candidates[self._best_chain])
        )

    @property
    def chain_speedup(self) -> float | None:
        """Speedup of the best chain that fits; None where there is none."""
        chain = self._best_chain
        return None if chain is None else float(self.row.speedups[chain])

    @property
    def free_candidates(self) -> int:
        """The largest free count: up to it overhead stays within `free_within`; 1 where nothing is free."""
        by_count, counts = self.row.every.by_count, self.row.every.configurations.counts
        return int(
            free_count(counts, by_count.overhead[self.row.b, self.row.s], self.row.question.free_within)
        )

    @cached_property
    def _family(self) -> IntArray:
        """Configurations that draft as `shown` does, with every count, by count."""
        return self.row.every.configurations.sizes_of(self.row.shown)

    @cached_property
    def _larger(self) -> IntArray:
        """Configurations with more candidates than the row's."""
        sizes = self.row.every.configurations.candidates[self._family]
        return np.asarray(self._family[sizes > self.row.candidates])

    @property
    def next_count(self) -> NextCount | None:
        """Changes that the next larger count would make; None where there is none, or nothing is drafted."""
        if self.row.configuration == PLAIN or self._larger.size == 0:
            return None
        following = int(self._larger[0])
        return NextCount(
            candidates=int(self.row.every.configurations.candidates[following]),
            tokens_gain=float(self.row.tokens[following] / self.row.tokens[self.row.configuration]) - 1.0,
            step_cost=float(self.row.steps_us[following] / self.row.steps_us[self.row.configuration]) - 1.0,
        )

    @property
    def held_by(self) -> HeldBy | None:
        """The reason that keeps the row from more; None for a plain row."""
        option, surface = self.row.option, self.row.surface
        if option is None:
            return None
        if self._larger.size == 0:
            ends = (
                self.row.candidates == self.row.every.configurations.counts[-1]
                and surface.search_ends_profile
            )
            heads = surface.scenario.profile.heads
            # a chain as long as its acceptance was measured
            ends |= option.chain and heads is not None and option.depth >= heads.heads
            return "end of the acceptance" if ends else "end of the search"
        better = self.row.speedups[self._larger] > self.row.speedups[self.row.configuration]
        if (better & self.row.every.fits[self.row.b, self.row.s, self._larger]).any():
            return "shared row"
        return "memory" if better.any() else "cost"

    @property
    def _counts(self) -> tuple[IntArray, FloatArray]:
        """Plain decoding and the row's family: counts, and the time of their steps."""
        counts = np.concatenate([[1], self.row.every.configurations.candidates[self._family]])
        return counts, self.row.steps_us[np.concatenate([[PLAIN], self._family])]

    @property
    def cliff_after(self) -> int | None:
        """The first count from the row's up behind which the step jumps; None where none does."""
        counts, times = self._counts
        if counts.size <= _NEIGHBOURS:
            return None
        places = counts[cliffs(times) - 1]
        behind = places[places >= self.row.candidates]
        return int(behind[0]) if behind.size else None

    @property
    def cheaper_larger(self) -> tuple[tuple[int, int], ...]:
        """Pairs (count, larger count whose step is shorter) of plain decoding and the family."""
        return tuple(cheaper_pairs(*self._counts))
