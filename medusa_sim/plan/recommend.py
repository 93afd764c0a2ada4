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
from medusa_sim.plan.alike import best_speculative
from medusa_sim.plan.break_even import (
    BreakEven,
    break_even_batches,
    break_even_context,
    coarse,
    longest_asked,
)
from medusa_sim.plan.capacity import batches_tried, best_operating_point, capacities, fastest
from medusa_sim.plan.cell import Cell
from medusa_sim.plan.cells import Cells, price
from medusa_sim.plan.configurations import PLAIN
from medusa_sim.plan.counts import free_budget
from medusa_sim.plan.question import Question
from medusa_sim.plan.recommendation import Recommendation
from medusa_sim.plan.request import RequestLatency, request_latency
from medusa_sim.plan.scenario import Scenario
from medusa_sim.plan.schedule import BatchRange, merge_batches
from medusa_sim.plan.schedule_row import ScheduleRow, schedule_rows
from medusa_sim.plan.surface import in_groups
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
    cells = price(scenario, asked.batches, lengths, options)
    searched, largest = cells.surface.batch, cells.surface.max_batch[:, PLAIN].tolist()
    first = coarse(scenario, options, lengths, searched, lambda s: batches_tried(largest[s]))
    paying = break_even_batches(scenario, options, lengths, cells, first)
    # the last batch before each crossing that lies between two searched ones, and the first behind it
    starts = {edge for crossing in paying for span in crossing.spans for edge in (span[0], span[1] + 1)}
    near = {n for edge in starts for n in (edge - 1, edge)}.difference(searched.tolist())
    if edges := sorted(n for n in near if searched[0] < n < searched[-1]):
        # a row that stands for batches between two searched ones must not cross break-even either
        cells = price(scenario, distinct(searched, edges), lengths, options)
        paying = break_even_batches(scenario, options, lengths, cells, first)
    ranges = tuple(batch_ranges(cells, s, asked, paying[s]) for s in range(lengths.size))
    rows = [row for s, those in enumerate(ranges) for row in schedule_rows(cells, s, those, asked)]
    counts = cells.configurations.counts
    free = counts[free_budget(cells.by_count.overhead, asked.free_within) - 1]
    best_with = _best(cells, asked, speculate=True)
    best_without = _best(cells, asked, speculate=False)
    if asked.objective == "latency":
        enable = any(row.candidates > 1 and row.meets_latency is not False for row in rows)
    else:
        least = 0.0 if best_without is None else best_without.tokens_per_s
        enable = best_with is not None and best_with.tokens_per_s > least
    return Recommendation(
        question=asked,
        scenario=scenario,
        cells=cells,
        enable=enable,
        break_even_batches=paying,
        break_even_context=break_even_context(
            scenario, options, asked.batch_max, longest_asked(scenario, int(lengths.max())), cells
        ),
        free_candidates=tuple(
            (int(batch), int(seq_len), int(free[i, s]))
            for s, seq_len in enumerate(lengths)
            for i, batch in enumerate(cells.surface.batch)
        ),
        schedule=tuple(rows),
        ranges=ranges,
        schedule_all_lengths=_all_lengths(cells, asked, paying),
        by_drafts=by_drafts(cells, 0, 0),
        best_with=best_with,
        best_without=best_without,
        capacities=capacities(
            scenario, options, [(at.cells, at.s) for at in first], cells, asked.max_latency_us
        ),
        requests=_requests(cells, asked, ranges),
        where_it_fits=_where_it_fits(scenario, cells, asked),
    )


def batch_ranges(cells: Cells, s: int, question: Question, paying: BreakEven) -> tuple[BatchRange, ...]:
    """Ranges of one length; batches that do not fit, or keep no limit of latency, stand apart.

    Drafts are made where `paying` says; nowhere, where none of the batches asked about has a predicted gain.
    """
    speedup, fits = cells.speedup[:, s], cells.fits[:, s]
    gains = bool((fits & (speedup > 1.0))[:, 1:].any())
    drafted = paying.drafts_at(cells.surface.batch) & gains
    in_time = _in_time(cells, question)[:, s]
    return _merged(speedup, fits, in_time, question.switching_gain, drafted, _halves(cells)[:, s])


def _halves(cells: Cells) -> FloatArray:
    """(B, S, J) half-width of each configuration's speedup: that of its count."""
    return halves(cells.by_count)[..., cells.configurations.column]


