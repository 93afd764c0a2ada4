"""What tokens cost, as a sentence: never without the price's date."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from medusa_sim.plan.scenario import Scenario
from medusa_sim.report.numbers import significant
from medusa_sim.specs.prices import GIVEN


class Costs(NamedTuple):
    """What a million tokens cost in one place, with speculation and without; dollars."""

    where: str
    usd: float
    plain_usd: float


def cost_sentences(scenario: Scenario, costs: Sequence[Costs]) -> list[str]:
    """One line: what a million tokens cost at the first and the last place; none without a price."""
    if scenario.price is None or scenario.scope == "block" or not costs:
        return []
    ends = [costs[0], costs[-1]] if costs[0].where != costs[-1].where else [costs[0]]
    told = ", ".join(
        f"${significant(cost.usd, 3)} at {cost.where} (${significant(cost.plain_usd, 3)} without speculation)"
        for cost in ends
    )
    return [f"A million tokens cost {told}, at {scenario.price.told()}."]


def price_lines(scenarios: Sequence[Scenario]) -> list[str]:
    """What the prices of rows rest on, a line each; nothing for prices that came with the question."""
    prices = dict.fromkeys(item.price for item in scenarios if item.scope == "model")
    return [
        f"usd_per_million_tokens: at {price.told()}; --price gives another"
        for price in prices
        if price is not None and price.offer != GIVEN
    ]
