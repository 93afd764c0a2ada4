"""A recommendation at one batch in a few words, for cards and lists."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from medusa_sim.plan.recommendation import Recommendation
from medusa_sim.plan.schedule_row import ScheduleRow
from medusa_sim.report.recommend.sentences import shape_text
from medusa_sim.report.words.numbers import times, with_prefix

Kind = Literal["pays", "uncertain", "off", "no room"]


@dataclass(frozen=True, slots=True)
class ShortAnswer:
    """An answer at one batch in a few words.

    kind: pays, uncertain (the interval holds a loss), off (plain decoding is better) or no room (in memory).
    figure: what is gained, `2.10x`; action: what to do, `with 3 drafts a step`; more: next to it.
    """

    kind: Kind
    figure: str
    action: str
    more: str


def short_answer(answer: Recommendation, row: ScheduleRow) -> ShortAnswer:
    """The answer of a row (`Recommendation.scheduled_row_at`) in a few words."""
    if not row.fits_memory:
        needed, room = (
            with_prefix(size, "B") for size in (row.memory_bytes, answer.scenario.usable_memory_bytes)
        )
        return ShortAnswer("no room", "no room", "does not fit in memory", f"{needed} a GPU, of {room}")
    if row.candidates == 1:
        best = times(row.speculative_speedup)
        return ShortAnswer("off", "off", "decode without drafts", f"drafts would give {best} at best")
    action = f"with {shape_text(answer, row)} a step"
    interval = f"80 %: {row.speedup_low:.2f} to {row.speedup_high:.2f}"
    return ShortAnswer("pays" if row.verdict == "pays" else "uncertain", times(row.speedup), action, interval)