def _in_time(cells: Cells, question: Question) -> BoolArray:
    """(B, S, J) whether a configuration keeps the time per token that was asked for."""
    limit_us = np.inf if question.max_latency_us is None else question.max_latency_us
    return np.asarray(cells.tpot_us <= limit_us)


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


def _all_lengths(cells: Cells, question: Question, paying: Sequence[BreakEven]) -> tuple[ScheduleRow, ...]:
    """Rows that share a configuration over all lengths: geometric mean of the speedups.

    Drafts are made where they are at every length, and where lengths differ by the sign of the mean.
    """
    mean = np.exp(np.log(cells.speedup).mean(axis=1))
    fits, in_time = (np.asarray(of.all(axis=1)) for of in (cells.fits, _in_time(cells, question)))
    gains = np.where(fits, mean, 0.0)[:, 1:].max(axis=1, initial=0.0) > 1.0
    each = np.asarray([one.drafts_at(cells.surface.batch) for one in paying])
    drafted = (each.all(axis=0) & gains.any()) | (each.any(axis=0) & gains)
    rows = []
    ranges = _merged(mean, fits, in_time, question.switching_gain, drafted, _halves(cells).mean(axis=1))
    for row in schedule_rows(cells, 0, ranges, question):
        worst = np.argmin(cells.speedup[row.batches.last, :, row.batches.configuration])
        rows.append(replace(row, s=int(worst)))
    return tuple(rows)


def _where_it_fits(scenario: Scenario, cells: Cells, question: Question) -> tuple[ScheduleRow, ...]:
    """For each length with a batch where speculation pays but has no room: the largest that gains."""
    largest, surface = {}, cells.surface
    for s in range(surface.seq_len.size):
        pays = cells.speedup[:, s, 1:] > 1.0
        shut = np.flatnonzero(pays.any(axis=-1) & ~cells.fits[:, s, 1:].any(axis=-1))
        if shut.size and (most := int(surface.max_batch[s, 1:][pays[shut[0]]].max())) > 0:
            largest[s] = most
    rows = []
    for group in in_groups(len(largest)):
        places = list(largest)[group]
        batches = distinct([largest[s] for s in places])
        fitting = price(scenario, batches, surface.seq_len[places], cells.configurations.options)
        for at, s in enumerate(places):
            row = int(np.searchsorted(batches, largest[s]))
            gain = np.where(fitting.fits[row, at, 1:], fitting.speedup[row, at, 1:], -np.inf)
            if gain.max() <= 1.0:  # no reason to run fewer
                continue
            chosen = BatchRange(first=row, last=row, configuration=1 + int(np.argmax(gain)), alone=True)
            rows += schedule_rows(fitting, at, (chosen,), question)
    return tuple(rows)


def _best(cells: Cells, question: Question, *, speculate: bool) -> Cell | None:
    """The largest throughput among the question's own batches that fit and keep the latency."""
    return fastest(
        *(
            best_operating_point(cells, s, question.max_latency_us, speculate=speculate)
            for s in range(cells.surface.seq_len.size)
        )
    )


def by_drafts(cells: Cells, at: int, s: int) -> tuple[Cell, ...]:
    """For each draft length the best count and its speedup at one batch and length."""
    depth = cells.configurations.depth
    gains = []
    for drafts in distinct(depth[1:]):
        members = np.flatnonzero(depth == drafts)
        best = int(members[np.argmax(cells.speedup[at, s, members])])
        gains.append(Cell(cells=cells, at=at, s=s, k=best))
    return tuple(gains)


def _requests(
    cells: Cells, question: Question, ranges: Sequence[Sequence[BatchRange]]
) -> tuple[RequestLatency, ...]:
    """Requests at the smallest batch and the largest that fits, with the schedule's at the nearest length."""
    if question.request is None:
        return ()
    prompt, output = question.request
    surface = cells.surface
    s = int(np.argmin(np.abs(surface.seq_len - request_length(prompt, output))))
    fitting = np.flatnonzero(cells.fits[:, s, PLAIN])
    ends = {int(surface.batch[i]): i for i in (fitting[:1].tolist() + fitting[-1:].tolist())}
    return tuple(
        _request(cells, question.request, batch, _configuration(ranges[s], i)) for batch, i in ends.items()
    )


