"""The answer in one sentence, and what must be known beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import notes
import streamlit as st
from chosen import SetUp

from medusa_sim.report.caveats import guessed_text
from medusa_sim.report.recommend_reason import counted
from medusa_sim.report.text import percent, times, with_prefix
from medusa_sim.report.workload_text import workload_text

if TYPE_CHECKING:
    from medusa_sim.plan.recommendation import Recommendation
    from medusa_sim.plan.request import RequestLatency
    from medusa_sim.plan.schedule_row import ScheduleRow


def verdict_of(
    set_up: SetUp, answer: Recommendation, row: ScheduleRow, request: RequestLatency | None
) -> None:
    """The answer in one sentence: for what, whether, with how many, what it gains."""
    workload = workload_text(answer.scenario, [row.seq_len], str(row.batch_max))
    where = f"{set_up.title}, {workload}"
    if not row.fits_memory:
        room = with_prefix(answer.scenario.usable_memory_bytes, "B")
        needed = with_prefix(row.memory_bytes, "B")
        st.error(
            f"**{where}: does not fit in memory**, with or without speculation: a GPU needs {needed} "
            f"and has {room}. {_largest(answer)}",
            icon=":material/memory_alt:",
        )
    elif row.candidates == 1:
        best = f"{times(row.speculative_speedup)} with {counted(answer, row.speculative_candidates)}"
        why = f"The best of it would give {best}."
        if row.verdict == "pays":
            why = f"It would give {best}, but its drafter leaves no room in memory. {_largest(answer)}"
        elif row.verdict == "uncertain":
            ends = f"{row.speculative_speedup_low:.2f} to {row.speculative_speedup_high:.2f}"
            why = f"{why} Its 80 % interval, {ends}, holds both a gain and a loss."
        st.error(f"**{where}: do not enable speculation.** {why}", icon=":material/do_not_disturb_on:")
    else:
        what = (
            f"run {counted(answer, row.candidates)}"
            if answer.chains
            else f"verify {row.candidates} candidates"
        )
        deep = "" if answer.chains else f" ({notes.drafts(row)})"
        whole = "" if request is None else (
            f"**A request of {request.prompt_tokens:,} + {request.output_tokens:,} tokens: "
            f"{times(request.speedup)} end to end**."
        )  # fmt: skip
        is_sure = row.verdict == "pays"
        ends = f"{row.speedup_low:.2f} to {row.speedup_high:.2f}"
        unsure = "" if is_sure else f" Not certain: the 80 % interval, {ends}, holds a loss, too."
        tell = st.success if is_sure else st.warning
        tell(
            f"**{where}: {what} a step{deep}, {times(row.speedup)}.**{unsure} It emits "
            f"{row.tokens_per_step:.2f} tokens per step{guessed_text(answer.scenario, row.drafts)}, and a "
            f"step takes {times(row.overhead)} as long"
            f"{'' if request is None else f'; without prompts to read {times(row.step_speedup)}'}. "
            f"{_flat(answer, row)} {whole}".strip(),
            icon=":material/check_circle:" if is_sure else ":material/help:",
        )


def _flat(answer: Recommendation, row: ScheduleRow) -> str:
    """Which counts are as good at this batch alone, as a range where the optimum is flat."""
    low, high = (count - answer.chains for count in row.near_best)
    few = "" if low == high else f"{low} to "
    counts = f"{few}{counted(answer, high + answer.chains)}"
    if row.near_best[0] <= row.candidates <= row.near_best[1]:
        return f"{counts} are as good, within 1 %." if low < high else ""
    lost = 1.0 - row.speedup / row.best_speedup
    return (
        f"This batch alone would take {counts}: {times(row.best_speedup)}; sharing one number with its "
        f"neighbours costs it {percent(lost)}."
    )


def _largest(answer: Recommendation) -> str:
    """What does fit, and what it gains there."""
    if answer.where_it_fits:
        row = answer.where_it_fits[0]
        return (
            f"Batch {row.batch_max} is the largest that fits with it: {times(row.speedup)} with "
            f"{counted(answer, row.candidates)}."
        )
    fitting = [row for row in answer.schedule if row.fits_memory]
    if fitting:
        return f"Batch {max(row.batch_max for row in fitting)} is the largest that fits without speculation."
    return "No batch fits."
