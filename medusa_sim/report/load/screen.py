"""A load test for people: the answer, what each policy carries, facts about it, what to be warned of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from medusa_sim.load.answer import LoadAnswer
from medusa_sim.load.load_test import LoadTest
from medusa_sim.load.policies import BySize
from medusa_sim.load.sources import Drawn
from medusa_sim.load.trial import search_requests
from medusa_sim.report.load.sentences import answer_lines
from medusa_sim.report.load.tables import carried_table, load_table
from medusa_sim.report.load.warnings import warnings
from medusa_sim.report.load.words import at_rate, policy_text
from medusa_sim.report.screen import Fact, Screen
from medusa_sim.report.words.break_even import break_even_text
from medusa_sim.report.words.measured import measured_facts
from medusa_sim.report.words.numbers import number_of, percent, significant
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
        served = request_text(source.lengths.prompt_tokens, source.lengths.output_tokens)
        served += "" if source.users is None else f", {at_once(str(source.users))}"
    return asked_text(test.scenario, served, only_chains(test))


def server_facts(test: LoadTest) -> Iterator[Fact]:
    """The server, and how the load was run."""
    limits, requests = test.limits(0), test.sample
    runtime, settings, source = test.scenario.runtime, test.settings, test.source
    is_default = (
        runtime.engine is not None and settings.max_requests is None and settings.token_budget is None
    )
    yield Fact(
        "Server",
        f"at most {limits.max_requests} requests and {limits.token_budget} tokens in a step"
        + (f", {runtime.name}'s own limits on this GPU" if is_default else ""),
        detail=is_default,
    )
    if share := settings.prefix_hit_rate:
        yield Fact("Server", f"{percent(share, 0)} of prompts found in the cache ({settings.prefix})")
    if test.cancelled:
        cancelled = f"{percent(test.cancelled, 0)} of requests cancelled"
        yield Fact("Server", f"{cancelled}: rates count them, latencies and goodput do not")
    if test.spread and test.drafts_max:
        yield Fact(
            "Acceptance", f"varies between requests (sigma {significant(test.spread, 3)} on the logit)"
        )
    yield Fact("Runs", runs_text(test))
    mean = request_text(requests.prompt_tokens.mean(), requests.output_tokens.mean())
    if isinstance(source, Drawn):
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
