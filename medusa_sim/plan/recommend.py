"""The decision: speculate or not, with how many candidates, up to which batch, and how sure that is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from medusa_sim.acceptance.profile import AcceptanceProfile
from medusa_sim.arrays import IntArray
from medusa_sim.errors import UsageError, unknown_name
from medusa_sim.latency.cached import cached
from medusa_sim.plan.break_even import BreakEven, break_even_batches, break_even_context
from medusa_sim.plan.capacity import Capacity, OperatingPoint, best_operating_point, capacities
from medusa_sim.plan.curve import FREE_WITHIN
from medusa_sim.plan.defaults import CANDIDATES_MAX, DEFAULT_BATCHES, DEFAULT_SEQ_LEN
from medusa_sim.plan.draft_options import Drafting, DraftOption
from medusa_sim.plan.request import RequestLatency, request_latency
from medusa_sim.plan.scenario import Scenario
from medusa_sim.plan.schedule import SWITCHING_GAIN, BatchRange, merged
from medusa_sim.plan.schedule_row import ScheduleRow, free_candidates, schedule_row, speaking
from medusa_sim.plan.surface import PLAIN, Surface, price
from medusa_sim.specs.gpu import Gpu
from medusa_sim.step.step import Setting, StepTime, decode_step, verify_step
from medusa_sim.units import US_PER_MS

Objective = Literal["latency", "throughput"]
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)

_EVERY_BATCH_TO = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked.

    batch_min, batch_max: every batch between them is searched (beyond 256 every 2 %). seq_len: committed
    tokens. max_latency_ms: longest time per output token of one user. request: (prompt, output) tokens.
    """

    batch_min: int = DEFAULT_BATCHES[0]
    batch_max: int = DEFAULT_BATCHES[1]
    seq_len: tuple[int, ...] = (DEFAULT_SEQ_LEN,)
    objective: Objective = "latency"
    max_latency_ms: float | None = None
    candidates_max: int = CANDIDATES_MAX
    free_within: float = FREE_WITHIN
    switching_gain: float = SWITCHING_GAIN
    request: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.batch_min <= self.batch_max:
            raise UsageError(f"batch {self.batch_min}..{self.batch_max}: from 1, smallest first")
        if not self.seq_len or min(self.seq_len) < 1:
            raise UsageError(f"seq_len {self.seq_len}: at least one whole number from 1 is needed")
        if self.objective not in OBJECTIVES:
            raise UsageError(unknown_name("objective", self.objective, OBJECTIVES))
        if self.max_latency_ms is not None and not 0.0 < self.max_latency_ms < np.inf:
            raise UsageError(
                f"max latency {self.max_latency_ms} ms: a time above 0 per output token is needed"
            )
        if not 1.0 <= self.free_within < np.inf:
            raise UsageError(f"free within {self.free_within:g}: an overhead from 1 is needed (1.10 is 10 %)")

    @property
    def batches(self) -> IntArray:
        """Every batch searched."""
        every = np.arange(self.batch_min, min(self.batch_max, max(_EVERY_BATCH_TO, self.batch_min)) + 1)
        if self.batch_max <= every[-1]:
            return every
        steps = 1 + int(np.ceil(np.log(self.batch_max / every[-1]) / np.log(1.02)))
        beyond = np.rint(np.geomspace(every[-1], self.batch_max, steps)).astype(np.int64)
        return np.unique(np.concatenate([every, beyond]))

    @property
    def max_latency_us(self) -> float | None:
        """The latency limit in microseconds."""
        return None if self.max_latency_ms is None else self.max_latency_ms * US_PER_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftsGain:
    """Best speedup at a draft length (Medusa: heads run) at one batch and length."""

    drafts: int
    candidates: int
    speedup: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Recommendation:
    """The answer to a `Question`.

    enable: under objective `latency` whether any row of the schedule speculates, under `throughput`
    whether the best operating point with speculation beats the best without by the switching gain.
    break_even_batches: one per length; break_even_context: at batch_max. required_tokens_per_step: at the
    row that speculation helps least. free_candidates: (batch, seq_len, count) of the options scheduled.
    best_with, best_without: largest throughput among the question's batches that fit and keep the latency.
    by_drafts: at batch_min and the first length. schedule_all_lengths: one schedule for all lengths, as
    engines that do not look at the context take it, each row at the length it helps least. where_it_fits: for
    each length at which speculation would pay but some batch leaves no room, the largest batch that does.
    """

    question: Question
    scenario: Scenario
    surface: Surface
    enable: bool
    break_even_batches: tuple[BreakEven, ...]
    break_even_context: BreakEven
    free_candidates: tuple[tuple[int, int, int], ...]
    schedule: tuple[ScheduleRow, ...]
    schedule_all_lengths: tuple[ScheduleRow, ...]
    by_drafts: tuple[DraftsGain, ...]
    best_with: OperatingPoint | None
    best_without: OperatingPoint | None
    capacities: tuple[Capacity, ...]
    requests: tuple[RequestLatency, ...]
    where_it_fits: tuple[ScheduleRow, ...]

    @property
    def gpu(self) -> Gpu:
        """The card."""
        return self.scenario.gpu

    @property
    def setting(self) -> Setting:
        """What every step shares."""
        return self.surface.setting

    @property
    def drafting(self) -> Drafting:
        """What drafts."""
        return self.scenario.drafting

    @property
    def profile(self) -> AcceptanceProfile:
        """How often drafts are accepted."""
        return self.scenario.profile

    @property
    def hardest(self) -> ScheduleRow:
        """The row at which the best speculative configuration gains least."""
        return min(self.schedule, key=lambda row: row.speculative_speedup)

    @property
    def break_even_batch(self) -> int | None:
        """Smallest batch from which speculation stays a loss at any of the lengths; None if at none."""
        found = [crossing.loses_from for crossing in self.break_even_batches]
        return min((batch for batch in found if batch is not None), default=None)

    @property
    def free_candidates_by_batch(self) -> dict[int, int]:
        """For each batch the count that is free at every length."""
        found: dict[int, int] = {}
        for batch, _, count in self.free_candidates:
            found[batch] = min(count, found.get(batch, count))
        return found


