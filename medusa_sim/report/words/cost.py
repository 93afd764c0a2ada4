"""Cost of tokens in words: in money, never without the date of its price, and in energy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from medusa_sim.gpus.prices import GIVEN
from medusa_sim.grid.quantity import BY_NAME
from medusa_sim.report.screen import Fact
from medusa_sim.report.words.numbers import NOTHING, percent, significant
from medusa_sim.scenario.scenario import Scenario

COST_COLUMNS = (
    "usd_per_million_tokens", "plain_usd_per_million_tokens", "joule_per_token", "plain_joule_per_token",
)  # fmt: skip
"""Quantities that tell a cost, with speculation and without."""
Costs = Mapping[str, Mapping[str, float | None]]
"""Place of a grid, in words -> COST_COLUMNS by name; None or nan where it is not known."""


def cost_facts(scenario: Scenario, costs: Costs) -> Iterator[Fact]:
    """Cost of tokens at the first and the last place, in money and in energy where these are known."""
    if scenario.scope == "block" or not costs:
        return
    places = [*costs]
    ends = {where: costs[where] for where in (places[0], places[-1])}
    if scenario.price is not None:
        yield Fact("Cost", _beside_plain("usd_per_million_tokens", ends, "$"))
        yield Fact("Price", scenario.price.text())
    power = scenario.gpu.power
    if power is not None:
        origin = f", scaled from {power.lender} by the power limit" if power.lender else ""
        yield Fact(
            "Energy", f"{_beside_plain('joule_per_token', ends)}; ±{percent(power.fit.error, 0)}{origin}"
        )


def _beside_plain(name: str, costs: Costs, sign: str = "") -> str:
    """`$0.213 a million tokens at batch 44 (plain $0.302), $0.167 at batch 256 (plain $0.173)`."""
    texts: list[str] = []
    for where, cost in costs.items():
        amounts = (cost[name], cost[f"plain_{name}"])
        value, plain = (NOTHING if amount is None else significant(amount, 3) for amount in amounts)
        shown = f"{sign}{value}" if texts else BY_NAME[name].phrase.format(value)
        texts.append(f"{shown} at {where} (plain {sign}{plain})")
    return ", ".join(texts)


def price_lines(scenarios: Sequence[Scenario]) -> list[str]:
    """Sources of the prices of rows, a line each; none for prices that came with the question."""
    prices = dict.fromkeys(item.price for item in scenarios if item.scope == "model")
    return [
        f"usd_per_million_tokens: at {price.text()}; --price gives another"
        for price in prices
        if price is not None and price.offer != GIVEN
    ]
