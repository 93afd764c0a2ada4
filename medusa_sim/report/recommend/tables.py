"""The schedule of a recommendation as a table, a line a row."""

from __future__ import annotations

from collections.abc import Callable

from medusa_sim.grid.quantity import BY_NAME, with_unlisted
from medusa_sim.plan.recommendation import Recommendation
from medusa_sim.plan.schedule_row import ScheduleRow
from medusa_sim.report.quantity_table import quantity_table, quantity_text
from medusa_sim.report.table import TextTable
from medusa_sim.report.words.numbers import NOTHING, span, times_between

_OF_DRAFTS = (
    "tokens_per_step", "speedup", "interval", "step_speedup", "speedup_acceptance_minus_10_percent",
)  # fmt: skip
"""Columns that are empty in rows without speculation."""
_OF_A_STEP = (
    "verify_step_us", "tokens_per_s_per_user", "plain_tokens_per_s_per_user", "tokens_per_s",
    "plain_tokens_per_s", "usd_per_million_tokens", "joule_per_token", "free_candidates",
)  # fmt: skip
"""Columns that are empty in rows that do not fit."""
_EXPENDABLE = (
    "max_batch_with", "joule_per_token", "free_candidates", "speedup_acceptance_minus_10_percent",
    "usd_per_million_tokens", "verify_step_us", "plain_tokens_per_s", "plain_tokens_per_s_per_user",
    "step_speedup", "tokens_per_step",
)  # fmt: skip
"""Columns that a narrow table leaves out, the first one first."""


def drafts_text(row: ScheduleRow, number: int) -> str:
    """A number of drafts or candidates, or why there are none; `(late)` of a row that exceeds the limit."""
    if not row.fits_memory:
        return "no room"
    late = " (late)" if row.meets_latency is False else ""
    return f"{number if row.candidates > 1 else 'off'}{late}"


def schedule_table(answer: Recommendation) -> TextTable:
    """One line a row of the schedule; speedup and band from the lowest to the highest of its batches."""
    chains = answer.chains
    unit = "heads" if answer.scenario.drafting.drafter_class.unit == "head" and not chains else "drafts"

    worded: dict[str, Callable[[ScheduleRow], str]] = {
        "batch": lambda row: span(row.batch_min, row.batch_max),
        "seq_len": lambda row: f"{row.seq_len:,}",
        "candidates": lambda row: drafts_text(row, row.candidates),
        unit: lambda row: (
            drafts_text(row, row.drafts) if chains else str(row.drafts) if row.candidates > 1 else NOTHING
        ),
        "speedup": lambda row: times_between(row.speedup_lowest, row.speedup_highest),
        "interval": lambda row: f"{row.interval_low:.2f}-{row.interval_high:.2f}",
        "free_candidates": lambda row: str(row.free_candidates - chains),
        "max_batch_with": lambda row: " -> ".join(
            dict.fromkeys((str(row.max_batch_without), str(row.max_batch_with)))
        ),
    }
    left_out = {
        *(["candidates"] if chains else []),  # drafts say it all
        *(["step_speedup"] if answer.scenario.traffic is None else []),
        *(["seq_len"] if len(answer.question.seq_len) == 1 else []),
    }

    def cell(name: str, row: ScheduleRow) -> str:
        if name in _OF_DRAFTS and row.candidates == 1:
            return NOTHING
        if name in _OF_A_STEP and not row.fits_memory:
            return NOTHING
        return worded[name](row) if name in worded else quantity_text(name, row.quantities([name])[name])

    names = ("batch", "seq_len", "candidates", unit, *_OF_DRAFTS, *_OF_A_STEP, "max_batch_with")
    return quantity_table(
        {
            name: [cell(name, row) for row in answer.schedule]
            for name in with_unlisted(names)
            if name not in left_out and BY_NAME[name].title
        },
        expendable=_EXPENDABLE,
    )
