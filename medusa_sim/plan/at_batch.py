"""A recommendation read at one batch and length: the row there, and both steps part by part."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from medusa_sim.errors import UsageError
from medusa_sim.plan.break_even import best_speculative
from medusa_sim.plan.recommend import batch_ranges
from medusa_sim.plan.recommendation import Recommendation
from medusa_sim.plan.schedule import BatchRange, ScheduleRow, schedule_row
from medusa_sim.plan.surface import PLAIN
from medusa_sim.step.step import Setting, StepTime, decode_step, verify_step


def best_row_at(answer: Recommendation, batch: int, seq_len: int) -> ScheduleRow:
    """What to run at one batch and length of the question alone: its own best configuration that fits.

    Unlike `scheduled_row_at` it gives up nothing for sharing a configuration with other batches.
    Raises UsageError for a batch or length that was not searched.
    """
    surface, (i, j) = answer.surface, _place(answer, batch, seq_len)
    fits = surface.fits[i, j]
    best = int(np.argmax(np.where(fits, surface.speedup[i, j], -np.inf))) if fits.any() else PLAIN
    return schedule_row(surface, j, BatchRange(first=i, last=i, configuration=best), answer.question)


def scheduled_row_at(answer: Recommendation, batch: int, seq_len: int) -> ScheduleRow:
    """The schedule's row at one batch and length of the question, with its figures at that very batch.

    `best_candidates` and `near_best` of the row say what that batch alone would take.
    Raises UsageError for a batch or length that was not searched.
    """
    surface, (i, j) = answer.surface, _place(answer, batch, seq_len)
    chosen = _configuration(answer, i, j)
    return schedule_row(surface, j, BatchRange(first=i, last=i, configuration=chosen), answer.question)


def _configuration(answer: Recommendation, i: int, j: int) -> int:
    """What the schedule runs at a place of the surface."""
    ranges = batch_ranges(answer.surface, j, answer.question)
    return next(found.configuration for found in ranges if found.first <= i <= found.last)


def scheduled_counts(answer: Recommendation, seq_len: int) -> dict[int, int]:
    """Batch -> the count that the schedule runs there (1: none), for every batch searched."""
    surface = answer.surface
    _, j = _place(answer, int(surface.batch[0]), seq_len)
    return {
        int(surface.batch[i]): int(surface.candidates[found.configuration])
        for found in batch_ranges(surface, j, answer.question)
        for i in range(found.first, found.last + 1)
    }


def gains_by_batch(answer: Recommendation, seq_len: int) -> list[dict[str, float | int | bool]]:
    """What the schedule gains at every batch searched, a row each.

    batch, candidates, drafts (0: none), speedup, speedup_low, speedup_high (80 %), fits_memory.
    """
    surface = answer.surface
    _, j = _place(answer, int(surface.batch[0]), seq_len)
    rows: list[dict[str, float | int | bool]] = []
    for found in batch_ranges(surface, j, answer.question):
        every, chosen = np.arange(found.first, found.last + 1), found.configuration
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
    best = best_speculative(surface, i, j, _configuration(answer, i, j) if scheduled else PLAIN)
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
