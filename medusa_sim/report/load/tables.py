"""A load test as tables for people: a row a policy and rate, and what each policy carries."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from medusa_sim.grid.quantity import BY_NAME
from medusa_sim.load.answer import LoadAnswer
from medusa_sim.load.arguments import NO_DRAFTS
from medusa_sim.load.carried_rates import CarriedRates
from medusa_sim.load.point import LoadPoint
from medusa_sim.load.quantities import LOAD, run_values
from medusa_sim.report.load.words import rate_text, rates_text
from medusa_sim.report.quantity_table import quantity_table, quantity_text
from medusa_sim.report.table import TextTable
from medusa_sim.report.words.numbers import NOTHING

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
