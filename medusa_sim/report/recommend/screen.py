"""A recommendation for people: what was asked, the answer, the schedule as a table, facts about it."""

from __future__ import annotations

from collections.abc import Iterator

from medusa_sim.engines.engine import unversioned
from medusa_sim.export import ENGINES
from medusa_sim.plan.recommendation import Recommendation
from medusa_sim.plan.schedule import kept_rows
from medusa_sim.report.recommend.drafting_facts import drafting_facts
from medusa_sim.report.recommend.sentences import answer_text, by_batch, by_length, experts
from medusa_sim.report.recommend.server_facts import server_facts
from medusa_sim.report.recommend.tables import schedule_table
from medusa_sim.report.recommend.warnings import warnings
from medusa_sim.report.screen import Fact, Screen
from medusa_sim.report.words.measured import measured_facts
from medusa_sim.report.words.memory import missing_text, shortfall_facts, shortfall_text
from medusa_sim.report.words.numbers import span
from medusa_sim.report.words.scenario import acceptance_facts, asked_text, kernel_facts, workload_text
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
    yield from drafting_facts(answer, [row for row in kept_rows(answer.schedule) if row.candidates > 1])
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
