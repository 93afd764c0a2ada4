"""Cost of tokens in words: in money, never without the date of its price, and in energy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from medusa_sim.gpus.prices import GIVEN
from medusa_sim.grid.quantity import BY_NAME
from medusa_sim.report.screen import Fact
from medusa_sim.report.words.numbers import percent, significant
from medusa_sim.scenario.scenario import Scenario

COST_COLUMNS = (
    "usd_per_million_tokens", "plain_usd_per_million_tokens", "joule_per_token", "plain_joule_per_token",
)  # fmt: skip
"""Quantities of `Costs`."""


class Costs(NamedTuple):
    """Cost of tokens at one place of a grid, with speculation and without; nan where it is not known."""

    where: str
    usd_per_million: float
    plain_usd_per_million: float
    joule: float
    plain_joule: float


def cost_facts(scenario: Scenario, costs: Sequence[Costs]) -> Iterator[Fact]:
    """Cost of tokens at the first and the last place, in money and in energy where these are known."""
    if scenario.scope == "block" or not costs:
        return
    ends = [costs[0], costs[-1]] if costs[0].where != costs[-1].where else [costs[0]]
    if scenario.price is not None:
        usd = [(cost.where, cost.usd_per_million, cost.plain_usd_per_million) for cost in ends]
        yield Fact("Cost", _beside_plain("usd_per_million_tokens", usd, "$"))
        yield Fact("Price", scenario.price.text())
    power = scenario.gpu.power
    if power is not None:
        joule = [(cost.where, cost.joule, cost.plain_joule) for cost in ends]
        origin = f", scaled from {power.lender} by the power limit" if power.lender else ""
        yield Fact(
            "Energy", f"{_beside_plain('joule_per_token', joule)}; ±{percent(power.fit.error, 0)}{origin}"
        )


def _beside_plain(name: str, ends: Sequence[tuple[str, float, float]], sign: str = "") -> str:
    """`$0.213 a million tokens at batch 44 (plain $0.302), $0.167 at batch 256 (plain $0.173)`."""
    texts = []
    for place, (where, value, plain) in enumerate(ends):
        number = significant(value, 3)
        shown = f"{sign}{number}" if place else BY_NAME[name].phrase.format(number)
        texts.append(f"{shown} at {where} (plain {sign}{significant(plain, 3)})")
    return ", ".join(texts)


def price_lines(scenarios: Sequence[Scenario]) -> list[str]:
    """Sources of the prices of rows, a line each; none for prices that came with the question."""
    prices = dict.fromkeys(item.price for item in scenarios if item.scope == "model")
    return [
        f"usd_per_million_tokens: at {price.text()}; --price gives another"
        for price in prices
        if price is not None and price.offer != GIVEN
    ]
