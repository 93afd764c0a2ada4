"""One batch or length of a recommendation: the schedule's row there, its gains, its steps, its requests.

Each function raises UsageError for a batch or length that was not searched.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from medusa_sim.errors import UsageError
from medusa_sim.grid.configurations import PLAIN
from medusa_sim.grid.request_latency import RequestLatency
from medusa_sim.plan.batch_ranges import configuration_at
from medusa_sim.plan.recommendation import Recommendation
from medusa_sim.plan.schedule_row import ScheduleRow
from medusa_sim.scenario.question import EVERY_BATCH_TO
from medusa_sim.step.pass_times import PassTimes
from medusa_sim.step.setting import Setting
from medusa_sim.step.step import decode_step, speculative_step


def request_at(answer: Recommendation, batch: int, seq_len: int) -> RequestLatency | None:
    """One of `batch` requests with what the schedule runs there; None where none was asked about."""
    return answer.request_latency(*_place(answer, batch, seq_len))


def scheduled_row_at(answer: Recommendation, batch: int, seq_len: int) -> ScheduleRow:
    """The schedule's row at one batch and length of the question, with its figures at that very batch.

    `best_candidates` and `near_best` of the row say what that batch alone would take.
    """
    b, s = _place(answer, batch, seq_len)
    row = next(row for row in answer.schedule if row.s == s and row.batches.first <= b <= row.batches.last)
    return replace(row, b=b, batches=replace(row.batches, first=b, last=b))


def rows_at(answer: Recommendation, seq_len: int) -> list[ScheduleRow]:
    """The schedule's rows at one length."""
    _, s = _place(answer, int(answer.cells.surface.batch[0]), seq_len)
    return [row for row in answer.schedule if row.s == s]


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoSteps:
    """A plain step and a speculative one at a batch and length, part by part; setting: of the latter."""

    setting: Setting
    candidates: int
    plain: PassTimes
    speculative: PassTimes


def steps_at(answer: Recommendation, batch: int, seq_len: int, *, scheduled: bool = False) -> TwoSteps:
    """Both steps at one batch and length of the question, whether speculating pays there or not.

    The speculative one is the best there; scheduled: the schedule's, where that speculates.
    """
    cells, (b, s) = answer.cells, _place(answer, batch, seq_len)
    chosen = configuration_at(answer.ranges[s], b) if scheduled else PLAIN
    best = 1 + int(np.argmax(cells.speedup_at(b, s)[1:])) if chosen == PLAIN else chosen
    option = cells.configurations.option_of(best)
    assert option is not None  # noqa: S101  # it speculates
    setting = replace(answer.scenario.setting, drafter=option.drafter)
    count = int(cells.configurations.candidates[best])
    return TwoSteps(
        setting=setting,
        candidates=count,
        plain=decode_step(setting, batch, seq_len),
        speculative=speculative_step(setting, batch, seq_len, count),
    )


def _place(answer: Recommendation, batch: int, seq_len: int) -> tuple[int, int]:
    """Places (b, s) of a batch and length among those searched."""
    surface = answer.cells.surface
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
