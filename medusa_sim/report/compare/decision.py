"""The decision of a comparison in three lines: the choice, the safe one and the best without drafts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from medusa_sim.grid.quantity import BY_NAME
from medusa_sim.report.compare.measure import WORDS
from medusa_sim.report.compare.sentences import drafting_text
from medusa_sim.report.table import TextTable
from medusa_sim.report.words.basis import rests_on
from medusa_sim.report.words.numbers import NOTHING, percent, significant
from medusa_sim.setups.comparison import Comparison
from medusa_sim.setups.question import SURER
from medusa_sim.setups.setup import PLAIN, name_of

_SPEED = "tokens_per_s_per_user"
Row = Mapping[str, Any]


def decision_table(answer: Comparison) -> TextTable:
    """A line each for the choice, the SURER one and the best without drafts, each with its basis."""
    missing = "no set-up keeps the limits"
    rows: dict[str, tuple[Row | None, str]] = {
        "Choice": (answer.chosen, missing),
        "Safe choice": (answer.surer.chosen, f"no set-up is {percent(SURER, 0)} sure of the target"),
        "No drafts": (answer.chosen_plain, missing),
    }
    cells: dict[str, Callable[[Row], str]] = {
        BY_NAME["set_up"].title: lambda row: f"{name_of(row)}, {drafting_text(answer, row)}",
        WORDS[answer.measure].header: lambda row: significant(float(row[answer.column]), 3),
        BY_NAME[_SPEED].on_axis: lambda row: significant(float(row[_SPEED]), 3),
        BY_NAME["interval"].title: lambda row: " to ".join(
            significant(float(row[f"{_SPEED}_{end}"]), 3) for end in ("low", "high")
        ),
        BY_NAME["sure"].title: lambda row: percent(float(row["sure"]), 0),
        "rests on": lambda row: rests_on(answer.scenario(row), plain=row["drafter"] == PLAIN),
    }
    words = ("decision", BY_NAME["set_up"].title, "rests on")
    empty = (NOTHING,) * (len(cells) - 1)
    headers = ("decision", *cells)
    return TextTable(
        headers=headers,
        rows=tuple(
            (name, why_not, *empty) if row is None else (name, *(text(row) for text in cells.values()))
            for name, (row, why_not) in rows.items()
        ),
        right=tuple(header not in words for header in headers),
    )
