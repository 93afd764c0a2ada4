"""The answer of the page Choose in one sentence, and what must be known beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import notes
import show
import streamlit as st
from chosen import SetUp

from medusa_sim.report.numbers import percent, times

if TYPE_CHECKING:
    from medusa_sim.plan.recommendation import Recommendation
    from medusa_sim.plan.request import RequestLatency
    from medusa_sim.plan.schedule_row import ScheduleRow


def verdict_of(
    set_up: SetUp, answer: Recommendation, row: ScheduleRow, request: RequestLatency | None
) -> None:
    """The answer in one sentence: for what, whether, with how many, what it gains."""
    where = f"{set_up.title}, batch {row.batch_max}"
    if not row.fits_memory:
        st.error(
            f"**{where}: does not fit in memory**, with or without speculation. {_largest(answer)}",
            icon=":material/memory_alt:",
        )
    elif row.candidates == 1:
        st.error(
            f"**{where}: do not enable speculation.** {_why_not(answer, row)}",
            icon=":material/do_not_disturb_on:",
        )
    else:
        whole = "" if request is None else _end_to_end(row, request)
        st.success(
            f"**{where}: verify {row.candidates} candidates a step ({notes.drafts(row)}), "
            f"{times(row.speedup)}.** It emits {row.tokens_per_step:.2f} tokens per step, and a step takes "
            f"{times(row.overhead)} as long. {_flat(row)} {whole}".strip(),
            icon=":material/check_circle:",
        )
    show.beside(notes.warnings(answer)[0])


def _flat(row: ScheduleRow) -> str:
    """Which counts are as good at this batch alone, as a range where the optimum is flat."""
    low, high = row.near_best
    counts = f"{low} to {high}" if low < high else str(row.best_candidates)
    if low <= row.candidates <= high:
        return f"{counts} candidates are as good, within 1 %." if low < high else ""
    lost = 1.0 - row.speedup / row.best_speedup
    return (
        f"This batch alone would take {counts}: {times(row.best_speedup)}; sharing one count with its "
        f"neighbours costs it {percent(lost)}."
    )


def _why_not(answer: Recommendation, row: ScheduleRow) -> str:
    best = f"{times(row.speculative_speedup)} with {row.speculative_candidates} candidates"
    if row.speculative_speedup > 1.0:
        return f"It would give {best}, but its drafter leaves no room in memory. {_largest(answer)}"
    return f"The best of it would give {best}."


def _largest(answer: Recommendation) -> str:
    """What does fit, and what it gains there."""
    if answer.where_it_fits:
        row = answer.where_it_fits[0]
        return (
            f"Batch {row.batch_max} is the largest that fits with it: {times(row.speedup)} with "
            f"{row.candidates} candidates ({notes.drafts(row)})."
        )
    fitting = [row for row in answer.schedule if row.fits_memory]
    if fitting:
        return f"Batch {max(row.batch_max for row in fitting)} is the largest that fits without speculation."
    return "No batch fits: take a larger card, a shorter context or narrower weights."


def _end_to_end(row: ScheduleRow, request: RequestLatency) -> str:
    count = "" if request.candidates == row.candidates else f" (with {request.candidates} candidates)"
    return (
        f"**A request of {request.prompt_tokens:,} + {request.output_tokens:,} tokens: "
        f"{times(request.speedup)} end to end**{count}."
    )