def recommend(scenario: Scenario, question: Question | None = None) -> Recommendation:
    """Search every configuration and answer (question None: the default one).

    Raises UsageError where the question or the profile does not fit the drafter, SpecError or
    CoverageError from the latency model.
    """
    asked = Question() if question is None else question
    if scenario.scope != "model":
        raise UsageError(f"scope {scenario.scope}: a recommendation is about whole models; take scope model")
    if scenario.traffic is not None:
        raise UsageError(
            "prompt_tokens, output_tokens: a recommendation takes one request (--prompt, --output-tokens); "
            "`sweep` takes the traffic of a server"
        )
    # One memory of kernel times for every surface of this answer.
    kept = scenario.but(latency=cached(scenario.latency), kernels=_kernels(scenario))
    options = kept.options(asked.candidates_max)
    lengths = np.asarray(asked.seq_len, dtype=np.int64)
    surface = price(kept, asked.batches, lengths, options)
    schedules = [_scheduled(surface, s, asked) for s in range(lengths.size)]
    rows = [_row(surface, s, found, asked) for s, ranges in enumerate(schedules) for found in ranges]
    best_with = _best(surface, asked, speculate=True)
    best_without = _best(surface, asked, speculate=False)
    return Recommendation(
        question=asked,
        scenario=scenario,
        surface=surface,
        enable=_enabled(asked, rows, best_with, best_without),
        break_even_batches=break_even_batches(kept, options, lengths),
        break_even_context=break_even_context(
            kept, options, asked.batch_max, _longest_context(kept, lengths)
        ),
        free_candidates=_free_candidates(surface, asked.free_within),
        schedule=tuple(rows),
        schedule_all_lengths=_all_lengths(surface, asked),
        by_drafts=by_drafts(surface, 0, 0),
        best_with=best_with,
        best_without=best_without,
        capacities=capacities(kept, options, surface, asked.max_latency_us),
        requests=_requests(kept, options, asked),
        where_it_fits=_where_it_fits(kept, surface, asked),
    )


