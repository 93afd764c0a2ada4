"""A schedule: which configuration runs which batches, at each length or over several."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from medusa_sim.grid.cells import Cells, price
from medusa_sim.grid.configurations import PLAIN
from medusa_sim.plan.batch_ranges import BatchRange, merge_batches
from medusa_sim.plan.break_even import BreakEven
from medusa_sim.plan.schedule_row import ScheduleRow
from medusa_sim.scenario.question import Question
from medusa_sim.scenario.scenario import Scenario


def ranges_over(
    length_indices: Sequence[int], cells: Cells, question: Question, break_evens: Sequence[BreakEven]
) -> tuple[BatchRange, ...]:
    """Ranges that share a configuration over some lengths: by the geometric mean of its speedups.

    Drafts are made at a batch where `break_evens` say so for every length; where lengths disagree, if their
    mean gains there; nowhere if the mean gains at no batch. Batches that do not fit, or exceed the limit of
    latency, have ranges of their own; where every configuration exceeds it the fastest runs all the same.
    length_indices: which lengths; break_evens: of every length.
    """
    contenders = cells.contenders
    speedup = np.exp(np.log(contenders.speedup[:, length_indices]).mean(axis=1))
    fits = np.asarray(contenders.fits[:, length_indices].all(axis=1))
    in_time = np.asarray(contenders.fits_in_time(question.max_latency_us)[:, length_indices].all(axis=1))
    is_late = np.asarray(~in_time.any(axis=1))
    mean_gains = np.where(fits, speedup, 0.0)[:, 1:].max(axis=1, initial=0.0) > 1.0
    is_drafting = np.asarray([break_evens[s].is_drafting(cells.surface.batch) for s in length_indices])
    all_draft, some_draft = is_drafting.all(axis=0), is_drafting.any(axis=0)
    merged = merge_batches(
        speedup,
        np.where(is_late[:, None], fits, in_time),
        question.switching_gain,
        # a number for each of the four kinds of batches
        groups=is_late + 2 * ~fits[:, PLAIN],
        drafted=(all_draft & mean_gains.any()) | (some_draft & mean_gains),
        halves=contenders.spread(contenders.speedup_band.half)[:, length_indices].mean(axis=1),
    )
    configurations = contenders.index[0, 0]
    return tuple(replace(one, configuration=int(configurations[one.configuration])) for one in merged)


def kept_rows(rows: Iterable[ScheduleRow]) -> list[ScheduleRow]:
    """Rows that keep the limit of latency; all of them where there is no limit."""
    return [row for row in rows if row.meets_latency is not False]


def drafting_rows(rows: Iterable[ScheduleRow]) -> list[ScheduleRow]:
    """Those of them that draft."""
    return [row for row in kept_rows(rows) if row.candidates > 1]


def schedule_rows(
    every: Cells, s: int, ranges: tuple[BatchRange, ...], question: Question
) -> list[ScheduleRow]:
    """The rows of these ranges of batches at the `s`-th length of a search."""
    cells = every.contenders
    columns = np.searchsorted(cells.index[0, 0], [one.configuration for one in ranges]).tolist()
    return [
        ScheduleRow(cells=cells, b=one.last, s=s, k=k, every=every, batch_range=one, question=question)
        for k, one in zip(columns, ranges, strict=True)
    ]


def where_it_fits(scenario: Scenario, cells: Cells, question: Question) -> tuple[ScheduleRow, ...]:
    """A row for each length where speculation pays but does not fit at some batch: the largest that gains."""
    rows: list[ScheduleRow] = []
    for s in range(cells.surface.seq_len.size):
        if batch := _largest_that_gains(cells, s):
            fitting = price(scenario, [batch], cells.surface.seq_len[[s]], cells.configurations.options)
            speedup = np.where(fitting.fits[0, 0, 1:], fitting.speedup_at(0, 0)[1:], -np.inf)
            if speedup.max() > 1.0:  # else there is no reason to run fewer
                best = 1 + int(np.argmax(speedup))
                alone = BatchRange(first=0, last=0, configuration=best, begins_at_first=True)
                rows += schedule_rows(fitting, 0, (alone,), question)
    return tuple(rows)


def _largest_that_gains(cells: Cells, s: int) -> int:
    """The largest batch that fits with what gains at the first batch with no room to draft; 0: none."""
    pays = (cells.contenders.speedup[:, s, 1:] > 1.0).any(axis=-1)
    no_room = np.flatnonzero(pays & ~cells.fits[:, s, 1:].any(axis=-1))
    if not no_room.size:
        return 0
    gains = cells.speedup_at(int(no_room[0]), s)[1:] > 1.0
    return int(cells.surface.max_batch[s, 1:][gains].max())


def scheduled_counts(rows: Iterable[ScheduleRow]) -> dict[int, int]:
    """Batch -> the count that runs there (1: none), for every batch searched. rows: of one length."""
    counts: dict[int, int] = {}
    for row in rows:
        counts |= dict.fromkeys(row.batches.tolist(), row.candidates)
    return counts


def gains_by_batch(rows: Iterable[ScheduleRow]) -> list[dict[str, float | int | bool]]:
    """Gains at every batch searched, a row each. rows: of one length.

    batch, candidates, drafts (0: none), speedup, speedup_low, speedup_high (80 %), fits_memory,
    no_room_to_draft (drafts would pay, but memory does not hold their drafter).
    """
    found: list[dict[str, float | int | bool]] = []
    for row in rows:
        every = {
            "candidates": row.candidates,
            "drafts": row.drafts,
            "no_room_to_draft": row.candidates == 1 and row.verdict == "pays",
        }
        columns = {
            "batch": row.batches,
            "speedup": row.speedup_by_batch,
            "speedup_low": row.band_by_batch.low,
            "speedup_high": row.band_by_batch.high,
            "fits_memory": row.cells.fits[row.batch_range.slice, row.s, row.k],
        }
        values = (column.tolist() for column in columns.values())
        found += [dict(zip(columns, each, strict=True)) | every for each in zip(*values, strict=True)]
    return found
