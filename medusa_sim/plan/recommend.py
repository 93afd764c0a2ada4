"""The decision: speculate or not, with how many candidates, up to which batch, and how sure that is.

A recommendation read at one batch and length: the row there, and both steps part by part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from medusa_sim.arrays import BoolArray, FloatArray, distinct
from medusa_sim.errors import UsageError
from medusa_sim.plan import request_length
from medusa_sim.plan.break_even import (
    BreakEven,
    best_speculative,
    break_even_batches,
    break_even_context,
    coarse,
    longest_asked,
)
from medusa_sim.plan.capacity import OperatingPoint, batches_tried, best_operating_point, capacities, fastest
from medusa_sim.plan.priced_steps import PLAIN
from medusa_sim.plan.question import Question
from medusa_sim.plan.recommendation import DraftsGain, Recommendation, RequestLatency, request_latency
from medusa_sim.plan.scenario import Scenario
from medusa_sim.plan.schedule import BatchRange, merge_batches
from medusa_sim.plan.schedule_row import ScheduleRow, free_candidates, schedule_row
from medusa_sim.plan.surface import Surface, in_groups, price
from medusa_sim.plan.verdict import halves
from medusa_sim.step.step import Setting, StepTime, decode_step, verify_step


def recommend(scenario: Scenario, question: Question | None = None) -> Recommendation:
    """Search every configuration and answer (question None: the default one).

    The traffic of the server is the question's request, else the scenario's own, else the one that `compare`
    and `load` ask about too: speedups and rates are the server's. Only where lengths are asked about without
    a request, or no engine serves any, are they those of a step.
    Raises UsageError where the question or the profile does not fit the drafter, SpecError or
    CoverageError from the latency model.
    """
    asked = Question() if question is None else question
    if scenario.scope != "model":
        raise UsageError(f"scope {scenario.scope}: a recommendation is about whole models; take scope model")
    if asked.request is not None:
        prompt, output = asked.request
        scenario = scenario.but(prompt_tokens=prompt, output_tokens=output)
    elif not asked.seq_len:
        scenario = scenario.served()
    if (traffic := scenario.traffic) is not None and asked.request is None:
        asked = replace(asked, request=(round(traffic.prompt_tokens), round(traffic.output_tokens)))
    asked = replace(asked, seq_len=asked.seq_len or (scenario.length,))
    options = scenario.options(asked.candidates_max)
    lengths = np.asarray(asked.seq_len, dtype=np.int64)
    surface = price(scenario, asked.batches, lengths, options)
    first = coarse(
        scenario, options, lengths, surface.batch, lambda s: batches_tried(int(surface.max_batch[s, PLAIN]))
    )
    paying = break_even_batches(scenario, options, lengths, surface, first)
    # the last batch before each crossing that lies between two searched ones, and the first behind it
    starts = {edge for crossing in paying for span in crossing.spans for edge in (span[0], span[1] + 1)}
    near = {n for edge in starts for n in (edge - 1, edge)}.difference(surface.batch.tolist())
    if edges := sorted(n for n in near if surface.batch[0] < n < surface.batch[-1]):
        # a row that stands for batches between two searched ones must not cross break-even either
        surface = price(scenario, distinct(surface.batch, edges), lengths, options)
        paying = break_even_batches(scenario, options, lengths, surface, first)
    ranges = tuple(batch_ranges(surface, s, asked, paying[s]) for s in range(lengths.size))
    rows = [schedule_row(surface, s, batches, asked) for s, those in enumerate(ranges) for batches in those]
    free = free_candidates(surface, asked.free_within)
    best_with = _best(surface, asked, speculate=True)
    best_without = _best(surface, asked, speculate=False)
    if asked.objective == "latency":
        enable = any(row.candidates > 1 and row.meets_latency is not False for row in rows)
    else:
        least = 0.0 if best_without is None else best_without.tokens_per_s
        enable = best_with is not None and best_with.tokens_per_s > least
    return Recommendation(
        question=asked,
        scenario=scenario,
        surface=surface,
        enable=enable,
        break_even_batches=paying,
        break_even_context=break_even_context(
            scenario, options, asked.batch_max, longest_asked(scenario, int(lengths.max())), surface
        ),
        free_candidates=tuple(
            (int(batch), int(seq_len), int(free[i, s]))
            for s, seq_len in enumerate(surface.seq_len)
            for i, batch in enumerate(surface.batch)
        ),
        schedule=tuple(rows),
        ranges=ranges,
        schedule_all_lengths=_all_lengths(surface, asked, paying),
        by_drafts=by_drafts(surface, 0, 0),
        best_with=best_with,
        best_without=best_without,
        capacities=capacities(
            scenario, options, [(at.surface, at.s) for at in first], surface, asked.max_latency_us
        ),
        requests=_requests(surface, asked, ranges),
        where_it_fits=_where_it_fits(scenario, surface, asked),
    )


def batch_ranges(surface: Surface, s: int, question: Question, paying: BreakEven) -> tuple[BatchRange, ...]:
    """Ranges of one length; batches that do not fit, or keep no limit of latency, stand apart.

    Drafts are made where `paying` says; nowhere, where none of the batches asked about has a predicted gain.
    """
    speedup, fits = surface.speedup[:, s], surface.fits[:, s]
    gains = bool((fits & (speedup > 1.0))[:, 1:].any())
    drafted = paying.drafts_at(surface.batch) & gains
    in_time = _in_time(surface, question)[:, s]
    return _merged(speedup, fits, in_time, question.switching_gain, drafted, _halves(surface)[:, s])


def _halves(surface: Surface) -> FloatArray:
    """(B, S, J) half-width of each configuration's speedup: that of its count."""
    return halves(surface)[..., np.searchsorted(surface.by_count.counts, surface.candidates)]


