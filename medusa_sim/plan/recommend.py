"""The decision: speculate or not, with how many candidates, up to which batch, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from medusa_sim.arrays import BoolArray, FloatArray, IntArray
from medusa_sim.errors import UsageError
from medusa_sim.latency.by_name import cached
from medusa_sim.plan.break_even import (
    BreakEven,
    break_even_batches,
    break_even_context,
    coarse,
    longest_asked,
)
from medusa_sim.plan.capacity import OperatingPoint, batches_tried, best_operating_point, capacities
from medusa_sim.plan.question import Question
from medusa_sim.plan.recommendation import DraftsGain, Recommendation, RequestLatency, request_latency
from medusa_sim.plan.scenario import Scenario
from medusa_sim.plan.schedule import BatchRange, ScheduleRow, free_candidates, merge_batches, schedule_row
from medusa_sim.plan.surface import PLAIN, Surface, price


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
            "prompt_tokens, output_tokens: a recommendation takes one request (--prompt-tokens, "
            "--output-tokens); `sweep` takes the traffic of a server"
        )
    # One memory of kernel times for every surface of this answer.
    kept = scenario.but(latency=cached(scenario.latency), kernels=_kernels(scenario))
    options = kept.options(asked.candidates_max)
    lengths = np.asarray(asked.seq_len, dtype=np.int64)
    surface = price(kept, asked.batches, lengths, options)
    first = coarse(
        kept, options, lengths, surface.batch, lambda s: batches_tried(int(surface.max_batch[s, PLAIN]))
    )
    paying = break_even_batches(kept, options, lengths, surface, first)
    if edges := _edges_between(surface.batch, paying):
        # a row that stands for batches between two searched ones must not cross break-even either
        surface = price(kept, np.union1d(surface.batch, edges), lengths, options)
        paying = break_even_batches(kept, options, lengths, surface, first)
    schedules = [batch_ranges(surface, s, asked) for s in range(lengths.size)]
    rows = [schedule_row(surface, s, found, asked) for s, ranges in enumerate(schedules) for found in ranges]
    best_with = _best(surface, asked, speculate=True)
    best_without = _best(surface, asked, speculate=False)
    return Recommendation(
        question=asked,
        scenario=scenario,
        surface=surface,
        enable=_enabled(asked, rows, best_with, best_without),
        break_even_batches=paying,
        break_even_context=break_even_context(
            kept, options, asked.batch_max, longest_asked(kept, int(lengths.max())), surface
        ),
        free_candidates=_free_candidates(surface, asked.free_within),
        schedule=tuple(rows),
        schedule_all_lengths=_all_lengths(surface, asked),
        by_drafts=by_drafts(surface, 0, 0),
        best_with=best_with,
        best_without=best_without,
        capacities=capacities(kept, options, [at.surface for at in first], surface, asked.max_latency_us),
        requests=_requests(kept, surface, asked),
        where_it_fits=_where_it_fits(kept, surface, asked),
    )


def _edges_between(batch: IntArray, paying: Sequence[BreakEven]) -> list[int]:
    """The last batch before each crossing that lies between two searched ones, and the first behind it."""
    starts = {edge for found in paying for span in found.spans for edge in (span[0], span[1] + 1)}
    near = {n for edge in starts for n in (edge - 1, edge)}
    return sorted(n for n in near.difference(batch.tolist()) if batch[0] < n < batch[-1])


def _kernels(scenario: Scenario) -> str | None:
    return None if scenario.kernels == "none" else scenario.kernels


def batch_ranges(surface: Surface, s: int, question: Question) -> tuple[BatchRange, ...]:
    """Ranges of one length; batches that do not fit, or keep no limit of latency, stand apart."""
    return _merged(
        surface.speedup[:, s], surface.fits[:, s], _in_time(surface, question)[:, s], question.switching_gain
    )


def _in_time(surface: Surface, question: Question) -> BoolArray:
    """(B, S, J) whether a configuration keeps the time per token that was asked for."""
    limit_us = np.inf if question.max_latency_us is None else question.max_latency_us
    return np.asarray(surface.step_us / surface.tokens_per_step <= limit_us)


def _merged(speedup: FloatArray, fits: BoolArray, in_time: BoolArray, gain: float) -> tuple[BatchRange, ...]:
    """Ranges of (B, J) cells; a batch at which nothing is in time takes what is fastest all the same."""
    kept = fits & in_time
    late = np.asarray(~kept.any(axis=1))
    allowed = np.where(late[:, None], fits, kept)
    return merge_batches(speedup, allowed, gain, apart=late + 2 * ~fits[:, PLAIN])


def _all_lengths(surface: Surface, question: Question) -> tuple[ScheduleRow, ...]:
    """Rows that share a configuration over all lengths: geometric mean of the speedups."""
    mean = np.exp(np.log(surface.speedup).mean(axis=1))
    fits, in_time = (np.asarray(of.all(axis=1)) for of in (surface.fits, _in_time(surface, question)))
    rows = []
    for batches in _merged(mean, fits, in_time, question.switching_gain):
        worst = int(np.argmin(surface.speedup[batches.last, :, batches.configuration]))
        rows.append(schedule_row(surface, worst, batches, question))
    return tuple(rows)


def _where_it_fits(scenario: Scenario, surface: Surface, question: Question) -> tuple[ScheduleRow, ...]:
    """For each length with a batch where speculation pays but leaves no room: the largest that fits."""
    found = []
    for s, length in enumerate(surface.seq_len):
        pays = surface.speedup[:, s, 1:] > 1.0
        shut = np.flatnonzero(pays.any(axis=-1) & ~surface.fits[:, s, 1:].any(axis=-1))
        if shut.size == 0:
            continue
        largest = int(surface.max_batch[s, 1:][pays[shut[0]]].max())
        if largest < 1:
            continue
        one = price(scenario, [largest], [int(length)], surface.options)
        fitting = np.where(one.fits[0, 0, 1:], one.speedup[0, 0, 1:], -np.inf)
        chosen = BatchRange(first=0, last=0, configuration=1 + int(np.argmax(fitting)))
        found.append(schedule_row(one, 0, chosen, question))
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
        return any(row.candidates > 1 and row.meets_latency is not False for row in rows)
    if best_with is None or best_without is None:
        return best_with is not None
    return best_with.tokens_per_s > best_without.tokens_per_s


def _free_candidates(surface: Surface, within: float) -> tuple[tuple[int, int, int], ...]:
    """(batch, length, free budget) at every batch and length, lengths outermost."""
    free = free_candidates(surface, within)
    return tuple(
        (int(batch), int(seq_len), int(free[i, s]))
        for s, seq_len in enumerate(surface.seq_len)
        for i, batch in enumerate(surface.batch)
    )


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


def _requests(scenario: Scenario, surface: Surface, question: Question) -> tuple[RequestLatency, ...]:
    """Requests at the smallest and the largest batch, with what the schedule runs at the nearest length."""
    if question.request is None:
        return ()
    prompt, output = question.request
    s = int(np.argmin(np.abs(surface.seq_len - (prompt + output // 2))))
    ranges = batch_ranges(surface, s, question)
    found = []
    for batch in sorted({question.batch_min, question.batch_max}):
        chosen = (ranges[0] if batch == question.batch_min else ranges[-1]).configuration
        found.append(
            request_latency(
                scenario.setting,
                surface.option_of(chosen),
                int(surface.candidates[chosen]),
                batch=batch,
                prompt_tokens=prompt,
                output_tokens=output,
            )
        )
    return tuple(found)