def _request(cells: Cells, prompt_output: tuple[int, int], batch: int, configuration: int) -> RequestLatency:
    option = cells.configurations.option_of(configuration)
    count = int(cells.configurations.candidates[configuration])
    prompt, output = prompt_output
    return request_latency(
        cells.scenario, option, count, batch=batch, prompt_tokens=prompt, output_tokens=output
    )


def request_at(answer: Recommendation, batch: int, seq_len: int) -> RequestLatency | None:
    """One of `batch` requests with what the schedule runs there; None where none was asked about.

    Raises UsageError for a batch or length that was not searched.
    """
    i, j = _place(answer, batch, seq_len)
    if (asked := answer.question.request) is None:
        return None
    return _request(answer.cells, asked, batch, _configuration(answer.ranges[j], i))


def scheduled_row_at(answer: Recommendation, batch: int, seq_len: int) -> ScheduleRow:
    """The schedule's row at one batch and length of the question, with its figures at that very batch.

    `best_candidates` and `near_best` of the row say what that batch alone would take.
    Raises UsageError for a batch or length that was not searched.
    """
    i, j = _place(answer, batch, seq_len)
    chosen = _configuration(answer.ranges[j], i)
    alone = BatchRange(first=i, last=i, configuration=chosen)
    (row,) = schedule_rows(answer.cells, j, (alone,), answer.question)
    return row


def _configuration(ranges: Sequence[BatchRange], i: int) -> int:
    """What the schedule of a length runs at a batch's place on the surface."""
    return next(span.configuration for span in ranges if span.first <= i <= span.last)


def scheduled_counts(answer: Recommendation, seq_len: int) -> dict[int, int]:
    """Batch -> the count that the schedule runs there (1: none), for every batch searched."""
    batch = answer.cells.surface.batch
    _, j = _place(answer, int(batch[0]), seq_len)
    return {
        int(batch[i]): int(answer.cells.configurations.candidates[span.configuration])
        for span in answer.ranges[j]
        for i in range(span.first, span.last + 1)
    }


def gains_by_batch(answer: Recommendation, seq_len: int) -> list[dict[str, float | int | bool]]:
    """What the schedule gains at every batch searched, a row each.

    batch, candidates, drafts (0: none), speedup, speedup_low, speedup_high (80 %), fits_memory.
    """
    batch = answer.cells.surface.batch
    _, j = _place(answer, int(batch[0]), seq_len)
    rows: list[dict[str, float | int | bool]] = []
    for row in schedule_rows(answer.cells, j, answer.ranges[j], answer.question):
        low, high = (np.broadcast_to(end, row.cells.shape)[:, j, 0] for end in row.cells.band)
        rows += [
            {
                "batch": int(batch[at]),
                "candidates": row.candidates,
                "drafts": row.drafts,
                "speedup": float(row.cells.speedup[at, j, 0]),
                "speedup_low": float(low[at]),
                "speedup_high": float(high[at]),
                "fits_memory": bool(row.cells.fits[at, j, 0]),
            }
            for at in range(row.batches.first, row.batches.last + 1)
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
    cells, (i, j) = answer.cells, _place(answer, batch, seq_len)
    best = best_speculative(cells, i, j, _configuration(answer.ranges[j], i) if scheduled else PLAIN)
    option = cells.configurations.option_of(best)
    assert option is not None  # noqa: S101  # `best_speculative` gives a configuration that speculates
    setting = replace(answer.setting, drafter=option.drafter)
    count = int(cells.configurations.candidates[best])
    return TwoSteps(
        setting=setting,
        candidates=count,
        plain=decode_step(setting, batch, seq_len),
        speculative=verify_step(setting, batch, seq_len, count),
    )


def _place(answer: Recommendation, batch: int, seq_len: int) -> tuple[int, int]:
    surface = answer.cells.surface
    at, s = np.flatnonzero(surface.batch == batch), np.flatnonzero(surface.seq_len == seq_len)
    if not at.size or not s.size:
        raise UsageError(
            f"batch {batch}, length {seq_len} was not searched; ask for batches {surface.batch[0]}.."
            f"{surface.batch[-1]} at lengths {', '.join(map(str, surface.seq_len))}"
        )
    return int(at[0]), int(s[0])
