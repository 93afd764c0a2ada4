"""Facts about a schedule: why no more drafts and what others give; memory, costs and whole requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice

import numpy as np

from medusa_sim.grid.request_latency import RequestLatency
from medusa_sim.plan.count_curves import near_best
from medusa_sim.plan.quantities import MEMORY_WHEN_FULL
from medusa_sim.plan.recommendation import Recommendation
from medusa_sim.plan.schedule import kept_rows
from medusa_sim.plan.schedule_row import ScheduleRow
from medusa_sim.report.recommend.sentences import place_text, step_text
from medusa_sim.report.screen import Fact
from medusa_sim.report.words.cost import COST_COLUMNS, cost_facts
from medusa_sim.report.words.memory import memory_text
from medusa_sim.report.words.numbers import counted, duration, percent, span, times
from medusa_sim.report.words.scenario import depth_word

_MOST_HINTS = 4
"""Of larger counts that are quicker."""


def drafting_facts(answer: Recommendation, rows: Sequence[ScheduleRow]) -> Iterator[Fact]:
    """Reasons for the number of drafts, gains of other counts, and gains under another acceptance."""
    if not rows:
        return
    first, last = rows[0], rows[-1]
    reasons: dict[str, list[str]] = {}
    for row in dict.fromkeys((first, last)):
        reasons.setdefault(_held_by(answer, row), []).append(place_text(answer, row.batch_max, row.seq_len))
    for why, places in reasons.items():
        yield Fact("Why not more", f"at {' and '.join(places)}, {why}", detail=True)
    if len(answer.by_drafts) > 1:
        if guess := _guess(answer, first):
            yield Fact("Other counts", guess)
        yield Fact("Other counts", _drafts(answer), detail=True)
    on_accepted = first.speedup_heads_on_accepted_row
    if on_accepted is not None and on_accepted >= first.speedup * 1.01:
        yield Fact(
            "Heads",
            f"run on the accepted row alone, not on all candidates: {times(on_accepted)} instead of "
            f"{times(first.speedup)} at {place_text(answer, first.batch_max, first.seq_len)}",
            detail=True,
        )
    if first.chain_speedup is not None and first.chain_candidates is not None and not first.chain:
        yield Fact(
            "Tree",
            f"{percent(first.speedup / first.chain_speedup - 1.0, 0)} faster than the best chain "
            f"({first.chain_candidates} candidates, {times(first.chain_speedup)}) at "
            f"{place_text(answer, first.batch_max, first.seq_len)}",
        )
    if last.option is not None:
        yield Fact(
            "Acceptance ±10 %",
            f"10 % lower gives {times(last.speedup_acceptance_minus_10_percent)} at "
            f"{place_text(answer, last.batch_max, last.seq_len)}, 10 % higher "
            f"{times(last.speedup_acceptance_plus_10_percent)}",
        )
    yield Fact("Acceptance ±10 %", partial(_breaks_even, last), detail=True)
    if answer.scenario.runtime.engine is not None or answer.scenario.traffic is not None:
        yield Fact("Decoding", partial(step_text, answer, last), detail=True)


def _breaks_even(row: ScheduleRow) -> str:
    if row.required_acceptance_factor is None:
        return "no acceptance breaks even"
    return (
        f"it breaks even at {row.required_tokens_per_step:.2f} tokens per step, "
        f"{row.required_acceptance_factor:.2f} of the assumed accuracies"
    )


def _held_by(answer: Recommendation, row: ScheduleRow) -> str:
    match row.held_by:
        case "shared row":
            return (
                f"alone it would take {counted(row.best_candidates, answer.chains)} "
                f"({times(row.best_speedup)}, not {times(row.speedup)}), but it shares a row with "
                f"batch {span(row.batch_min, row.batch_max)}"
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
        f"{counted(more.candidates, answer.chains)} give {percent(more.tokens_gain)} more tokens for a step "
        f"that is {percent(more.step_cost)} longer"
        + (
            f"; the next cliff comes after {counted(cliff, answer.chains)}"
            if cliff is not None and cliff > 1
            else ""
        )
    )


def _guess(answer: Recommendation, row: ScheduleRow) -> str:
    """What the drafts of a row gain over those that were measured, where their acceptance is a guess."""
    beyond = answer.scenario.guessed_from
    measured = [entry for entry in answer.by_drafts if beyond is not None and entry.drafts < beyond]
    if not measured or beyond is None or row.drafts < beyond or row is not answer.schedule[0]:
        return ""
    best = max(measured, key=lambda entry: entry.speedup)
    more, at = row.speedup_at_batch_min / best.speedup - 1.0, place_text(answer, row.batch_min, row.seq_len)
    return (
        f"the best that was measured, {counted(best.candidates, answer.chains)}, gives {times(best.speedup)} "
        f"at {at}; {counted(row.candidates, answer.chains)} give {percent(more)} more if the guess holds"
    )


def _drafts(answer: Recommendation) -> str:
    """Gains of every count at the smallest batch and the first length, and what the schedule takes there."""
    row, batch = answer.schedule[0], answer.question.batch_min
    depth = depth_word(answer.scenario, chains=answer.chains)
    counts = np.asarray([entry.drafts for entry in answer.by_drafts])
    gains = np.asarray([entry.speedup for entry in answer.by_drafts])
    named = [f"{times(gain)} with {count}" for gain, count in zip(gains, counts, strict=True)]
    named[0] += f" {depth.removesuffix('s') if counts[0] == 1 else depth}"
    text = f"at {place_text(answer, batch, row.seq_len)}: {', '.join(named)}; the schedule takes "
    if not row.drafts:
        return f"{text}none"
    best = int(np.argmax(gains))
    low, high = near_best(counts + 1, gains, np.ones(gains.size, dtype=np.bool_), best)
    if low - 1 <= row.drafts <= high - 1:
        near = [str(count) for count in counts if low - 1 <= count <= high - 1 and count != row.drafts]
        as_good = f", and {' and '.join(near)} {'is' if len(near) == 1 else 'are'} within 1 %" if near else ""
        return f"{text}{row.drafts}{as_good}"
    gain = answer.by_drafts[best].speedup / row.speedup_at_batch_min - 1.0
    shared = span(row.batch_min, row.batch_max)
    return (
        f"{text}{row.drafts}: {counts[best]} would be {percent(gain)} faster, but the row is batch {shared}"
    )


def server_facts(answer: Recommendation) -> Iterator[Fact]:
    """Limits, memory, costs and whole requests."""
    if (limit := answer.question.max_latency_ms) is not None:
        points = (("with speculation", answer.best_with), ("without", answer.best_without))
        parts = [
            f"no batch {name}"
            if best is None
            else f"{best.tokens_per_s:,.0f} tokens/s {name} ({place_text(answer, best.batch, best.seq_len)})"
            for name, best in points
        ]
        yield Fact("Within limit", f"{', '.join(parts)}, at {limit:g} ms a token")
    yield from islice(_quicker(answer), _MOST_HINTS)
    yield from _capacity_facts(answer)
    rows = kept_rows(answer.schedule)
    yield from cost_facts(
        answer.scenario,
        {
            place_text(answer, row.batch_max, row.seq_len): row.quantities(COST_COLUMNS)
            for row in rows
            if row.fits_memory
        },
    )
    requests = [
        request
        for request in answer.request_latencies
        if any(row.batch_min <= request.batch <= row.batch_max for row in rows)
    ]
    for place, request in enumerate(requests):
        yield Fact("Latency", partial(request_latency_text, request), detail=place > 0)


def _quicker(answer: Recommendation) -> Iterator[Fact]:
    """Larger counts whose steps are shorter, one a row of the schedule."""
    for row in kept_rows(answer.schedule):
        near = [pair for pair in row.quicker_larger if pair[1] <= 2 * max(row.candidates, 32)]
        for less, more in near[-1:]:
            yield Fact(
                "Quicker",
                f"{counted(more, answer.chains)} take less time than {counted(less, answer.chains)} "
                f"({place_text(answer, row.batch_max, row.seq_len)})",
                detail=True,
            )


def _capacity_facts(answer: Recommendation) -> Iterator[Fact]:
    """Requests that fit, what they keep in memory, and the largest throughput, of each length."""
    several = len(answer.question.seq_len) > 1
    for capacity in answer.capacities:
        best, plain = capacity.with_speculation, capacity.without_speculation
        if best is None or plain is None or capacity.gain is None:
            continue
        at = f" at length {capacity.seq_len:,}" if several else ""
        yield Fact(
            "Memory",
            f"{capacity.max_batch_with:,} requests fit with {counted(best.candidates, answer.chains)} (the "
            f"most tokens/s), {capacity.max_batch_without:,} without{at}",
        )
        yield Fact(
            "Memory use",
            f"{memory_text(best.quantities(MEMORY_WHEN_FULL).values())} on a GPU at batch {best.max_batch}",
            detail=True,
        )
        yield Fact(
            "Throughput",
            f"at most {best.tokens_per_s:,.0f} tokens/s with speculation (batch {best.batch:,}), "
            f"{plain.tokens_per_s:,.0f} without (batch {plain.batch:,}): {times(capacity.gain)}{at}",
        )


def request_latency_text(request: RequestLatency) -> str:
    """`a request alone on the engine: 1.2 s (plain 2.1 s), first token after 19.8 ms (plain 18.9 ms)`.

    Without the server around it, whose way to the client `ttft_ms` has.
    """
    many = "a request alone" if request.batch == 1 else f"{request.batch} requests begun together"
    how = "" if request.candidates > 1 else " without drafts"
    return (
        f"{many} on the engine: {duration(request.total_us)}{how} "
        f"(plain {duration(request.plain_total_us)}), first token after {duration(request.first_token_us)} "
        f"(plain {duration(request.plain_first_token_us)})"
    )
