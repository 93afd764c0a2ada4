"""Warnings of a comparison: the basis of its rows, prices, fleets that are nearly full."""

from __future__ import annotations

import re
from typing import Any

from medusa_sim.report.words.cost import price_lines
from medusa_sim.report.words.numbers import and_more, percent
from medusa_sim.setups.comparison import Comparison
from medusa_sim.setups.setup import name_of

_MANY_GPUS = 10_000
_BUSY = 0.85
"""Share of what copies carry above which arrivals at random queue for long."""
_OF_A_SPLIT = re.compile(r" for \d+ GPUs| among \d+| \([^)]*\)")
"""Words in which warnings of one kind differ: how a set-up is split."""


def warnings(answer: Comparison) -> list[str]:
    """A line for each kind of warning about the set-ups shown, with their names, then prices.

    Shown are the chosen set-up, the best without speculation and the frontier.
    """
    rows: list[Any] = [answer.chosen, answer.chosen_plain, *answer.frontier.to_dict("records")]
    setups = {answer.key(row): name_of(row) for row in rows if row is not None}
    kinds: dict[str, tuple[str, dict[str, None]]] = {}
    for key, names in setups.items():
        for line in answer.warnings_of(key):
            kinds.setdefault(_OF_A_SPLIT.sub("", line), (line, {}))[1][names] = None
    every = len(set(setups.values()))
    lines = _about_the_chosen(answer)
    lines += [
        f"{line} ({'all shown' if len(names) == every else and_more(list(names))})"
        for line, names in kinds.values()
    ]
    if others := len(answer.scenarios) - len(setups):
        lines.append(
            f"{others} set-up{'s' * (others > 1)} not shown may have other warnings; see --format csv or json"
        )
    return [*lines, *price_notes(answer)]


def _about_the_chosen(answer: Comparison) -> list[str]:
    """Says where the chosen copies are nearly full, or more than any one fleet."""
    lines: list[str] = []
    if answer.chosen is not None and (busy := answer.busy(answer.chosen) or 0.0) > _BUSY:
        lines.append(
            f"the rate takes {percent(busy, 0)} of what the chosen copies carry: requests that come at "
            "random wait for each other; --under-load shows how long, --ttft-ms sets a limit"
        )
    if answer.chosen is not None and (gpus := int(answer.chosen["gpus"])) > _MANY_GPUS:
        asked = answer.question
        traffic = f"{asked.users:,} users" if asked.rate is None else f"{asked.rate:,.0f} requests a second"
        lines.append(f"{gpus:,} GPUs carry {traffic}: more than any one fleet; check the number")
    return lines


def price_notes(answer: Comparison) -> list[str]:
    """Prices that the answer used, and the measure that is used where a GPU has none."""
    lines = price_lines(list(answer.scenarios.values()))
    missing = sorted({item.gpu.name for item in answer.scenarios.values() if item.price is None})
    if missing:
        lines.append(
            f"no price is listed for {', '.join(missing)}: give --price {missing[0]}=USD; "
            + (
                "until then they are not chosen"
                if answer.measure == "cost"
                else f"compared by {answer.measure}"
            )
        )
    return lines
