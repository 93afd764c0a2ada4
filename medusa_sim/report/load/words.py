"""Policies, rates and times of a load test in words."""

from __future__ import annotations

import math

from medusa_sim.load.losses import Spans
from medusa_sim.load.point import LoadPoint
from medusa_sim.load.policies import CONTEXT_STEPS
from medusa_sim.report.words.numbers import significant
from medusa_sim.units import KILO

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