def _kernels(scenario: Scenario) -> str | None:
    return None if scenario.kernels == "none" else scenario.kernels


def _scheduled(surface: Surface, s: int, question: Question) -> tuple[BatchRange, ...]:
    """Ranges of one length; batches that do not fit even without speculation stand apart."""
    ranges = merged(surface.speedup[:, s], surface.fits[:, s], question.switching_gain)
    room = int(np.count_nonzero(surface.fits[:, s, PLAIN]))
    found: list[BatchRange] = []
    for batches in ranges:
        if batches.first < room <= batches.last:
            found += [replace(batches, last=room - 1), replace(batches, first=room)]
        else:
            found.append(batches)
    return tuple(found)


def _row(surface: Surface, s: int, batches: BatchRange, question: Question) -> ScheduleRow:
    return schedule_row(
        surface,
        s,
        batches,
        free_within=question.free_within,
        max_latency_us=question.max_latency_us,
    )


def _all_lengths(surface: Surface, question: Question) -> tuple[ScheduleRow, ...]:
    """Rows that share a configuration over all lengths: geometric mean of the speedups."""
    mean = np.exp(np.log(surface.speedup).mean(axis=1))
    rows = []
    for batches in merged(mean, np.asarray(surface.fits.all(axis=1)), question.switching_gain):
        worst = int(np.argmin(surface.speedup[batches.last, :, batches.configuration]))
        rows.append(_row(surface, worst, batches, question))
    return tuple(rows)


def _longest_context(scenario: Scenario, lengths: IntArray) -> int:
    """The model's own positions, or the question's where they go beyond."""
    return max(scenario.model.max_seq_len, int(lengths.max()))


def _where_it_fits(scenario: Scenario, surface: Surface, question: Question) -> tuple[ScheduleRow, ...]:
    """For each length with a batch where speculation pays but leaves no room: the largest that fits."""
    found = []
    for s, length in enumerate(surface.seq_len):
        pays = surface.speedup[:, s, 1:] > 1.0 + question.switching_gain
        shut = np.flatnonzero(pays.any(axis=-1) & ~surface.fits[:, s, 1:].any(axis=-1))
        if shut.size == 0:
            continue
        largest = int(surface.max_batch[s, 1:][pays[shut[0]]].max())
        if largest < 1:
            continue
        one = price(scenario, [largest], [int(length)], surface.options)
        fitting = np.where(one.fits[0, 0, 1:], one.speedup[0, 0, 1:], -np.inf)
        chosen = BatchRange(first=0, last=0, configuration=1 + int(np.argmax(fitting)))
        found.append(_row(one, 0, chosen, question))
    return tuple(found)


def _best(surface: Surface, question: Question, *, speculate: bool) -> OperatingPoint | None:
    """The largest throughput among the question's own batches that fit and keep the latency."""
    points = [
        best_operating_point(surface, s, question.max_latency_us, speculate=speculate)
        for s in range(surface.seq_len.size)
    ]
    found = [point for point in points if point is not None]
    return max(found, key=lambda point: point.tokens_per_s, default=None)


def _enabled(
    question: Question,
    rows: list[ScheduleRow],
    best_with: OperatingPoint | None,
    best_without: OperatingPoint | None,
) -> bool:
    if question.objective == "latency":
        return any(row.candidates > 1 for row in rows)
    if best_with is None or best_without is None:
        return best_with is not None
    return best_with.tokens_per_s > best_without.tokens_per_s * (1.0 + question.switching_gain)


def _free_candidates(surface: Surface, within: float) -> tuple[tuple[int, int, int], ...]:
    """(batch, length, free budget) at every batch and length, lengths outermost."""
    free = free_candidates(surface, within)
    return tuple(
        (int(batch), int(seq_len), int(free[i, s]))
        for s, seq_len in enumerate(surface.seq_len)
        for i, batch in enumerate(surface.batch)
    )


