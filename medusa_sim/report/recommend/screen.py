"""A recommendation for people: what was asked, the answer, the schedule as a table, facts behind it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from medusa_sim.export import ENGINES
from medusa_sim.grid.quantity import BY_NAME, with_unlisted
from medusa_sim.grid.request_latency import RequestLatency
from medusa_sim.plan.counts import near_best
from medusa_sim.plan.recommendation import Recommendation
from medusa_sim.plan.schedule_row import ScheduleRow
from medusa_sim.report.quantity_table import quantity_table, quantity_text
from medusa_sim.report.recommend.sentences import answer_text, by_batch, by_length, experts, step_text
from medusa_sim.report.recommend.warnings import warnings
from medusa_sim.report.screen import Fact, Screen
from medusa_sim.report.table import TextTable
from medusa_sim.report.words.cost import COST_COLUMNS, Costs, cost_facts
from medusa_sim.report.words.measured import measured_facts
from medusa_sim.report.words.memory import memory_text, missing_text, shortfall_facts, shortfall_text
from medusa_sim.report.words.numbers import NOTHING, counted, duration, percent, span, times, times_between
from medusa_sim.report.words.scenario import acceptance_facts, asked_text, kernel_facts, workload_text
from medusa_sim.scenario.question import EVERY_BATCH_TO
from medusa_sim.specs.engine import unversioned

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
_MOST_HINTS = 4


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
    """What was asked, on one line."""
    question = answer.question
    requests = span(question.batch_min, question.batch_max)
    limit = f"at most {question.max_latency_ms:g} ms a token" if question.max_latency_ms else ""
    return asked_text(answer.scenario, workload_text(answer.scenario, question.seq_len, requests), limit)


def drafts_told(row: ScheduleRow, number: int) -> str:
    """A number of drafts or candidates of a row that drafts; of one that does not, why."""
    return str(number) if row.candidates > 1 else "off" if row.fits_memory else "no room"


def schedule_table(answer: Recommendation) -> TextTable:
    """One line a row of the schedule; speedup and band from the lowest to the highest of its batches."""
    chains = answer.chains
    drafts = "heads" if answer.scenario.drafting.kind.unit == "head" and not chains else "drafts"

    worded: dict[str, Callable[[ScheduleRow], str]] = {
        "batch": lambda row: span(row.batch_min, row.batch_max),
        "candidates": lambda row: drafts_told(row, row.candidates),
        drafts: lambda row: drafts_told(row, row.drafts) if chains or row.candidates > 1 else NOTHING,
        "speedup": lambda row: times_between(row.speedup_lowest, row.speedup_highest),
        "interval": lambda row: f"{row.speedup_low:.2f}-{row.speedup_high:.2f}",
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
        return worded[name](row) if name in worded else quantity_text(name, getattr(row, name))

    names = ("batch", "seq_len", "candidates", drafts, *_OF_DRAFTS, *_OF_A_STEP, "max_batch_with")
    return quantity_table(
        {
            name: [cell(name, row) for row in answer.schedule]
            for name in with_unlisted(names)
            if name not in left_out and BY_NAME[name].title
        },
        expendable=_EXPENDABLE,
    )


def search_note(answer: Recommendation) -> list[str]:
    """How many of the batches were searched, where not all were."""
    batch = answer.cells.surface.batch
    asked = int(batch[-1] - batch[0]) + 1
    if batch.size == asked:
        return []
    return [
        f"{batch.size} of {asked} batches were searched: every one to {EVERY_BATCH_TO}, every 2 % beyond and "
        "those where speculation starts or stops paying; a batch between two is run as the larger one"
    ]


def facts(answer: Recommendation) -> Iterator[Fact]:
    """What follows from the schedule, a fact each."""
    if answer.shortfall is not None:
        yield from shortfall_facts(answer.shortfall)
    yield from (Fact("By batch", text) for text in by_batch(answer))
    yield Fact("By length", by_length(answer))
    yield from (Fact("Experts", text, detail=place > 0) for place, text in enumerate(experts(answer)))
    yield from acceptance_facts(answer.scenario)
    yield from measured_facts(answer.scenario)
    yield from _of_speculation(answer, [row for row in answer.schedule if row.candidates > 1])
    yield from _of_the_server(answer)
    if any(row.batch_max > row.batch_min for row in answer.schedule):
        yield Fact(
            "Rows",
            "a speedup and its 80 % interval span the batches of a row; every other column is at its largest",
        )
    engine = unversioned(answer.scenario.runtime.name)
    if answer.enable and engine in ENGINES:
        yield Fact("Next", f"--export {engine} writes launch settings, --report DIR a page with charts")
    yield from (Fact("Searched", line, detail=True) for line in search_note(answer))
    yield from kernel_facts(answer.scenario)


def _of_speculation(answer: Recommendation, rows: Sequence[ScheduleRow]) -> Iterator[Fact]:
    """Why rows draft as many as they do, what other counts would give, and what if acceptance differs."""
    if not rows:
        return
    first, last = rows[0], rows[-1]
    several = len(answer.question.seq_len) > 1
    reasons: dict[str, list[str]] = {}
    for row in dict.fromkeys((first, last)):
        where = f"{row.batch_max}" + (f" (length {row.seq_len})" if several else "")
        reasons.setdefault(_held_by(answer, row), []).append(where)
    for why, places in reasons.items():
        yield Fact("Why not more", f"at batch {' and '.join(places)}, {why}", detail=True)
    if len(answer.by_drafts) > 1:
        yield Fact("Other counts", _drafts(answer), detail=True)
    on_accepted = first.speedup_heads_on_accepted_row
    if on_accepted is not None and on_accepted >= first.speedup * 1.01:
        yield Fact(
            "Heads",
            f"run on the accepted row alone, not on all candidates: {times(on_accepted)} instead of "
            f"{times(first.speedup)} at batch {first.batch_max}",
            detail=True,
        )
    if first.chain_speedup is not None and first.chain_candidates is not None and not first.chain:
        yield Fact(
            "Tree",
            f"{percent(first.speedup / first.chain_speedup - 1.0, 0)} faster than the best chain "
            f"({first.chain_candidates} candidates, {times(first.chain_speedup)}) at batch "
            f"{first.batch_max}, length {first.seq_len}",
        )
    if last.required_acceptance_factor is not None:
        yield Fact(
            "If it differs",
            f"acceptance 10 % lower gives {times(last.speedup_acceptance_minus_10_percent)} at batch "
            f"{last.batch_max}, 10 % higher {times(last.speedup_acceptance_plus_10_percent)}",
        )
        yield Fact(
            "If it differs",
            f"it breaks even at {last.required_tokens_per_step:.2f} tokens per step, "
            f"{last.required_acceptance_factor:.2f} of the assumed accuracies",
            detail=True,
        )
    if answer.scenario.runtime.engine is not None or answer.scenario.traffic is not None:
        yield Fact("Decoding", partial(step_text, answer, last), detail=True)


def _held_by(answer: Recommendation, row: ScheduleRow) -> str:
    match row.held_by:
        case "shared row":
            return (
                f"alone it would take {counted(row.best_candidates, answer.chains)} "
                f"({times(row.best_speedup)}, not {times(row.speedup)}), but it shares a row with batch "
                f"{span(row.batch_min, row.batch_max)}"
            )
        case "memory":
            return "more would pay, but leave no room in memory"
        case "end of the acceptance":
            return f"acceptance {answer.scenario.profile.name} describes no more"
        case "end of the search":
            return "more were not searched (--max-drafts, --candidates-max)"
    more = row.next_count
    if more is None:
        return "more cost more than they give"
    cliff = row.cliff_after
    return (
        f"{counted(more.candidates, answer.chains)} give {percent(more.tokens_gain)} more tokens for a "
        f"{percent(more.step_cost)} longer step"
        + (
            f"; the next cliff comes after {counted(cliff, answer.chains)}"
            if cliff is not None and cliff > 1
            else ""
        )
    )


def _drafts(answer: Recommendation) -> str:
    """What is recommended at the smallest batch, what others would give, and which are as good."""
    row, batch = answer.schedule[0], answer.question.batch_min
    listed = ", ".join(f"{entry.drafts}: {times(entry.speedup)}" for entry in answer.by_drafts)
    is_head = answer.scenario.drafting.kind.unit == "head" and not answer.chains
    gains = np.asarray([entry.speedup for entry in answer.by_drafts])
    counts = np.asarray([entry.drafts for entry in answer.by_drafts])
    best = int(np.argmax(gains))
    low, high = near_best(counts + 1, gains, np.ones(gains.size, dtype=np.bool_), best)
    what = "heads" if is_head else "drafts"
    text = f"{row.drafts or 'no'} {what} at batch {batch}, of {listed}"
    if row.drafts and low - 1 <= row.drafts <= high - 1:
        return text + (f"; {low - 1} to {high - 1} are as good, within 1 %" if low < high else "")
    if row.drafts:
        gain = answer.by_drafts[best].speedup / row.speedup_at_batch_min - 1.0
        shared = span(row.batch_min, row.batch_max)
        return f"{text}; {counts[best]} would be {percent(gain)} faster there, but the row is batch {shared}"
    return text


def _of_the_server(answer: Recommendation) -> Iterator[Fact]:
    """Limits, memory, costs and whole requests."""
    several = len(answer.question.seq_len) > 1
    if (limit := answer.question.max_latency_ms) is not None:
        points = (("with speculation", answer.best_with), ("without", answer.best_without))
        parts = [
            f"no batch {name}"
            if point is None
            else f"{point.tokens_per_s:,.0f} tokens/s {name} (batch {point.batch}, length {point.seq_len})"
            for name, point in points
        ]
        yield Fact("Within limit", f"{', '.join(parts)}, at {limit:g} ms a token")
    hints = []
    for row in answer.schedule:
        near = [pair for pair in row.cheaper_larger if pair[1] <= 2 * max(row.candidates, 32)]
        at = f"(batch {row.batch_max}, length {row.seq_len})"
        hints += [
            f"{counted(more, answer.chains)} take less time than {counted(less, answer.chains)} {at}"
            for less, more in near[-1:]
        ]
    for hint in hints[:_MOST_HINTS]:
        yield Fact("Cheaper", hint, detail=True)
    for capacity in answer.capacities:
        best, plain = capacity.with_speculation, capacity.without_speculation
        if best is None or plain is None or capacity.gain is None:
            continue
        at = f" at length {capacity.seq_len}" if several else ""
        yield Fact(
            "Memory",
            f"{capacity.max_batch_with} requests fit with {counted(best.candidates, answer.chains)}, the "
            f"best for throughput, {capacity.max_batch_without} without{at}",
        )
        yield Fact(
            "Memory use", f"{memory_text(best.memory)} on a GPU at batch {best.max_batch}", detail=True
        )
        yield Fact(
            "Throughput",
            f"at most {best.tokens_per_s:,.0f} tokens/s with speculation (batch {best.batch}), "
            f"{plain.tokens_per_s:,.0f} without (batch {plain.batch}): {times(capacity.gain)}{at}",
        )
    yield from _costs(answer)
    for place, request in enumerate(answer.requests):
        yield Fact("Latency", partial(request_latency_text, request), detail=place > 0)


def request_latency_text(request: RequestLatency) -> str:
    """`256 requests begun together: 10.2 s (plain 10.8 s), first token after 5.51 s (plain 5.30 s)`."""
    many = "a request alone" if request.batch == 1 else f"{request.batch} requests begun together"
    how = "" if request.candidates > 1 else " without drafts"
    return (
        f"{many}: {duration(request.total_us)}{how} (plain {duration(request.plain_total_us)}), first token "
        f"after {duration(request.first_token_us)} (plain {duration(request.plain_first_token_us)})"
    )


def _costs(answer: Recommendation) -> Iterator[Fact]:
    several = len(answer.question.seq_len) > 1
    return cost_facts(
        answer.scenario,
        [
            Costs(
                f"batch {row.batch_max}" + (f", length {row.seq_len}" if several else ""),
                *(_known(getattr(row, name)) for name in COST_COLUMNS),
            )
            for row in answer.schedule
            if row.fits_memory
        ],
    )


def _known(value: float | None) -> float:
    return math.nan if value is None else value
