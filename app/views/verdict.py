"""The answer in one sentence, and what must be known beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import notes
import streamlit as st
from chosen import PageArguments

from medusa_sim.report.words.basis import MOST, how_sure
from medusa_sim.report.words.caveats import guessed_text
from medusa_sim.report.words.numbers import counted, times, with_prefix
from medusa_sim.report.words.scenario import workload_text

if TYPE_CHECKING:
    from medusa_sim.plan.recommendation import Recommendation
    from medusa_sim.plan.schedule_row import ScheduleRow

AS_GOOD = "As good: within 1 %. Alone: what this batch would take if it shared no number with its neighbours."


def verdict_of(set_up: PageArguments, answer: Recommendation, row: ScheduleRow) -> None:
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
        best = f"{times(row.speculative_speedup)} with {counted(row.speculative_candidates, answer.chains)}"
        why = f"The best of it would give {best}."
        if row.verdict == "pays":
            why = f"It would give {best}, but its drafter leaves no room in memory. {_largest(answer)}"
        elif row.verdict == "uncertain":
            ends = f"{row.speculative_speedup_low:.2f} to {row.speculative_speedup_high:.2f}"
            why = f"{why} Its 80 % interval, {ends}, holds both a gain and a loss."
        st.error(f"**{where}: do not enable speculation.** {why}", icon=":material/do_not_disturb_on:")
    else:
        what = (
            f"run {counted(row.candidates, answer.chains)}"
            if answer.chains
            else f"verify {row.candidates} candidates"
        )
        deep = "" if answer.chains else f" ({notes.drafts(row)})"
        is_sure = row.verdict == "pays"
        ends = f"{row.speedup_low:.2f} to {row.speedup_high:.2f}"
        unsure = "" if is_sure else f" Not certain: the 80 % interval, {ends}, holds a loss, too."
        tell = st.success if is_sure else st.warning
        tell(
            f"**{where}: {what} a step{deep}, {times(row.speedup)}.**{unsure} "
            f"{row.tokens_per_step:.2f} tokens per step{guessed_text(answer.scenario, row.drafts)}, in steps "
            f"{times(row.overhead)} as long.",
            icon=":material/check_circle:" if is_sure else ":material/help:",
        )


def certainty(answer: Recommendation, row: ScheduleRow) -> list[tuple[str, str]]:
    """The speedup with its interval, what it rests on, and what it would be with a worse acceptance."""
    drafts = row.fits_memory and row.candidates > 1
    ends = f"{times(row.speedup_low)} to {times(row.speedup_high)}" if drafts else ""
    lines = how_sure(answer.scenario, f"Speedup {times(row.speedup)}", ends, seq_len=row.seq_len)
    if drafts:
        lines.append(("If 10 % fewer drafts are accepted", times(row.speedup_acceptance_minus_10_percent)))
    return lines[:MOST]


def as_good(answer: Recommendation, row: ScheduleRow) -> str | None:
    """`4 to 5 as good`, where the optimum is flat; `2 alone: 1.19x`, where neighbours share another count."""
    low, high = (count - answer.chains for count in row.near_best)
    counts = f"{low}" if low == high else f"{low} to {high}"
    if not row.near_best[0] <= row.candidates <= row.near_best[1]:
        return f"{counts} alone: {times(row.best_speedup)}"
    return f"{counts} as good" if low < high else None


def _largest(answer: Recommendation) -> str:
    """What does fit, and what it gains there."""
    if answer.where_it_fits:
        row = answer.where_it_fits[0]
        return (
            f"Batch {row.batch_max} is the largest that fits with it: {times(row.speedup)} with "
            f"{counted(row.candidates, answer.chains)}."
        )
    fitting = [row for row in answer.schedule if row.fits_memory]
    if fitting:
        return f"Batch {max(row.batch_max for row in fitting)} is the largest that fits without speculation."
    return "No batch fits."
