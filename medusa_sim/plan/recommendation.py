"""What a recommendation answers: a schedule, where speculation stops paying, what it gains and costs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from medusa_sim.grid.cell import Cell
from medusa_sim.grid.cells import Cells
from medusa_sim.grid.request_latency import RequestLatency
from medusa_sim.plan.batch_ranges import BatchRange
from medusa_sim.plan.break_even import BreakEven
from medusa_sim.plan.capacity import Capacity
from medusa_sim.plan.schedule_row import ScheduleRow
from medusa_sim.plan.shortfall import Shortfall, shortfall
from medusa_sim.scenario.question import Question
from medusa_sim.scenario.scenario import Scenario


@dataclass(frozen=True, kw_only=True, eq=False)
class Recommendation:
    """The answer to a `Question`.

    enable: under objective `latency` whether any row of the schedule speculates (and keeps the limit of
    latency), under `throughput` whether the best operating point with speculation beats the best without.
    break_even_batches: one per length; break_even_context: at batch_max. required_tokens_per_step: at the
    row that speculation helps least. free_candidates: (batch, seq_len, count) of the options scheduled.
    ranges: of the schedule, by length.
    best_with, best_without: largest throughput among the question's batches that fit and keep the latency.
    by_drafts: at batch_min and the first length. where_it_fits: for each length at which speculation would
    pay but some batch leaves no room, the largest batch that does.
    """

    question: Question
    scenario: Scenario
    cells: Cells
    enable: bool
    break_even_batches: tuple[BreakEven, ...]
    break_even_context: BreakEven
    free_candidates: tuple[tuple[int, int, int], ...]
    schedule: tuple[ScheduleRow, ...]
    ranges: tuple[tuple[BatchRange, ...], ...]
    by_drafts: tuple[Cell, ...]
    best_with: Cell | None
    best_without: Cell | None
    capacities: tuple[Capacity, ...]
    requests: tuple[RequestLatency, ...]
    where_it_fits: tuple[ScheduleRow, ...]

    @cached_property
    def shortfall(self) -> Shortfall | None:
        """What is missing where a row does not fit even without speculation, and what would do.

        At the smallest batch where nothing fits at all, else at the fullest of the first row that does not.
        """
        missing = [row for row in self.schedule if not row.fits_memory]
        if not missing:
            return None
        batch = missing[0].batch_max if self.fits else self.question.batch_min
        return shortfall(self.scenario, batch, missing[0].seq_len)

    @property
    def fits(self) -> bool:
        """Whether anything that was asked fits in memory."""
        return any(row.fits_memory for row in self.schedule)

    @property
    def chains(self) -> bool:
        """Whether all that was searched are chains: drafts (num_speculative_tokens) then name a count."""
        return self.cells.configurations.are_chains

    @property
    def hardest(self) -> ScheduleRow:
        """The row at which the best speculative configuration gains least."""
        return min(self.schedule, key=lambda row: row.speculative_speedup)

    @property
    def break_even_batch(self) -> int | None:
        """Smallest batch from which speculation stays a loss at any of the lengths; None if at none."""
        ends = [break_even.loses_from for break_even in self.break_even_batches]
        return min((batch for batch in ends if batch is not None), default=None)

    @property
    def free_candidates_by_batch(self) -> dict[int, int]:
        """For each batch the count that is free at every length."""
        free: dict[int, int] = {}
        for batch, _, count in self.free_candidates:
            free[batch] = min(count, free.get(batch, count))
        return free
