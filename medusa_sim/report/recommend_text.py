"""A recommendation for people: what was asked, the schedule as a table, and what follows from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from medusa_sim.plan.columns import with_unlisted
from medusa_sim.plan.counts import near_best
from medusa_sim.plan.quantities import BY_NAME
from medusa_sim.plan.question import EVERY_BATCH_TO
from medusa_sim.plan.recommendation import Recommendation
from medusa_sim.plan.schedule_row import ScheduleRow
from medusa_sim.report.caveats import COST_COLUMNS, Costs, acceptance_basis, cost_sentences, memory_text
from medusa_sim.report.quantity_table import quantity_table, shown
from medusa_sim.report.recommend_reason import counted
from medusa_sim.report.sweep_text import drafter_text, scenario_text, served_text
from medusa_sim.report.text import (
    NOTHING,
    TextTable,
    duration,
    percent,
    significant,
    span,
    times,
    times_between,
)
from medusa_sim.report.workload_text import workload_text
from medusa_sim.units import US_PER_S

_OF_DRAFTS = (
    "tokens_per_step", "speedup", "interval", "step_speedup", "speedup_acceptance_minus_10_percent",
)  # fmt: skip
"""Columns of the table that rows without speculation leave empty."""
_OF_A_STEP = (
    "verify_step_us", "tokens_per_s_per_user", "plain_tokens_per_s_per_user", "tokens_per_s",
    "plain_tokens_per_s", "usd_per_million_tokens", "joule_per_token", "free_candidates",
)  # fmt: skip
"""Those that rows without room leave empty."""
_EXPENDABLE = (
    "joule_per_token", "usd_per_million_tokens", "plain_tokens_per_s_per_user", "free_candidates",
    "speedup_acceptance_minus_10_percent", "plain_tokens_per_s", "verify_step_us", "max_batch_with",
)  # fmt: skip
"""Those that a narrow table leaves out, the first one first."""
_MOST_HINTS = 4


def headline(answer: Recommendation) -> str:
    """What was asked, on one line."""
    question, runtime = answer.question, answer.setting.runtime
    requests = span(question.batch_min, question.batch_max)
    limits = [workload_text(answer.scenario, question.seq_len, requests)]
    if answer.scenario.chain_only:  # why there are no trees
        limits.append(
            "chains only" + (f" ({runtime.name} has no tree attention)" if runtime.chain_only else "")
        )
    if question.max_latency_ms:
        limits.append(f"at most {question.max_latency_ms:g} ms a token")
    asked = f"{scenario_text(answer.scenario, drafter_text(answer.scenario))}; {'; '.join(limits)}"
    return f"{asked}{served_text(answer.scenario)}"


def schedule_table(answer: Recommendation) -> TextTable:
    """One line a row of the schedule; speedup and band from the lowest to the highest of its batches."""
    chains = answer.chains
    drafts = "heads" if answer.drafting.kind.unit == "head" and not chains else "drafts"

    def count(row: ScheduleRow, number: int) -> str:
        return str(number) if row.candidates > 1 else "off" if row.fits_memory else "no room"

    own: dict[str, Callable[[ScheduleRow], str]] = {
        "batch": lambda row: span(row.batch_min, row.batch_max),
        "candidates": lambda row: count(row, row.candidates),
        drafts: lambda row: count(row, row.drafts) if chains or row.candidates > 1 else NOTHING,
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
    }

    def cell(name: str, row: ScheduleRow) -> str:
        if name in _OF_DRAFTS and row.candidates == 1:
            return NOTHING
        if name in _OF_A_STEP and not row.fits_memory:
            return NOTHING
        return own[name](row) if name in own else shown(name, getattr(row, name))

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
    """How many of the batches were looked at, where not all were."""
    batch = answer.cells.surface.batch
    asked = int(batch[-1] - batch[0]) + 1
    if batch.size == asked:
        return []
    return [
        f"{batch.size} of {asked} batches were searched: every one to {EVERY_BATCH_TO}, every 2 % beyond and "
        "those where speculation starts or stops paying; a batch between two is run as the larger one."
    ]


def findings(answer: Recommendation) -> list[str]:
    """What follows from the schedule, one line each."""
    return [
        "A row's speedup and its 80 % interval are the lowest to the highest of its batches, other figures "
        "those of its fullest batch.",
        *search_note(answer),
        *_of_speculation(answer, [row for row in answer.schedule if row.candidates > 1]),
        *_of_the_server(answer),
        *acceptance_basis(answer.profile),
    ]


def _of_speculation(answer: Recommendation, rows: Sequence[ScheduleRow]) -> Iterator[str]:
    """What decided the counts of rows that speculate, what other drafts would give, what it rests on."""
    if not rows:
        return
    first, last = rows[0], rows[-1]
    several = len(answer.question.seq_len) > 1
    reasons: dict[str, list[str]] = {}
    for row in dict.fromkeys((first, last)):
        where = f"{row.batch_max}" + (f" (length {row.seq_len})" if several else "")
        reasons.setdefault(_held_by(answer, row), []).append(where)
    for why, places in reasons.items():
        yield f"Why not more at batch {' and '.join(places)}: {why}."
    if len(answer.by_drafts) > 1:
        yield _drafts(answer)
    on_accepted = first.speedup_heads_on_accepted_row
    if on_accepted is not None and on_accepted >= first.speedup * 1.01:
        yield (
            f"Heads on the accepted row alone, not on all candidates: {times(on_accepted)} instead of "
            f"{times(first.speedup)} at batch {first.batch_max}."
        )
    if first.chain_speedup is not None and first.chain_candidates is not None and not first.chain:
        yield (
            f"The tree gains {percent(first.speedup / first.chain_speedup - 1.0)} over the best chain "
            f"({first.chain_candidates} candidates, {times(first.chain_speedup)}) at batch "
            f"{first.batch_max}, length {first.seq_len}."
        )
    if last.required_acceptance_factor is not None:
        yield (
            f"Acceptance 10 % lower or higher: {times(last.speedup_acceptance_minus_10_percent)} or "
            f"{times(last.speedup_acceptance_plus_10_percent)} at batch {last.batch_max}; it breaks even at "
            f"{last.required_tokens_per_step:.2f} tokens per step, {last.required_acceptance_factor:.2f} of "
            "the assumed accuracies."
        )


def _held_by(answer: Recommendation, row: ScheduleRow) -> str:
    match row.held_by:
        case "shared row":
            return (
                f"alone it would take {counted(answer, row.best_candidates)} ({times(row.best_speedup)}, not "
                f"{times(row.speedup)}), but it shares a row with batch {span(row.batch_min, row.batch_max)}"
            )
        case "memory":
            return "more would pay, but leave no room in memory"
        case "end of the acceptance":
            return f"acceptance {answer.profile.name} describes no more"
        case "end of the search":
            return "more were not searched (--max-drafts, --candidates-max)"
    more = row.next_count
    if more is None:
        return "more cost more than they give"
    cliff = row.cliff_after
    return (
        f"{counted(answer, more.candidates)} give {percent(more.tokens_gain)} more tokens for a "
        f"{percent(more.step_cost)} longer step"
        + (
            f"; the next cliff comes after {counted(answer, cliff)}"
            if cliff is not None and cliff > 1
            else ""
        )
    )


def _drafts(answer: Recommendation) -> str:
    """What is recommended at the smallest batch, what others would give, and which are as good."""
    row, batch = answer.schedule[0], answer.question.batch_min
    listed = ", ".join(f"{entry.drafts}: {times(entry.speedup)}" for entry in answer.by_drafts)
    is_head = answer.drafting.kind.unit == "head" and not answer.chains
    gains = np.asarray([entry.speedup for entry in answer.by_drafts])
    counts = np.asarray([entry.drafts for entry in answer.by_drafts])
    best = int(np.argmax(gains))
    low, high = near_best(counts + 1, gains, np.ones(gains.size, dtype=np.bool_), best)
    what = "Heads to run" if is_head else "Drafts"
    text = f"{what} at batch {batch}: {row.drafts or 'none'} ({listed})"
    if row.drafts and low - 1 <= row.drafts <= high - 1:
        return text + (f"; {low - 1} to {high - 1} are as good, within 1 %." if low < high else ".")
    if row.drafts:
        lost = 1.0 - row.speedup_at_batch_min / answer.by_drafts[best].speedup
        shared = span(row.batch_min, row.batch_max)
        return f"{text}; {counts[best]} would be {percent(lost)} faster there, but the row is batch {shared}."
    return f"{text}."


def _of_the_server(answer: Recommendation) -> Iterator[str]:
    """Limits, memory, costs and whole requests."""
    if (limit := answer.question.max_latency_ms) is not None:
        points = (("with speculation", answer.best_with), ("without", answer.best_without))
        parts = [
            f"{name} no batch"
            if point is None
            else f"{name} {point.tokens_per_s:,.0f} tokens/s (batch {point.batch}, length {point.seq_len})"
            for name, point in points
        ]
        yield f"Within {limit:g} ms a token: {', '.join(parts)}."
    hints = []
    for row in answer.schedule:
        near = [pair for pair in row.cheaper_larger if pair[1] <= 2 * max(row.candidates, 32)]
        at = f"(batch {row.batch_max}, length {row.seq_len})"
        hints += [f"{counted(answer, more)} than {counted(answer, less)} {at}" for less, more in near[-1:]]
    if hints:
        yield "Larger but faster: " + "; ".join(hints[:_MOST_HINTS]) + "."
    for capacity in answer.capacities:
        best, plain = capacity.with_speculation, capacity.without_speculation
        if best is None or plain is None or capacity.gain is None:
            continue
        yield (
            f"Memory at length {capacity.seq_len}: the largest batch is {capacity.max_batch_without} without "
            f"and {capacity.max_batch_with} with {counted(answer, best.candidates)}; the card then gives at "
            f"most {plain.tokens_per_s:,.0f} tokens/s without (batch {plain.batch}) and "
            f"{best.tokens_per_s:,.0f} with (batch {best.batch}): {times(capacity.gain)}. At batch "
            f"{best.max_batch} a GPU holds {memory_text(best.memory)}."
        )
    yield from _cost(answer)
    for r in answer.requests:
        yield (
            f"A request of {r.prompt_tokens} + {r.output_tokens} tokens at batch {r.batch}"
            f"{', all begun together' if r.batch > 1 else ''}: first token after "
            f"{duration(r.first_token_us)} (plain {duration(r.plain_first_token_us)}), all after "
            f"{duration(r.total_us)} (plain {duration(r.plain_total_us)}): {times(r.speedup)} end to end "
            f"with {counted(answer, r.candidates) if r.candidates > 1 else 'no drafts'}, "
            f"{significant(US_PER_S / r.per_token_us, 3)} tokens/s."
        )


def _cost(answer: Recommendation) -> list[str]:
    several = len(answer.question.seq_len) > 1
    return cost_sentences(
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
