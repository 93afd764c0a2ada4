"""Tables of a load test: a row a policy and rate, and what each policy carries."""

from __future__ import annotations

import math

from medusa_sim.load.question import LoadAnswer
from medusa_sim.load.search import Carried
from medusa_sim.report.text import NOTHING, TextTable, percent, significant, times
from medusa_sim.units import KILO

_HEADERS = (
    "rate", "policy", "done/s", "in flight", "TTFT", "TTFT p99", "TPOT", "TPOT p99", "ITL", "ITL p99",
    "tokens/s", "in limits", "tokens/step", "time vs first", "KV", "W", "J/token", "$/M tokens",
)  # fmt: skip
_EXPENDABLE = (
    "W", "KV", "time vs first", "ITL p99", "J/token", "tokens/step", "$/M tokens", "in flight", "done/s",
)  # fmt: skip
_UNSTEADY = "not steady"


def load_table(answer: LoadAnswer) -> TextTable:
    """A row a policy and rate; times in ms."""
    rows = []
    points = answer.points
    for point in points:
        mean = point.mean
        ratio = point.ratio_to(answer.first_at(point), "e2e_mean_s")[0]
        rows.append(
            (
                rate_text(point.rate) if math.isfinite(point.rate) else NOTHING,
                point.policy,
                rate_text(mean["requests_per_s"]),
                significant(mean["requests_in_system"], 3),
                *(
                    ms_text(mean[name])
                    for name in (
                        "ttft_p50_s",
                        "ttft_p99_s",
                        "tpot_mean_s",
                        "tpot_p99_s",
                        "itl_p50_s",
                        "itl_p99_s",
                    )
                ),
                significant(mean["tokens_per_s"], 4),
                percent(mean["goodput_share"]) if answer.is_steady(point) else _UNSTEADY,
                f"{1.0 + mean['accepted_drafts']:.2f}",
                times(ratio),
                percent(mean["kv_share"], 0),
                significant(mean["watts"], 3),
                significant(mean["joule_per_token"], 3),
                significant(mean["usd_per_million_tokens"], 3),
            )
        )
    priced = any(math.isfinite(point.mean["usd_per_million_tokens"]) for point in points)
    unused = ["in limits"] * (not answer.test.goals.given) + ["$/M tokens"] * (not priced)
    if not any(math.isfinite(point.mean["watts"]) for point in points):
        unused += ["W", "J/token"]
    table = TextTable(
        headers=_HEADERS,
        rows=tuple(rows),
        right=(True, False, *(True for _ in _HEADERS[2:])),
        title="times in ms: TTFT, ITL median, TPOT mean; rate: arriving requests per second",
        expendable=_EXPENDABLE,
    )
    for name in unused:
        table = table.without(name)
    return table


def carried_table(answer: LoadAnswer) -> TextTable:
    """What each policy carries."""
    test, wanted_per_s = answer.test, answer.target_rate
    rows = []
    for each in answer.carried:
        gpus = None if wanted_per_s is None else each.gpus_for(wanted_per_s, test.scenario.gpus)
        rows.append(
            (
                each.policy,
                rate_text(each.saturated_per_s),
                significant(each.saturated_tokens_per_s, 4),
                NOTHING if each.largest_per_s is None else rate_text(each.largest_per_s) + _interval(each),
                NOTHING
                if each.policy == "none"
                else "never"
                if each.loses_from is None
                else rate_text(each.loses_from),
                NOTHING
                if each.policy == "none"
                else "never"
                if each.off_from is None
                else str(each.off_from),
                NOTHING if gpus is None else str(gpus),
            )
        )
    headers = (
        *("policy", "saturates at", "tokens/s", "max rate within limits"),
        *("slower above", "drafting off above (in flight)", "GPUs"),
    )
    table = TextTable(
        headers=headers,
        rows=tuple(rows),
        right=(False, *(True for _ in headers[1:])),
        title="requests/s that the server sustains (in brackets: 80 %)",
    )
    is_searched = any(each.largest_per_s is not None for each in answer.carried)
    unused = [
        ("GPUs", wanted_per_s is None),
        ("max rate within limits", not is_searched),
        ("slower above", not any(each.searched for each in answer.carried)),
    ]
    for name, leave in unused:
        table = table.without(name) if leave else table
    return table


def _interval(each: Carried) -> str:
    """` (17.4-20.9)`, the 80 % interval of what is carried."""
    if not each.largest_per_s or each.largest_low_per_s is None or each.largest_high_per_s is None:
        return ""
    return f" ({rate_text(each.largest_low_per_s)}-{rate_text(each.largest_high_per_s)})"


def rate_text(per_s: float) -> str:
    """Requests per second."""
    return significant(per_s, 3)


def ms_text(seconds: float) -> str:
    """Milliseconds, without the unit."""
    return significant(KILO * seconds, 3)
