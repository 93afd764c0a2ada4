"""What tokens cost, never without the price's date, and what memory holds or lacks, as sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from medusa_sim.plan.capacity import Shortfall
from medusa_sim.plan.scenario import Scenario
from medusa_sim.report.numbers import significant
from medusa_sim.specs.costs import GIVEN
from medusa_sim.step.memory import MemoryParts
from medusa_sim.units import GIGA

_LEAST_GB = 0.01
"""Below it the size of a part of memory is not told."""


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


def shortfall_text(found: Shortfall) -> str:
    """How many GB are needed and there, and what would do."""
    lines = [
        f"Does not fit: {found.needed_bytes / GIGA:,.1f} GB are needed on each GPU at batch {found.batch}, "
        f"length {found.seq_len} without speculation ({memory_text(found.parts)}), "
        f"{found.usable_bytes / GIGA:,.1f} GB can be used."
    ]
    would = [
        f"{change.option} ({change.needed_bytes / GIGA:,.1f} of {change.usable_bytes / GIGA:,.1f} GB)"
        for change in found.changes
    ]
    if not would:
        return f"{lines[0]} No one change that is known would do."
    return f"{lines[0]} What would do, each alone: {'; '.join(would)}."


def memory_text(parts: MemoryParts) -> str:
    """`weights 13.5, KV cache 0.5, activations 0.1 GB`: of one GPU, what is nothing left out."""
    named = zip(("weights", "drafter", "KV cache", "activations"), parts, strict=True)
    told = [f"{name} {_gigabytes(float(value))}" for name, value in named if float(value) > 0.0]
    return f"{', '.join(told)} GB"


def _gigabytes(value: float) -> str:
    """A tenth from 1 GB on, a hundredth below: figures of a sum, which nobody reads finer."""
    size = value / GIGA
    return f"{size:,.1f}" if size >= 1.0 else f"{size:.2f}" if size >= _LEAST_GB else f"< {_LEAST_GB}"
