"""A recommendation: a schedule, where speculation stops paying, what it gains and costs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from medusa_sim.arrays import BoolArray, IntArray
from medusa_sim.errors import UsageError, check_kind
from medusa_sim.grid.cell import Cell, best_cell
from medusa_sim.grid.cells import Cells
from medusa_sim.grid.configurations import PLAIN
from medusa_sim.grid.request_latency import RequestLatency, request_latency
from medusa_sim.grid.surface import GrownPrompts
from medusa_sim.plan.batch_ranges import BatchRange, configuration_at
from medusa_sim.plan.break_even import BreakEven, break_even_context, longest_searched
from medusa_sim.plan.capacity import Capacity, capacities
from medusa_sim.plan.coarse_search import CoarseSearch
from medusa_sim.plan.count_curves import free_count
from medusa_sim.plan.schedule import drafting_rows, ranges_over, schedule_rows, where_it_fits
from medusa_sim.plan.schedule_row import ScheduleRow
from medusa_sim.plan.shortfall import Shortfall, shortfall
from medusa_sim.scenario.defaults import request_length
from medusa_sim.scenario.question import EVERY_BATCH_TO, Question
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.step.pass_times import PassTimes
from medusa_sim.step.setting import Setting
from medusa_sim.step.step import decode_step, speculative_step


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoSteps:
    """A plain step and a speculative one at a batch and length, part by part; setting: of the latter."""

    setting: Setting
    candidates: int
    plain: PassTimes
    speculative: PassTimes


@dataclass(frozen=True, kw_only=True, eq=False)
class Recommendation:
    """The answer to a `Question`: what was searched, and what follows from it when that is read.

    coarse, break_even_batches, ranges (of the schedule): one per length.
    """

    question: Question
    scenario: Scenario
    cells: Cells
    coarse: tuple[CoarseSearch, ...]
    break_even_batches: tuple[BreakEven, ...]
    schedule: tuple[ScheduleRow, ...]
    ranges: tuple[tuple[BatchRange, ...], ...]

    @property
    def enable(self) -> bool:
        """Whether to speculate.

        Under objective `latency` whether any row of the schedule does (and keeps the limit of latency), under
        `throughput` whether the best operating point with speculation beats the best without.
        """
        if self.question.objective == "latency":
            return bool(drafting_rows(self.schedule))
        best, plain = self.best_with, self.best_without
        least = 0.0 if plain is None else plain.tokens_per_s
        return best is not None and bool(best.tokens_per_s > least)

    @cached_property
    def best_with(self) -> Cell | None:
        """The largest throughput with speculation among the batches that fit and keep the latency."""
        by_count = self.cells.by_count
        return best_cell(by_count, self._in_time & (by_count.candidates > 1), by_count.tokens_per_s)

    @cached_property
    def best_without(self) -> Cell | None:
        """The largest throughput without speculation."""
        by_count = self.cells.by_count
        return best_cell(by_count, self._in_time & (by_count.candidates == 1), by_count.tokens_per_s)

    @property
    def _in_time(self) -> BoolArray:
        return self.cells.by_count.fits_in_time(self.question.max_latency_us)

    @cached_property
    def fastest_stream(self) -> Cell | None:
        """The shortest time per token of a request among the cells that fit; None where none does."""
        by_count = self.cells.by_count
        return best_cell(by_count, by_count.fits, -by_count.server.tpot_us)

    @cached_property
    def by_drafts(self) -> tuple[Cell, ...]:
        """The best count of each draft length of those that fit, at batch_min and the first length."""
        speedup = self.cells.speedup_at(0, 0)
        depth = np.where(self.cells.fits[0, 0], self.cells.configurations.depth, -1)
        depth[PLAIN] = 0
        members = [np.flatnonzero(depth == drafts) for drafts in np.unique(depth[depth >= 0])]
        best = np.asarray([deep[np.argmax(speedup[deep])] for deep in members], dtype=np.int64)
        chosen = self.cells.with_index(best[None, None, :])
        return tuple(Cell(cells=chosen, b=0, s=0, k=k) for k in range(1, best.size))

    @cached_property
    def where_it_fits(self) -> tuple[ScheduleRow, ...]:
        """For each length where speculation pays but does not fit at some batch: the largest that gains."""
        return where_it_fits(self.scenario, self.cells, self.question)

    @cached_property
    def request_latencies(self) -> tuple[RequestLatency, ...]:
        """Requests at the smallest batch and the largest that fits, as scheduled at the nearest length."""
        if self.question.request is None:
            return ()
        s = int(np.argmin(np.abs(self.cells.surface.seq_len - request_length(*self.question.request))))
        fitting = np.flatnonzero(self.cells.fits[:, s, PLAIN]).tolist()
        found = (self._request_latency(b, s) for b in dict.fromkeys(fitting[:1] + fitting[-1:]))
        return tuple(request for request in found if request is not None)

    def _request_latency(self, b: int, s: int) -> RequestLatency | None:
        """A request with what is scheduled at one batch and length; None where none was asked about."""
        if self.question.request is None:
            return None
        prompt, output = self.question.request
        configurations, scheduled = self.cells.configurations, configuration_at(self.ranges[s], b)
        return request_latency(
            self.scenario,
            configurations.option_of(scheduled),
            int(configurations.candidates[scheduled]),
            batch=int(self.cells.surface.batch[b]),
            prompt_tokens=prompt,
            output_tokens=output,
            cached_tokens=max(int(self.cells.surface.asked_len[s]) - request_length(prompt, output), 0),
        )

    @cached_property
    def break_even_context(self) -> BreakEven:
        """The contexts at which speculation pays, at batch_max.

        Around one length of the question requests have longer and shorter prompts. Where it has several, all
        prompts are the traffic's in every row, and so they are here.
        """
        lengths = self.cells.surface.asked_len
        longest = longest_searched(self.scenario, int(lengths.max()))
        options, batch = self.cells.configurations.options, self.question.batch_max
        traffic, grown = self.scenario.traffic, None
        if traffic is not None and lengths.size == 1:
            grown = GrownPrompts(float(lengths[0]) - traffic.prompt_tokens)
        return break_even_context(self.scenario, options, batch, longest, self.cells, grown)

    @cached_property
    def capacities(self) -> tuple[Capacity, ...]:
        """The best throughput of each length with and without speculation, among all batches that fit."""
        return capacities(self.coarse, self.cells, self.question.max_latency_us)

    @cached_property
    def shortfall(self) -> Shortfall | None:
        """Memory that is missing where a row does not fit even without speculation, and what would fit.

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
    def largest_count(self) -> int | None:
        """The largest count that a row runs, or, if it is plain, would run; None where nothing fits."""
        return max((row.speculative_candidates for row in self.schedule if row.fits_memory), default=None)

    @property
    def hardest(self) -> ScheduleRow:
        """The row at which the best speculative configuration gains least."""
        return min(self.schedule, key=lambda row: row.speculative_speedup)

    @property
    def break_even_batch(self) -> int | None:
        """Smallest batch from which speculation stays a loss at any of the lengths; None if at none."""
        ends = [break_even.loses_from for break_even in self.break_even_batches]
        return min((batch for batch in ends if batch is not None), default=None)

    @cached_property
    def free_candidates(self) -> IntArray:
        """(batches, lengths) the count up to which candidates are free."""
        counts = self.cells.configurations.counts
        return free_count(counts, self.cells.by_count.overhead, self.question.free_within)

    # One of the batches and lengths that were searched; UsageError for another.

    def scheduled_row_at(self, batch: int, seq_len: int) -> ScheduleRow:
        """The schedule's row at one batch and length of the question, with its figures at that very batch.

        `best_candidates` and `near_best` of the row say what that batch alone would take.
        """
        b, s = self._indices(batch, seq_len)
        row = next(row for row in self.schedule if row.s == s and b in row.batch_range)
        return replace(row, b=b, batch_range=replace(row.batch_range, first=b, last=b))

    def rows_at(self, seq_len: int) -> list[ScheduleRow]:
        """The schedule's rows at one length."""
        _, s = self._indices(int(self.cells.surface.batch[0]), seq_len)
        return [row for row in self.schedule if row.s == s]

    def request_at(self, batch: int, seq_len: int) -> RequestLatency | None:
        """One of `batch` requests with what the schedule runs there; None where none was asked about."""
        return self._request_latency(*self._indices(batch, seq_len))

    def steps_at(self, batch: int, seq_len: int, *, scheduled: bool = False) -> TwoSteps:
        """Both steps at one batch and length of the question, whether speculating pays there or not.

        The speculative one is the best there; scheduled: the schedule's, where that speculates.
        """
        cells, (b, s) = self.cells, self._indices(batch, seq_len)
        chosen = configuration_at(self.ranges[s], b) if scheduled else PLAIN
        best = 1 + int(np.argmax(cells.speedup_at(b, s)[1:])) if chosen == PLAIN else chosen
        option = cells.configurations.option_of(best)
        assert option is not None  # noqa: S101  # it speculates
        setting = replace(self.scenario.setting, drafter=option.drafter)
        count = int(cells.configurations.candidates[best])
        return TwoSteps(
            setting=setting,
            candidates=count,
            plain=decode_step(setting, batch, seq_len),
            speculative=speculative_step(setting, batch, seq_len, count),
        )

    def _indices(self, batch: int, seq_len: int) -> tuple[int, int]:
        """(b, s) of a batch and length among those searched."""
        for name, value in (("batch", batch), ("seq_len", seq_len)):
            check_kind(name, value, "a whole number", (int, np.integer))
        surface = self.cells.surface
        b, s = np.flatnonzero(surface.batch == batch), np.flatnonzero(surface.seq_len == seq_len)
        if not b.size or not s.size:
            above = int(np.searchsorted(surface.batch, batch))
            asked = f"{surface.batch[0]}..{surface.batch[-1]}"
            if not b.size and 0 < above < surface.batch.size:
                nearest = f"{surface.batch[above - 1]} or {surface.batch[above]}"
                asked = f"{nearest} (of {asked} every one to {EVERY_BATCH_TO} was, every 2 % beyond)"
            raise UsageError(
                f"batch {batch}, length {seq_len} was not searched; ask for batch {asked} at length "
                f"{' or '.join(map(str, surface.seq_len))}"
            )
        return int(b[0]), int(s[0])


def schedule_all_lengths(answer: Recommendation) -> tuple[ScheduleRow, ...]:
    """One schedule for all lengths, as engines that do not look at the context take it.

    Each row stands at the length that it helps least.
    """
    every_length = range(len(answer.question.seq_len))
    ranges = ranges_over(every_length, answer.cells, answer.question, answer.break_even_batches)
    rows = schedule_rows(answer.cells, 0, ranges, answer.question)
    return tuple(replace(row, s=int(np.argmin(row.cells.speedup[row.b, :, row.k]))) for row in rows)
