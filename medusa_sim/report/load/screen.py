"""A load test for people: the answer, a row a policy and rate, what each policy carries, facts about it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from medusa_sim.grid.quantity import BY_NAME
from medusa_sim.load.answer import LoadAnswer
from medusa_sim.load.arguments import NO_DRAFTS
from medusa_sim.load.carried_rates import CarriedRates
from medusa_sim.load.load_test import LoadTest
from medusa_sim.load.point import LoadPoint
from medusa_sim.load.policies import BySize
from medusa_sim.load.quantities import LOAD, run_values
from medusa_sim.load.sources import Drawn
from medusa_sim.load.trial import search_requests
from medusa_sim.report.load.sentences import answer_lines, at_rate, policy_text, rate_text, rates_text
from medusa_sim.report.load.warnings import warnings
from medusa_sim.report.quantity_table import quantity_table, quantity_text
from medusa_sim.report.screen import Fact, Screen
from medusa_sim.report.table import TextTable
from medusa_sim.report.words.break_even import break_even_text
from medusa_sim.report.words.measured import measured_facts
from medusa_sim.report.words.numbers import NOTHING, number_of, percent, significant
from medusa_sim.report.words.scenario import acceptance_facts, asked_text, at_once, kernel_facts, request_text


def load_screen(answer: LoadAnswer) -> Screen:
    """All of the answer."""
    tables = [load_table(answer), *([carried_table(answer)] if answer.carried else [])]
    return Screen(
        asked=headline(answer.test),
        answer=answer_lines(answer),
        tables=tuple(reversed(tables)),
        facts=tuple(facts(answer)),
        warnings=tuple(warnings(answer)),
    )


def headline(test: LoadTest) -> str:
    """The question in one line: requests, set-up, and whether trees are left out."""
    requests = test.sample
    served = request_text(requests.prompt_tokens.mean(), requests.output_tokens.mean()) + " on average"
    source = test.source
    if isinstance(source, Drawn):
        asked = source.asked
        served = request_text(asked.prompt_tokens, asked.output_tokens)
        served += "" if asked.users is None else f", {at_once(str(asked.users))}"
    return asked_text(test.scenario, served, only_chains(test))


def server_facts(test: LoadTest) -> Iterator[Fact]:
    """The server, and how the load was run."""
    limits, requests = test.limits(0), test.sample
    runtime, asked = test.scenario.runtime, test.asked
    is_default = (
        runtime.engine is not None and asked.max_num_seqs is None and asked.max_num_batched_tokens is None
    )
    yield Fact(
        "Server",
        f"at most {limits.max_requests} requests and {limits.token_budget} tokens in a step"
        + (f", {runtime.name}'s own limits on this GPU" if is_default else ""),
        detail=is_default,
    )
    if share := asked.prefix_hit_rate:
        yield Fact("Server", f"{percent(share, 0)} of prompts found in the cache ({asked.prefix})")
    if asked.cancelled:
        cancelled = f"{percent(asked.cancelled, 0)} of requests cancelled"
        yield Fact("Server", f"{cancelled}: rates count them, latencies and goodput do not")
    if test.spread and test.drafts_max:
        yield Fact(
            "Acceptance", f"varies between requests (sigma {significant(test.spread, 3)} on the logit)"
        )
    yield Fact("Runs", runs_text(test))
    mean = request_text(requests.prompt_tokens.mean(), requests.output_tokens.mean())
    if isinstance(test.source, Drawn):
        yield Fact("Runs", f"{mean} on average over the requests drawn", detail=True)


def runs_text(test: LoadTest) -> str:
    """`3 runs of 1,000 requests, searches with the first 666 of each`: what figures are means of."""
    requests, searched = test.sample.count, search_requests(test)
    runs = f"{number_of('runs', test.seeds)} of {number_of('requests', requests)}"
    return runs if searched == requests else f"{runs}, searches with the first {searched:,} of each"


def only_chains(test: LoadTest) -> str:
    """Says that trees, which the runtime could run, are not simulated; empty where none are left out."""
    has_trees = any(not option.chain for option in test.scenario.options())
    return "drafts as chains: trees are not simulated under load" if has_trees and test.drafts_max else ""


def facts(answer: LoadAnswer) -> Iterator[Fact]:
    """Where the time goes at the last rate, what schedules were computed, how it was run."""
    for point in answer.last:
        mean = point.mean
        drafting = f", {percent(mean['share_drafting'], 0)} drafting" if mean["share_drafting"] else ""
        yield Fact(
            "Time goes to",
            f"{policy_text(point.policy)}: {percent(mean['share_decoding'], 0)} "
            f"{'verification' if drafting else 'decoding'}{drafting}, {percent(mean['share_prompts'], 0)} "
            f"prompts, {percent(mean['share_idle'], 0)} idle, "
            f"{significant(mean['requests_decoding'], 3)} requests decoding{at_rate(point)}",
            detail=True,
        )
    made = [server.policy() for server in answer.test.servers]
    schedules = [policy for policy in made if isinstance(policy, BySize)]
    for policy in schedules:
        named = f"{policy.name}: " if len(schedules) > 1 else ""
        yield Fact("Schedule", f"{named}{_entries(policy.entries)}")
    if "schedule" in answer.test.policies:
        yield Fact(
            "Schedule",
            "made from steps without prompts; to run that of `recommend`, give its batches and drafts: "
            "--policy none,schedule=BATCH:DRAFTS,...",
        )
    yield from (Fact("Sessions", line) for line in sessions_text(answer.test))
    yield from (Fact("By context", line) for line in context_text(answer))
    if any(rates.off_from is not None for rates in answer.carried):
        yield Fact(
            "Off from",
            "from so many requests in flight a step with drafts emits fewer tokens/s than a plain one",
        )
    yield from acceptance_facts(answer.test.scenario, 1 + answer.test.drafts_max)
    yield from measured_facts(answer.test.scenario)
    yield from server_facts(answer.test)
    yield from kernel_facts(answer.test.scenario)


def sessions_text(test: LoadTest) -> list[str]:
    """Says that a trace keeps the order of its sessions; empty without sessions."""
    requests = test.sample
    follows = int((requests.before >= 0).sum())
    if not follows:
        return []
    thinks = "" if requests.pause_s is None else " and its pause has passed"
    return [
        f"{follows} of {requests.count} requests follow another in their session: each is sent when that has "
        f"finished{thinks}, not before its own time; latencies count from then"
    ]


def context_text(answer: LoadAnswer) -> list[str]:
    """At which contexts speculation pays, for as many requests as decode; nothing where it never drafts."""
    if answer.context is None:
        return []
    requests, break_even = answer.context
    many = number_of("requests", requests)
    return [f"with {many} in a step speculation {break_even_text(break_even, 'context')}"]


def _entries(entries: Sequence[tuple[int, int]]) -> str:
    """`1-16 requests: 3 drafts; 17-42: 2; from 43: 0`."""
    parts: list[str] = []
    for (first, drafts), after in zip(entries, [*entries[1:], None], strict=True):
        batches = f"from {first}" if after is None else f"{first}-{after[0] - 1}"
        batches += "" if parts else " request" if batches in ("from 1", "1-1") else " requests"
        unit = "" if parts else " draft" if drafts == 1 else " drafts"
        parts.append(f"{batches}: {drafts}{unit}")
    return "; ".join(parts)


_EXPENDABLE = (
    "watts", "kv_share", "e2e_ratio", "itl_p99_s", "joule_per_token", "tokens_per_step", "requests_per_s",
    "usd_per_million_tokens", "itl_p50_s", "requests_in_system", "tpot_p99_s", "ttft_p99_s",
)  # fmt: skip
_UNSTEADY = "not steady"


def load_table(answer: LoadAnswer) -> TextTable:
    """A row a policy and rate; times in ms."""
    rows = [_shown_values(answer, point) for point in answer.points]
    columns = {
        name: [quantity_text(name, row[name]) for row in rows] for name in rows[0] if BY_NAME[name].title
    }
    if not answer.test.slos.given:
        del columns["goodput_share"]
    title = "times in ms: TTFT, ITL median, TPOT mean"
    if set(columns["rate_per_s"]) != {NOTHING}:
        title += "; rate: requests that arrive a second"
    return quantity_table(columns, words=("policy",), title=title, expendable=_EXPENDABLE)


def _shown_values(answer: LoadAnswer, point: LoadPoint) -> dict[str, Any]:
    """Values of a point in the table."""
    ratio, _, _ = point.ratio_to(answer.at_rate_of(point)[0], "e2e_mean_s")
    of_point: dict[str, Any] = {
        "rate_per_s": point.arrivals_per_s if math.isfinite(point.arrivals_per_s) else math.nan,
        "policy": point.policy,
        "e2e_ratio": ratio,
    }
    if not answer.is_steady(point):
        of_point["goodput_share"] = _UNSTEADY
    return run_values(point.mean, LOAD) | of_point


def carried_table(answer: LoadAnswer) -> TextTable:
    """Table of the rates that policies carry."""
    rate, gpus = answer.target_rate, answer.test.scenario.gpus

    def never(rates: CarriedRates, value: str | None) -> str:
        return NOTHING if rates.policy == NO_DRAFTS else "never" if value is None else value

    def banded(rate_per_s: float, low: float | None, high: float | None) -> str:
        """`19.1 (17.4-20.9)`: a rate with its 80 % interval."""
        if not rate_per_s or low is None or high is None:
            return rate_text(rate_per_s)
        return f"{rate_text(rate_per_s)} ({rate_text(low)}-{rate_text(high)})"

    def saturated(rates: CarriedRates) -> str:
        return banded(rates.saturated_per_s, rates.saturated_low_per_s, rates.saturated_high_per_s)

    def within(rates: CarriedRates) -> str:
        if rates.largest_per_s is None:
            return NOTHING
        return banded(rates.largest_per_s, rates.largest_low_per_s, rates.largest_high_per_s)

    def slower(rates: CarriedRates) -> str:
        return NOTHING if rates.loses is None else never(rates, rates_text(rates.loses) or None)

    columns: dict[str, Callable[[CarriedRates], str]] = {
        "policy": lambda rates: rates.policy,
        "saturated_per_s": saturated,
        "tokens_per_s": lambda rates: quantity_text("tokens_per_s", rates.saturated_tokens_per_s),
        "largest_per_s": within,
    }
    if any(rates.searched for rates in answer.carried):
        columns["loses"] = slower
    columns["off_from"] = lambda rates: never(rates, None if rates.off_from is None else str(rates.off_from))
    if rate is not None:
        columns["gpus_needed"] = lambda rates: str(rates.gpus_for(rate, gpus) or NOTHING)
    cells = {name: [cell(rates) for rates in answer.carried] for name, cell in columns.items()}
    has_intervals = any("(" in cell for name in ("saturated_per_s", "largest_per_s") for cell in cells[name])
    title = "rates in requests/s" + ", in brackets their 80 % intervals" * has_intervals
    if set(cells["off_from"]) != {NOTHING}:
        title += "; off from: requests in flight"
    return quantity_table(cells, words=("policy",), title=title)
