"""What tokens cost, as a sentence: never without the price's date."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from medusa_sim.plan.scenario import Scenario
from medusa_sim.report.numbers import significant
from medusa_sim.specs.prices import GIVEN


class Costs(NamedTuple):
    """What tokens cost in one place, with speculation and without; nan where it is not known."""

    where: str
    usd_per_million: float
    plain_usd_per_million: float
    joule: float
    plain_joule: float


def cost_sentences(scenario: Scenario, costs: Sequence[Costs]) -> list[str]:
    """What tokens cost at the first and the last place, a line for money and one for energy where known."""
    if scenario.scope == "block" or not costs:
        return []
    ends = [costs[0], costs[-1]] if costs[0].where != costs[-1].where else [costs[0]]
    told = []
    if scenario.price is not None:
        usd = ", ".join(
            f"${significant(cost.usd_per_million, 3)} at {cost.where} "
            f"(${significant(cost.plain_usd_per_million, 3)} without speculation)"
            for cost in ends
        )
        told.append(f"A million tokens cost {usd}, at {scenario.price.told()}.")
    power = scenario.gpu.power
    if power is not None:
        joule = ", ".join(
            f"{significant(cost.joule, 3)} J at {cost.where} "
            f"({significant(cost.plain_joule, 3)} J without speculation)"
            for cost in ends
        )
        origin = f", scaled from {power.lender} by the power limit" if power.lender else ""
        told.append(f"A token takes {joule}, +-{power.fit.error:.0%}{origin}.")
    return told


def price_lines(scenarios: Sequence[Scenario]) -> list[str]:
    """What the prices of rows rest on, a line each; nothing for prices that came with the question."""
    prices = dict.fromkeys(item.price for item in scenarios if item.scope == "model")
    return [
        f"usd_per_million_tokens: at {price.told()}; --price gives another"
        for price in prices
        if price is not None and price.offer != GIVEN
    ]