def _in_time(surface: Surface, question: Question) -> BoolArray:
    """(B, S, J) whether a configuration keeps the time per token that was asked for."""
    limit_us = np.inf if question.max_latency_us is None else question.max_latency_us
    return np.asarray(surface.tpot_us <= limit_us)


def _merged(
    speedup: FloatArray,
    fits: BoolArray,
    in_time: BoolArray,
    gain: float,
    drafted: BoolArray | None,
    halves: FloatArray,
) -> tuple[BatchRange, ...]:
    """Ranges of (B, J) cells; a batch at which nothing is in time takes what is fastest all the same."""
    kept = fits & in_time
    late = np.asarray(~kept.any(axis=1))
    allowed = np.where(late[:, None], fits, kept)
    apart = late + 2 * ~fits[:, PLAIN]
    return merge_batches(speedup, allowed, gain, apart, drafted=drafted, halves=halves)


def _all_lengths(
    surface: Surface, question: Question, paying: Sequence[BreakEven]
) -> tuple[ScheduleRow, ...]:
    """Rows that share a configuration over all lengths: geometric mean of the speedups.

    Drafts are made where they are at every length, and where lengths differ by the sign of the mean.
    """
    mean = np.exp(np.log(surface.speedup).mean(axis=1))
    fits, in_time = (np.asarray(of.all(axis=1)) for of in (surface.fits, _in_time(surface, question)))
    gains = np.where(fits, mean, 0.0)[:, 1:].max(axis=1, initial=0.0) > 1.0
    each = np.asarray([one.drafts_at(surface.batch) for one in paying])
    drafted = (each.all(axis=0) & gains.any()) | (each.any(axis=0) & gains)
    rows = []
    for batches in _merged(
        mean, fits, in_time, question.switching_gain, drafted, _halves(surface).mean(axis=1)
    ):
        worst = int(np.argmin(surface.speedup[batches.last, :, batches.configuration]))
        rows.append(schedule_row(surface, worst, batches, question))
    return tuple(rows)


def _where_it_fits(scenario: Scenario, surface: Surface, question: Question) -> tuple[ScheduleRow, ...]:
    """For each length with a batch where speculation pays but has no room: the largest that gains."""
    largest = {}
    for s in range(surface.seq_len.size):
        pays = surface.speedup[:, s, 1:] > 1.0
        shut = np.flatnonzero(pays.any(axis=-1) & ~surface.fits[:, s, 1:].any(axis=-1))
        if shut.size and (most := int(surface.max_batch[s, 1:][pays[shut[0]]].max())) > 0:
            largest[s] = most
    rows = []
    for group in in_groups(len(largest)):
        places = list(largest)[group]
        batches = distinct([largest[s] for s in places])
        fitting = price(scenario, batches, surface.seq_len[places], surface.options)
        for at, s in enumerate(places):
            row = int(np.searchsorted(batches, largest[s]))
            gain = np.where(fitting.fits[row, at, 1:], fitting.speedup[row, at, 1:], -np.inf)
            if gain.max() <= 1.0:  # no reason to run fewer
                continue
            chosen = BatchRange(first=row, last=row, configuration=1 + int(np.argmax(gain)))
            rows.append(replace(schedule_row(fitting, at, chosen, question), batch_min=largest[s]))
    return tuple(rows)


def _best(surface: Surface, question: Question, *, speculate: bool) -> OperatingPoint | None:
    """The largest throughput among the question's own batches that fit and keep the latency."""
    return fastest(
        *(
            best_operating_point(surface, s, question.max_latency_us, speculate=speculate)
            for s in range(surface.seq_len.size)
        )
    )


def by_drafts(surface: Surface, at: int, s: int) -> tuple[DraftsGain, ...]:
    """For each draft length the best count and its speedup at one batch and length."""
    depth = np.asarray([0, *(option.depth for option in surface.options)])[surface.option + 1]
    gains = []
    for drafts in distinct(depth[1:]):
        members = np.flatnonzero(depth == drafts)
        best = int(members[np.argmax(surface.speedup[at, s, members])])
        gains.append(
            DraftsGain(int(drafts), int(surface.candidates[best]), float(surface.speedup[at, s, best]))
        )
    return tuple(gains)


