"""Warnings under load: queues that grow, lost caches, prompts that wait for drafts."""

from __future__ import annotations

import math
from collections.abc import Iterator

from medusa_sim.doubts.of_answer import answer_doubts
from medusa_sim.doubts.of_scenario import first_token_doubts, scenario_doubts
from medusa_sim.load.answer import LoadAnswer
from medusa_sim.load.carried_rates import SURELY_STEADY
from medusa_sim.load.load_test import LoadTest
from medusa_sim.load.point import LoadPoint
from medusa_sim.report.load.sentences import at_rate, policy_text, rate_text
from medusa_sim.report.words.numbers import percent, significant
from medusa_sim.report.words.scenario import request_text

_MOST_TAKEN = 0.5
CUT_SHARE = 0.05
"""Of requests that were cut, above which a warning says so: fewer hardly move the average."""


def warnings(answer: LoadAnswer) -> list[str]:
    """Warnings, a line each."""
    points = answer.points
    scenario = answer.test.scenario
    most = max(round(max((point.mean["requests_decoding"] for point in points), default=1.0)), 1)
    lines = []
    for point in points:
        if not answer.is_steady(point):
            limit = answer.full_per_s.get(point.policy)
            lines.append(_unsteady(point, limit, has_slos=answer.test.slos.given))
    lines += scenario_doubts(scenario, 1 + answer.test.drafts_max)
    lines += answer_doubts(scenario, round(answer.test.mean_length), (1, most))
    if answer.test.slos.ttft_s is not None or answer.test.slos.e2e_s is not None:
        lines += first_token_doubts(scenario)
    for point in points:
        if point.mean["preemptions"]:
            lines.append(
                f"{policy_text(point.policy)}{at_rate(point)}: {point.mean['preemptions']:.0f} requests lost "
                "their KV cache and were computed again; fewer in a step (--max-num-seqs) may be faster"
            )
    lines += _crowded_out(answer)
    dropped = max((point.dropped for point in points), default=0)
    if dropped:
        lines.append(f"{dropped} requests were too long and left out")
    lines += _cut(answer.test)
    return list(dict.fromkeys(lines))


def _cut(test: LoadTest) -> Iterator[str]:
    """Says where many requests were drawn longer than fits, and how long they are once cut, on average."""
    drawn, most = test.sample, test.limits(test.drafts_max).longest_request(test.drafts_max)
    if drawn.cut > CUT_SHARE * drawn.count:
        mean = request_text(drawn.prompt_tokens.mean(), drawn.output_tokens.mean())
        yield (
            f"{drawn.cut} of {drawn.count} requests were drawn longer than the {most} tokens that fit and "
            f"were cut to these: {mean} on average"
        )


def _crowded_out(answer: LoadAnswer) -> list[str]:
    """Where drafts leave prompts few of the tokens of a step."""
    lines = []
    for server in answer.test.servers:
        drafts, budget = server.table.drafts_max, server.limits.token_budget
        most = max(
            (point.mean["requests_decoding"] for point in answer.points if point.policy == server.name),
            default=0.0,
        )
        taken = most * (1 + drafts)
        if drafts and taken > _MOST_TAKEN * budget:
            lines.append(
                f"{policy_text(server.name)}: {most:.0f} requests with up to {drafts} drafts take "
                f"{percent(taken / budget, 0)} of the {budget} tokens of a step, and prompts wait for the "
                "rest (--max-num-batched-tokens)"
            )
    return lines


def _unsteady(point: LoadPoint, full_per_s: float | None, *, has_slos: bool) -> str:
    """Says that a run is not steady, and by which sign: its queue or its rate."""
    mean, parts = point.mean, []
    if not point.is_steady:
        half = point.half_width("queue_growth_per_s")
        interval = "" if math.isnan(half) else f" (95 %: ±{significant(half, 2)})"
        rise = significant(mean["queue_growth_per_s"], 2)
        parts.append(f"{rise} more requests are in the server every second{interval}")
        first, last = (mean[f"goodput_share_{part}"] for part in ("first", "last"))
        if has_slos and last < first:
            kept = f"{percent(first, 0)} of the first third keep the limits and {percent(last, 0)}"
            parts.append(f"{kept} of the last")
    if full_per_s is not None:
        parts.append(
            f"it saturates at {rate_text(full_per_s)} requests/s, and up to {SURELY_STEADY:g} of that, "
            f"{rate_text(SURELY_STEADY * full_per_s)}, queues are sure to drain"
        )
    grows = "would grow in a longer run" if point.is_steady else "grows for as long as it runs"
    return (
        f"{policy_text(point.policy)}{at_rate(point)} is not steady: its queue {grows}, so times and shares "
        f"depend on the run's length ({'; '.join(parts)})"
    )
