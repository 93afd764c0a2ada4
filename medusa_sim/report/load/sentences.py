"""A load test in sentences: rates within limits, saturation, times at a rate, names of policies."""

from __future__ import annotations

import math
from collections.abc import Sequence

from medusa_sim.load.answer import LoadAnswer
from medusa_sim.load.arguments import NO_DRAFTS
from medusa_sim.load.carried_rates import CarriedRates
from medusa_sim.load.losses import Spans
from medusa_sim.load.point import LoadPoint
from medusa_sim.load.policies import CONTEXT_STEPS
from medusa_sim.report.words.numbers import capitalised, percent, significant
from medusa_sim.units import KILO

SAME = 0.01
"""Relative difference below which two rates are the same: searches end there."""


def answer_text(answer: LoadAnswer) -> str:
    """`answer_lines` as one paragraph."""
    return " ".join(answer_lines(answer))


def answer_lines(answer: LoadAnswer) -> tuple[str, ...]:
    """Gain of speculation under this load: the rates that are carried, or the times at a rate."""
    every = sorted(answer.carried, key=lambda rates: rates.policy == NO_DRAFTS)
    plain = next((rates for rates in every if rates.policy == NO_DRAFTS), None)
    if not every:
        return (_compared(answer.last),)
    if any(rates.largest_per_s is not None for rates in every):
        return _within_limits(answer, plain, every)
    return (*_saturated(plain, every), _compared(answer.last))


def _within_limits(
    answer: LoadAnswer, plain: CarriedRates | None, every: Sequence[CarriedRates]
) -> tuple[str, ...]:
    slos = answer.test.slos
    best = max(every, key=lambda rates: rates.largest_per_s or 0.0)
    limits = {"to the first token": slos.ttft_s, "a token": slos.tpot_s, "in all": slos.e2e_s}
    within = " and ".join(
        f"{significant(KILO * limit, 3)} ms {what}" for what, limit in limits.items() if limit is not None
    )
    if not best.largest_per_s:
        nearest = max(every, key=lambda rates: rates.best_share or 0.0)
        return (
            f"No policy keeps {within} for {percent(slos.share, 0)} of the requests at any rate: at the "
            f"lowest, {percent(nearest.best_share or 0.0)} keep it with {policy_text(nearest.policy)}.",
        )
    drafting = [rates for rates in every if rates is not plain]
    if not drafting or plain is None:
        sustained = f"{rate_text(best.largest_per_s)} requests/s within {within}"
        return (f"With {policy_text(best.policy)} the server sustains {sustained}.",)
    named = max(drafting, key=lambda rates: rates.largest_per_s or 0.0)
    if carries_no_more(named, plain):
        fewer = (named.largest_per_s or 0.0) < (1.0 - SAME) * (plain.largest_per_s or 0.0)
        return (
            f"With {policy_text(named.policy)} the server sustains {'fewer' if fewer else 'no more'} "
            f"requests/s within {within}: {rate_text(named.largest_per_s or 0.0)}, and "
            f"{rate_text(plain.largest_per_s or 0.0)} without.",
            _compared(answer.at_rate_of(answer.points[0])),
        )
    return (
        f"With {policy_text(named.policy)} the server sustains {rate_text(named.largest_per_s or 0.0)} "
        f"requests/s within {within}, {rate_text(plain.largest_per_s or 0.0)} without.",
        f"{capitalised(_losing(named))}.",
    )


def carries_no_more(carried: CarriedRates, plain: CarriedRates) -> bool:
    """Whether a policy's largest rate within the limits is not above plain decoding's."""
    return (carried.largest_per_s or 0.0) <= (1.0 + SAME) * (plain.largest_per_s or 0.0)


def _losing(carried: CarriedRates) -> str:
    """At which rates speculation loses, and from how many requests it is better off."""
    off = "" if carried.off_from is None else f"switch it off from {carried.off_from} requests in flight"
    if not carried.loses:
        pays = f"speculation pays up to saturation ({rate_text(carried.saturated_per_s)} requests/s)"
        return f"{pays}, but {off}" if off else pays
    loses = f"speculation is slower {rates_text(carried.loses)}"
    loses += "" if carried.loses == ((0.0, None),) else " requests/s"
    return f"{loses}: {off}" if off else loses


def _saturated(plain: CarriedRates | None, every: Sequence[CarriedRates]) -> tuple[str, ...]:
    parts = [
        f"{rate_text(full.saturated_per_s)}{' requests/s' if i == 0 else ''} with {policy_text(full.policy)}"
        for i, full in enumerate(every)
    ]
    text, first = f"The server saturates at {', '.join(parts)}.", every[0]
    if plain is None or first is plain or not first.searched:
        return (text,)
    return (text, f"With {policy_text(first.policy)} {_losing(first)}.")


def _compared(last: Sequence[LoadPoint]) -> str:
    """The mean request with the best policy against the first policy, at one rate."""
    if len(last) < 2:
        return (
            f"A request takes {ms_text(last[0].mean['e2e_mean_s'])} ms on average, "
            f"{ms_text(last[0].mean['tpot_mean_s'])} ms a token."
        )
    best = min(last[1:], key=lambda point: point.mean["e2e_mean_s"])
    ratio, low, high = best.ratio_to(last[0], "e2e_mean_s")
    interval = "" if math.isnan(low) else f" (95 %: {low:.2f} to {high:.2f})"
    return (
        f"A request takes {ratio:.2f} times as long with {policy_text(best.policy)} as with "
        f"{policy_text(last[0].policy)}{at_rate(best)}{interval}."
    )


_POLICIES = {
    "none": "plain decoding",
    "schedule": "the schedule",
    "adaptive": "drafts by measured acceptance",
    "throughput_aware": "drafts by measured acceptance and cost",
    "budget": f"drafts chosen every {CONTEXT_STEPS} steps",
}


def policy_text(name: str) -> str:
    """`K=3` as a sentence has it: `3 drafts a step`."""
    if name.startswith("K="):
        return f"{name[2:]} draft{'' if name == 'K=1' else 's'} a step"
    return _POLICIES.get(name, name)


def at_rate(point: LoadPoint) -> str:
    """` at 3.2 requests/s`; empty where requests have no rate."""
    return f" at {rate_text(point.arrivals_per_s)} requests/s" if math.isfinite(point.arrivals_per_s) else ""


def rate_text(per_s: float) -> str:
    """Requests per second."""
    return significant(per_s, 3)


def rates_text(spans: Spans) -> str:
    """`from 0.5 to 2.2 and above 4.5`; `at every rate` for a span without ends."""
    parts = []
    for first, last in spans:
        if last is None:
            parts.append(f"above {rate_text(first)}" if first else "at every rate")
        else:
            parts.append(f"{f'from {rate_text(first)} to' if first else 'below'} {rate_text(last)}")
    return " and ".join(parts)


def ms_text(seconds: float) -> str:
    """Milliseconds, without the unit."""
    return significant(KILO * seconds, 3)