def _requests(
    surface: Surface, question: Question, ranges: Sequence[Sequence[BatchRange]]
) -> tuple[RequestLatency, ...]:
    """Requests at the smallest batch and the largest that fits, with the schedule's at the nearest length."""
    if question.request is None:
        return ()
    prompt, output = question.request
    s = int(np.argmin(np.abs(surface.seq_len - request_length(prompt, output))))
    fitting = np.flatnonzero(surface.fits[:, s, 0])
    ends = {int(surface.batch[i]): i for i in (fitting[:1].tolist() + fitting[-1:].tolist())}
    return tuple(
        _request(surface, question.request, batch, _configuration(ranges[s], i)) for batch, i in ends.items()
    )


def _request(
    surface: Surface, prompt_output: tuple[int, int], batch: int, configuration: int
) -> RequestLatency:
    option, count = surface.option_of(configuration), int(surface.candidates[configuration])
    prompt, output = prompt_output
    return request_latency(
        surface.setting, option, count, batch=batch, prompt_tokens=prompt, output_tokens=output
    )


def request_at(answer: Recommendation, batch: int, seq_len: int) -> RequestLatency | None:
    """One of `batch` requests with what the schedule runs there; None where none was asked about.

    Raises UsageError for a batch or length that was not searched.
    """
    i, j = _place(answer, batch, seq_len)
    if (asked := answer.question.request) is None:
        return None
    return _request(answer.surface, asked, batch, _configuration(answer.ranges[j], i))


def scheduled_row_at(answer: Recommendation, batch: int, seq_len: int) -> ScheduleRow:
    """The schedule's row at one batch and length of the question, with its figures at that very batch.

    `best_candidates` and `near_best` of the row say what that batch alone would take.
    Raises UsageError for a batch or length that was not searched.
    """
    surface, (i, j) = answer.surface, _place(answer, batch, seq_len)
    chosen = _configuration(answer.ranges[j], i)
    return schedule_row(surface, j, BatchRange(first=i, last=i, configuration=chosen), answer.question)


def _configuration(ranges: Sequence[BatchRange], i: int) -> int:
    """What the schedule of a length runs at a batch's place on the surface."""
    return next(span.configuration for span in ranges if span.first <= i <= span.last)


def scheduled_counts(answer: Recommendation, seq_len: int) -> dict[int, int]:
    """Batch -> the count that the schedule runs there (1: none), for every batch searched."""
    surface = answer.surface
    _, j = _place(answer, int(surface.batch[0]), seq_len)
    return {
        int(surface.batch[i]): int(surface.candidates[span.configuration])
        for span in answer.ranges[j]
        for i in range(span.first, span.last + 1)
    }


def gains_by_batch(answer: Recommendation, seq_len: int) -> list[dict[str, float | int | bool]]:
    """What the schedule gains at every batch searched, a row each.

    batch, candidates, drafts (0: none), speedup, speedup_low, speedup_high (80 %), fits_memory.
    """
    surface = answer.surface
    _, j = _place(answer, int(surface.batch[0]), seq_len)
    rows: list[dict[str, float | int | bool]] = []
    for span in answer.ranges[j]:
        every, chosen = np.arange(span.first, span.last + 1), span.configuration
        low, high = surface.bands_at(every, j, chosen)
        option, count = surface.option_of(chosen), int(surface.candidates[chosen])
        rows += [
            {
                "batch": int(surface.batch[at]),
                "candidates": count,
                "drafts": 0 if option is None else option.drafts(count),
                "speedup": float(surface.speedup[at, j, chosen]),
                "speedup_low": float(low[i]),
                "speedup_high": float(high[i]),
                "fits_memory": bool(surface.fits[at, j, chosen]),
            }
            for i, at in enumerate(every)
        ]
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoSteps:
    """A plain step and a speculative one at a batch and length, part by part; setting: of the latter."""

    setting: Setting
    candidates: int
    plain: StepTime
    speculative: StepTime


def steps_at(answer: Recommendation, batch: int, seq_len: int, *, scheduled: bool = False) -> TwoSteps:
    """Both steps at one batch and length of the question, whether speculating pays there or not.

    The speculative one is the best there; scheduled: the schedule's, where that speculates.
    Raises UsageError for a batch or length that was not searched.
    """
    surface, (i, j) = answer.surface, _place(answer, batch, seq_len)
    best = best_speculative(surface, i, j, _configuration(answer.ranges[j], i) if scheduled else PLAIN)
    option = surface.option_of(best)
    assert option is not None  # noqa: S101  # `best_speculative` gives a configuration that speculates
    setting = replace(answer.setting, drafter=option.drafter)
    count = int(surface.candidates[best])
    return TwoSteps(
        setting=setting,
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
