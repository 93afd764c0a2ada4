"""The decision: speculate or not, with how many candidates, up to which batch, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from medusa_sim.arrays import IntArray
from medusa_sim.errors import UsageError
from medusa_sim.grid.cell import Cell
from medusa_sim.grid.cells import Cells, price
from medusa_sim.grid.configurations import PLAIN
from medusa_sim.grid.request_latency import RequestLatency, request_with
from medusa_sim.grid.surface import in_groups
from medusa_sim.plan.batch_ranges import BatchRange, configuration_at
from medusa_sim.plan.break_even import (
    BreakEven,
    break_even_batches,
    coarse_searches,
)
from medusa_sim.plan.capacity import batches_tried, best_operating_point, fastest
from medusa_sim.plan.recommendation import Recommendation
from medusa_sim.plan.schedule import ranges_over, schedule_rows
from medusa_sim.plan.schedule_row import ScheduleRow
from medusa_sim.scenario.defaults import request_length
from medusa_sim.scenario.question import Question
from medusa_sim.scenario.scenario import Scenario


def recommend(scenario: Scenario, question: Question | None = None) -> Recommendation:
    """Search every configuration and answer (question None: the default one).

    The traffic of the server is the question's request, else the scenario's own, else the one that `compare`
    and `load` ask about too: speedups and rates are the server's. Only where lengths are asked about without
    a request, or no engine serves any, are they those of a step.
    Raises UsageError where the question or the profile does not fit the drafter, SpecError or
    CoverageError from the latency model.
    """
    scenario, asked = _with_traffic(scenario, Question() if question is None else question)
    options = scenario.options(asked.candidates_max)
    lengths = np.asarray(asked.seq_len, dtype=np.int64)
    cells = price(scenario, asked.batches, lengths, options)
    largest = cells.surface.max_batch[:, PLAIN].tolist()
    coarse = coarse_searches(
        scenario, options, lengths, cells.surface.batch, lambda s: batches_tried(largest[s])
    )
    break_evens = break_even_batches(scenario, options, lengths, cells, coarse)
    if beside := _batches_beside(break_evens, cells.surface.batch):
        # a row that stands for batches between two searched ones must not cross break-even either
        cells = price(scenario, np.union1d(cells.surface.batch, beside), lengths, options)
        break_evens = break_even_batches(scenario, options, lengths, cells, coarse)
    ranges = tuple(ranges_over([s], cells, asked, break_evens) for s in range(lengths.size))
    schedule = tuple(row for s, those in enumerate(ranges) for row in schedule_rows(cells, s, those, asked))
    best_with, best_without = (_best(cells, asked, speculate=speculate) for speculate in (True, False))
    return Recommendation(
        question=asked,
        scenario=scenario,
        cells=cells,
        coarse=coarse,
        enable=_is_worth_it(asked, schedule, best_with, best_without),
        break_even_batches=break_evens,
        schedule=schedule,
        ranges=ranges,
        by_drafts=by_drafts(cells, 0, 0),
        best_with=best_with,
        best_without=best_without,
        requests=_requests(cells, asked, ranges),
        where_it_fits=_where_it_fits(scenario, cells, asked),
    )


def _with_traffic(scenario: Scenario, question: Question) -> tuple[Scenario, Question]:
    """Both with the requests that the answer is about, and the question with its lengths."""
    if scenario.scope != "model":
        raise UsageError(f"scope {scenario.scope}: a recommendation is about whole models; take scope model")
    if question.request is not None:
        prompt, output = question.request
        scenario = scenario.but(prompt_tokens=prompt, output_tokens=output)
    elif not question.seq_len:
        scenario = scenario.with_usual_requests()
    if (traffic := scenario.traffic) is not None and question.request is None:
        question = replace(question, request=(round(traffic.prompt_tokens), round(traffic.output_tokens)))
    return scenario, replace(question, seq_len=question.seq_len or (scenario.length,))


def _batches_beside(break_evens: Sequence[BreakEven], searched: IntArray) -> list[int]:
    """The last batch before each break-even that lies between two searched ones, and the first behind it."""
    starts = {
        edge for break_even in break_evens for first, last in break_even.spans for edge in (first, last + 1)
    }
    near = {batch for start in starts for batch in (start - 1, start)}
    return sorted(near.intersection(range(int(searched[0]) + 1, int(searched[-1]))) - {*searched.tolist()})


def _is_worth_it(
    question: Question, schedule: Sequence[ScheduleRow], best_with: Cell | None, best_without: Cell | None
) -> bool:
    """Whether to speculate (`Recommendation.enable`)."""
    if question.objective == "latency":
        return any(row.candidates > 1 and row.meets_latency is not False for row in schedule)
    least = 0.0 if best_without is None else best_without.tokens_per_s
    return best_with is not None and bool(best_with.tokens_per_s > least)


def _where_it_fits(scenario: Scenario, cells: Cells, question: Question) -> tuple[ScheduleRow, ...]:
    """For each length with a batch where speculation pays but has no room: the largest that gains."""
    largest, surface = {}, cells.surface
    for s in range(surface.seq_len.size):
        pays = (cells.contenders.speedup[:, s, 1:] > 1.0).any(axis=-1)
        shut = np.flatnonzero(pays & ~cells.fits[:, s, 1:].any(axis=-1))
        if shut.size:
            gaining = cells.speedup_at(int(shut[0]), s)[1:] > 1.0
            largest[s] = int(surface.max_batch[s, 1:][gaining].max())
    largest = {s: most for s, most in largest.items() if most > 0}
    rows = []
    for group in in_groups(len(largest)):
        places = list(largest)[group]
        batches = np.unique([largest[s] for s in places])
        fitting = price(scenario, batches, surface.seq_len[places], cells.configurations.options)
        for at, s in enumerate(places):
            row = int(np.searchsorted(batches, largest[s]))
            speedup = np.where(fitting.fits[row, at, 1:], fitting.speedup_at(row, at)[1:], -np.inf)
            if speedup.max() <= 1.0:  # no reason to run fewer
                continue
            best = 1 + int(np.argmax(speedup))
            chosen = BatchRange(first=row, last=row, configuration=best, begins_at_first=True)
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


def by_drafts(cells: Cells, b: int, s: int) -> tuple[Cell, ...]:
    """For each draft length the best count and its speedup at one batch and length."""
    depth, speedup = cells.configurations.depth, cells.speedup_at(b, s)
    members = [np.flatnonzero(depth == drafts) for drafts in np.unique(depth)]
    best = np.asarray([places[np.argmax(speedup[places])] for places in members], dtype=np.int64)
    chosen = cells.with_index(best[None, None, :])
    return tuple(Cell(cells=chosen, b=b, s=s, k=place) for place in range(1, best.size))


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
        request_with(cells, configuration_at(ranges[s], i), batch, question.request)
        for batch, i in ends.items()
    )
