"""A recommendation for people: what was asked, the answer, the schedule as a table, facts about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from medusa_sim.engines.engine import unversioned
from medusa_sim.export import ENGINES
from medusa_sim.grid.quantity import BY_NAME, with_unlisted
from medusa_sim.plan.recommendation import Recommendation
from medusa_sim.plan.schedule import drafting_rows
from medusa_sim.plan.schedule_row import ScheduleRow
from medusa_sim.report.quantity_table import quantity_table, quantity_text
from medusa_sim.report.recommend.facts import drafting_facts, server_facts
from medusa_sim.report.recommend.sentences import answer_text, by_batch, by_length, experts
from medusa_sim.report.recommend.warnings import warnings
from medusa_sim.report.screen import Fact, Screen
from medusa_sim.report.table import TextTable
from medusa_sim.report.words.measured import measured_facts
from medusa_sim.report.words.memory import missing_text, shortfall_facts, shortfall_text
from medusa_sim.report.words.numbers import NOTHING, span, times_between
from medusa_sim.report.words.scenario import (
    acceptance_facts,
    asked_text,
    depth_word,
    kernel_facts,
    workload_text,
)
from medusa_sim.scenario.question import EVERY_BATCH_TO


def recommend_screen(answer: Recommendation) -> Screen:
    """All of the answer; where nothing fits, what is missing and what would do."""
    shortfall = answer.shortfall
    missing = "" if shortfall is None else shortfall_text(shortfall)
    asked, warned = headline(answer), tuple(line for line in warnings(answer) if line != missing)
    if shortfall is not None and not answer.fits:
        return Screen(
            asked=asked,
            answer=(missing_text(shortfall),),
            facts=tuple(shortfall_facts(shortfall)),
            warnings=warned,
        )
    return Screen(
        asked=asked,
        answer=(answer_text(answer),),
        tables=(schedule_table(answer),),
        facts=tuple(facts(answer)),
        warnings=warned,
    )


def headline(answer: Recommendation) -> str:
    """The question on one line."""
    question = answer.question
    requests = span(question.batch_min, question.batch_max)
    limit = f"at most {question.max_latency_ms:g} ms a token" if question.max_latency_ms else ""
    return asked_text(answer.scenario, workload_text(answer.scenario, question.seq_len, requests), limit)


def facts(answer: Recommendation) -> Iterator[Fact]:
    """Facts that follow from the schedule."""
    if answer.shortfall is not None:
        yield from shortfall_facts(answer.shortfall)
    yield from (Fact("By batch", text) for text in by_batch(answer))
    yield Fact("By length", by_length(answer))
    yield from (Fact("Experts", text, detail=place > 0) for place, text in enumerate(experts(answer)))
    yield from acceptance_facts(answer.scenario, answer.largest_count)
    yield from measured_facts(answer.scenario)
    yield from drafting_facts(answer, drafting_rows(answer.schedule))
    yield from server_facts(answer)
    if any(row.batch_max > row.batch_min for row in answer.schedule):
        yield Fact(
            "Rows",
            "speedup and 80 % span the batches of a row; every other column is for the largest of them",
        )
    engine = unversioned(answer.scenario.runtime.name)
    if answer.enable and engine in ENGINES:
        yield Fact("Next", f"--export {engine} writes launch settings, --report DIR a page with charts")
    yield from (Fact("Searched", line, detail=True) for line in search_note(answer))
    yield from kernel_facts(answer.scenario)


def search_note(answer: Recommendation) -> list[str]:
    """A line on how many batches were searched; empty where all were."""
    batch = answer.cells.surface.batch
    asked = int(batch[-1] - batch[0]) + 1
    if batch.size == asked:
        return []
    return [
        f"{batch.size} of {asked} batches were searched: every one to {EVERY_BATCH_TO}, every 2 % beyond and "
        "those where speculation starts or stops paying; a batch between two is run as the larger one"
    ]


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


def run_text(row: ScheduleRow, number: int) -> str:
    """A number of drafts or candidates, or why there are none; `(late)` of a row that exceeds the limit."""
    if not row.fits_memory:
        return "no room"
    late = " (late)" if row.meets_latency is False else ""
    return f"{number if row.candidates > 1 else 'off'}{late}"


def schedule_table(answer: Recommendation) -> TextTable:
    """One line a row of the schedule; speedup and band from the lowest to the highest of its batches."""
    chains, depth = answer.chains, depth_word(answer.scenario, chains=answer.chains)

    worded: dict[str, Callable[[ScheduleRow], str]] = {
        "batch": lambda row: span(row.batch_min, row.batch_max),
        "seq_len": lambda row: f"{row.seq_len:,}",
        "candidates": lambda row: run_text(row, row.candidates),
        depth: lambda row: (
            run_text(row, row.drafts) if chains else str(row.drafts) if row.candidates > 1 else NOTHING
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

    names = ("batch", "seq_len", "candidates", depth, *_OF_DRAFTS, *_OF_A_STEP, "max_batch_with")
    return quantity_table(
        {
            name: [cell(name, row) for row in answer.schedule]
            for name in with_unlisted(names)
            if name not in left_out and BY_NAME[name].title
        },
        expendable=_EXPENDABLE,
    )
