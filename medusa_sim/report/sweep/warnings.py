"""Warnings of a sweep, besides the doubts about its scenario."""

from __future__ import annotations

from medusa_sim.doubts.of_answer import answer_doubts
from medusa_sim.plan.sweep_answer import SweepAnswer
from medusa_sim.report.words.caveats import more_may_pay, more_requests_text, slower_format_text
from medusa_sim.report.words.memory import missing_text


def warnings(answer: SweepAnswer) -> list[str]:
    """Warnings, a line each: what does not fit, what is slower, what lies beyond measurements."""
    requests = int(answer.grid.batch.min()), int(answer.grid.batch.max())
    return [
        *([] if answer.shortfall is None else [missing_text(answer.shortfall)]),
        *slower_format_text(answer.by_count),
        *more_requests_text(answer.by_count),
        *([more_may_pay(answer.scenario)] if answer.best_ends_profile else []),
        *answer_doubts(answer.scenario, int(answer.grid.seq_len.max()), requests),
    ]
