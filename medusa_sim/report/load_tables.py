"""Tables of a load test: a row a policy and rate, and what each policy carries."""

from __future__ import annotations

import math
from collections.abc import Callable

from medusa_sim.load.question import LoadAnswer
from medusa_sim.load.search import Carried
from medusa_sim.load.simulate import LoadPoint
from medusa_sim.report.text import NOTHING, TextTable, percent, significant, times
from medusa_sim.units import KILO

_EXPENDABLE = (
    "W", "KV", "time vs first", "ITL p99", "J/token", "tokens/step", "$/M tokens", "in flight", "done/s",
)  # fmt: skip
_UNSTEADY = "not steady"


def load_table(answer: LoadAnswer) -> TextTable:
    """A row a policy and rate; times in ms."""
    points = answer.points

    def ms(name: str) -> Callable[[LoadPoint], str]:
        return lambda point: ms_text(point.mean[name])

    def number(name: str, digits: int = 3) -> Callable[[LoadPoint], str]:
        return lambda point: significant(point.mean[name], digits)

    columns: dict[str, Callable[[LoadPoint], str]] = {
        "rate": lambda point: rate_text(point.rate) if math.isfinite(point.rate) else NOTHING,
        "policy": lambda point: point.policy,
        "done/s": number("requests_per_s"),
        "in flight": number("requests_in_system"),
        "TTFT": ms("ttft_p50_s"),
        "TTFT p99": ms("ttft_p99_s"),
        "TPOT": ms("tpot_mean_s"),
        "TPOT p99": ms("tpot_p99_s"),
        "ITL": ms("itl_p50_s"),
        "ITL p99": ms("itl_p99_s"),
        "tokens/s": number("tokens_per_s", 4),
        "in limits": lambda point: (
            percent(point.mean["goodput_share"]) if answer.is_steady(point) else _UNSTEADY
        ),
        "tokens/step": lambda point: f"{1.0 + point.mean['accepted_drafts']:.2f}",
        "time vs first": lambda point: times(point.ratio_to(answer.first_at(point), "e2e_mean_s")[0]),
        "KV": lambda point: percent(point.mean["kv_share"], 0),
        "W": number("watts"),
        "J/token": number("joule_per_token"),
        "$/M tokens": number("usd_per_million_tokens"),
    }
    if not answer.test.goals.given:
        del columns["in limits"]
    for metric, unused in (("usd_per_million_tokens", ("$/M tokens",)), ("watts", ("W", "J/token"))):
        if not any(math.isfinite(point.mean[metric]) for point in points):
            columns = {name: shown for name, shown in columns.items() if name not in unused}
    title = "times in ms: TTFT, ITL median, TPOT mean; rate: arriving requests per second"
    return TextTable.by_row(points, columns, words=("policy",), title=title, expendable=_EXPENDABLE)


def carried_table(answer: LoadAnswer) -> TextTable:
    """What each policy carries."""
    rate, gpus = answer.target_rate, answer.test.scenario.gpus

    def never(each: Carried, value: str | None) -> str:
        return NOTHING if each.policy == "none" else "never" if value is None else value

    def within(each: Carried) -> str:
        """`19.1 (17.4-20.9)`: what is carried with its 80 % interval."""
        if each.largest_per_s is None:
            return NOTHING
        low, high = each.largest_low_per_s, each.largest_high_per_s
        if not each.largest_per_s or low is None or high is None:
            return rate_text(each.largest_per_s)
        return f"{rate_text(each.largest_per_s)} ({rate_text(low)}-{rate_text(high)})"

    def slower(each: Carried) -> str:
        return never(each, None if each.loses_from is None else rate_text(each.loses_from))

    columns: dict[str, Callable[[Carried], str]] = {
        "policy": lambda each: each.policy,
        "saturates at": lambda each: rate_text(each.saturated_per_s),
        "tokens/s": lambda each: significant(each.saturated_tokens_per_s, 4),
    }
    if any(each.largest_per_s is not None for each in answer.carried):
        columns["max rate within limits"] = within
    if any(each.searched for each in answer.carried):
        columns["slower above"] = slower
    columns["drafting off above (in flight)"] = lambda each: never(
        each, None if each.off_from is None else str(each.off_from)
    )
    if rate is not None:
        columns["GPUs"] = lambda each: str(each.gpus_for(rate, gpus) or NOTHING)
    title = "requests/s that the server sustains (in brackets: 80 %)"
    return TextTable.by_row(answer.carried, columns, words=("policy",), title=title)


def rate_text(per_s: float) -> str:
    """Requests per second."""
    return significant(per_s, 3)


def ms_text(seconds: float) -> str:
    """Milliseconds, without the unit."""
    return significant(KILO * seconds, 3)
