"""Facts about a server that follows a schedule: limits, memory, throughput, costs, whole requests."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from medusa_sim.grid.request_latency import RequestLatency
from medusa_sim.plan.recommendation import Recommendation
from medusa_sim.plan.schedule import kept_rows
from medusa_sim.report.recommend.sentences import place_text
from medusa_sim.report.screen import Fact
from medusa_sim.report.words.cost import COST_COLUMNS, cost_facts
from medusa_sim.report.words.memory import memory_text
from medusa_sim.report.words.numbers import counted, duration, times

_MOST_HINTS = 4


def server_facts(answer: Recommendation) -> Iterator[Fact]:
    """Limits, memory, costs and whole requests."""
    several = len(answer.question.seq_len) > 1
    if (limit := answer.question.max_latency_ms) is not None:
        points = (("with speculation", answer.best_with), ("without", answer.best_without))
        parts = [
            f"no batch {name}"
            if best is None
            else f"{best.tokens_per_s:,.0f} tokens/s {name} ({place_text(answer, best.batch, best.seq_len)})"
            for name, best in points
        ]
        yield Fact("Within limit", f"{', '.join(parts)}, at {limit:g} ms a token")
    hints = []
    for row in kept_rows(answer.schedule):
        near = [pair for pair in row.quicker_larger if pair[1] <= 2 * max(row.candidates, 32)]
        at = f"({place_text(answer, row.batch_max, row.seq_len)})"
        hints += [
            f"{counted(more, answer.chains)} take less time than {counted(less, answer.chains)} {at}"
            for less, more in near[-1:]
        ]
    for hint in hints[:_MOST_HINTS]:
        yield Fact("Quicker", hint, detail=True)
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
            f"{memory_text(best.memory_when_full)} on a GPU at batch {best.max_batch}",
            detail=True,
        )
        yield Fact(
            "Throughput",
            f"at most {best.tokens_per_s:,.0f} tokens/s with speculation (batch {best.batch:,}), "
            f"{plain.tokens_per_s:,.0f} without (batch {plain.batch:,}): {times(capacity.gain)}{at}",
        )
    yield from cost_facts(
        answer.scenario,
        {
            place_text(answer, row.batch_max, row.seq_len): row.quantities(COST_COLUMNS)
            for row in kept_rows(answer.schedule)
            if row.fits_memory
        },
    )
    requests = [
        request
        for request in answer.request_latencies
        if any(row.batch_min <= request.batch <= row.batch_max for row in kept_rows(answer.schedule))
    ]
    for place, request in enumerate(requests):
        yield Fact("Latency", partial(request_latency_text, request), detail=place > 0)


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