def at_batch(answer: Recommendation, batch: int, seq_len: int) -> ScheduleRow:
    """What to run at one batch and length of the question alone: its own best configuration that fits.

    Unlike `scheduled_at` it gives up nothing for sharing a configuration with other batches.
    Raises UsageError for a batch or length that was not searched.
    """
    surface, (i, j) = answer.surface, _place(answer, batch, seq_len)
    fits = surface.fits[i, j]
    best = int(np.argmax(np.where(fits, surface.speedup[i, j], -np.inf))) if fits.any() else PLAIN
    return _row(surface, j, BatchRange(first=i, last=i, configuration=best), answer.question)


def scheduled_at(answer: Recommendation, batch: int, seq_len: int) -> ScheduleRow:
    """The schedule's row at one batch and length of the question, with its figures at that very batch.

    `best_candidates` and `near_best` of the row say what that batch alone would take.
    Raises UsageError for a batch or length that was not searched.
    """
    surface, (i, j) = answer.surface, _place(answer, batch, seq_len)
    chosen = _configuration(answer, i, j)
    return _row(surface, j, BatchRange(first=i, last=i, configuration=chosen), answer.question)


def _configuration(answer: Recommendation, i: int, j: int) -> int:
    """What the schedule runs at a place of the surface."""
    ranges = _scheduled(answer.surface, j, answer.question)
    return next(found.configuration for found in ranges if found.first <= i <= found.last)


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoSteps:
    """A plain step and a speculative one at a batch and length, part by part."""

    candidates: int
    plain: StepTime
    speculative: StepTime


def steps_at(answer: Recommendation, batch: int, seq_len: int, *, scheduled: bool = False) -> TwoSteps:
    """Both steps at one batch and length of the question, whether speculating pays there or not.

    The speculative one is the best there; scheduled: the schedule's, where that speculates.
    Raises UsageError for a batch or length that was not searched.
    """
    surface, (i, j) = answer.surface, _place(answer, batch, seq_len)
    best = speaking(surface, i, j, _configuration(answer, i, j) if scheduled else PLAIN)
    option = surface.option_of(best)
    assert option is not None  # noqa: S101  # `speaking` gives a configuration that speculates
    setting = replace(answer.setting, drafter=option.drafter)
    count = int(surface.candidates[best])
    return TwoSteps(
        candidates=count,
        plain=decode_step(setting, batch, seq_len),
        speculative=verify_step(setting, batch, seq_len, count),
    )


def _place(answer: Recommendation, batch: int, seq_len: int) -> tuple[int, int]:
    surface = answer.surface
    at, s = np.flatnonzero(surface.batch == batch), np.flatnonzero(surface.seq_len == seq_len)
    if not at.size or not s.size:
        raise UsageError(
            f"batch {batch}, length {seq_len} was not searched; ask for batches {surface.batch[0]}.."
            f"{surface.batch[-1]} at lengths {', '.join(map(str, surface.seq_len))}"
        )
    return int(at[0]), int(s[0])


def by_drafts(surface: Surface, at: int, s: int) -> tuple[DraftsGain, ...]:
    """For each draft length the best count and its speedup at one batch and length."""
    depth = np.asarray([0, *(option.depth for option in surface.options)])[surface.option + 1]
    found = []
    for drafts in np.unique(depth[1:]):
        members = np.flatnonzero(depth == drafts)
        best = int(members[np.argmax(surface.speedup[at, s, members])])
        found.append(
            DraftsGain(
                drafts=int(drafts),
                candidates=int(surface.candidates[best]),
                speedup=float(surface.speedup[at, s, best]),
            )
        )
    return tuple(found)


def _requests(
    scenario: Scenario, options: tuple[DraftOption, ...], question: Question
) -> tuple[RequestLatency, ...]:
    """Requests at the smallest and the largest batch, each with the best count at its middle context."""
    if question.request is None:
        return ()
    prompt, output = question.request
    found = []
    for batch in sorted({question.batch_min, question.batch_max}):
        surface = price(scenario, [batch], [prompt + output // 2], options)
        speedup = np.where(surface.fits[0, 0], surface.speedup[0, 0], -np.inf)
        best = int(np.argmax(speedup))
        found.append(
            request_latency(
                scenario.setting,
                surface.option_of(best),
                int(surface.candidates[best]),
                batch=batch,
                prompt_tokens=prompt,
                output_tokens=output,
            )
        )
    return tuple(found)
