"""Tables of a comparison: the decision, the frontier and rows of set-ups."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from medusa_sim.grid.quantity import BY_NAME, with_unlisted
from medusa_sim.report.compare.sentences import WORDS, drafting_text
from medusa_sim.report.quantity_table import quantity_table, quantity_text
from medusa_sim.report.table import TextTable
from medusa_sim.report.words.basis import rests_on
from medusa_sim.report.words.numbers import NOTHING, percent, significant
from medusa_sim.setups.comparison import Comparison
from medusa_sim.setups.question import SURER
from medusa_sim.setups.setup import NO_DRAFTER, name_of

if TYPE_CHECKING:
    import pandas as pd


MOST_ROWS = 12
"""Rows of a table for people; the whole table is the CSV."""
_SHOWN = (
    "drafter", "drafts", "batch", "tokens_per_s_per_user", "tokens_per_s_per_gpu", "usd_per_million_tokens",
    "joule_per_token",
)  # fmt: skip
"""Columns of tables for people."""
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

    def column(text: Callable[[Row], str]) -> list[str]:
        return [NOTHING if row is None else text(row) for row, _ in rows.values()]

    columns: dict[str, list[str]] = {
        "decision": list(rows),
        BY_NAME["set_up"].title: [
            why_not if row is None else f"{name_of(row)}, {drafting_text(answer, row)}"
            for row, why_not in rows.values()
        ],
        WORDS[answer.measure].header: column(lambda row: significant(float(row[answer.column]), 3)),
        BY_NAME[_SPEED].on_axis: column(lambda row: significant(float(row[_SPEED]), 3)),
        BY_NAME["interval"].title: column(
            lambda row: " to ".join(significant(float(row[f"{_SPEED}_{end}"]), 3) for end in ("low", "high"))
        ),
        BY_NAME["sure"].title: column(lambda row: percent(float(row["sure"]), 0)),
        "rests on": column(lambda row: rests_on(answer.scenario(row), plain=row["drafter"] == NO_DRAFTER)),
    }
    return TextTable.by_column(columns, words=("decision", BY_NAME["set_up"].title, "rests on"))


def frontier_table(answer: Comparison, most: int = MOST_ROWS) -> TextTable:
    """Rows of the frontier, thinned to about `most`."""
    rows = answer.frontier
    every = max(1, -(-len(rows) // most))
    kept = (rows.index % every == 0) | rows.chosen | (rows.index == len(rows) - 1)
    return rows_table(rows[kept], frontier_title(answer))


def frontier_title(answer: Comparison) -> str:
    """Which two quantities the frontier trades."""
    return f"Pareto frontier, speed per user against {WORDS[answer.measure].against}"


def rows_table(rows: pd.DataFrame, title: str) -> TextTable:
    """Set-ups as rows of text; the chosen one has a star, and what all of them share stands in the title."""
    user = "tokens_per_s_per_user"
    names, shared = _apart([name_of(row) for row in rows.to_dict("records")])
    title += f" (all {shared})" if shared else ""
    columns: dict[str, list[str]] = {
        "chosen": ["*" if chosen else "" for chosen in rows.chosen],
        "set_up": names,
    }
    for name in with_unlisted(_SHOWN):
        if not BY_NAME[name].title:
            continue
        columns[name] = [quantity_text(name, value or NOTHING) for value in rows[name].tolist()]
        if name == user:
            ends = zip(rows[f"{user}_low"].tolist(), rows[f"{user}_high"].tolist(), strict=True)
            columns["interval"] = [
                f"{quantity_text(user, low)}-{quantity_text(user, high)}" for low, high in ends
            ]
            if rows.sure.min() < 1.0:
                columns["sure"] = [quantity_text("sure", value) for value in rows.sure.tolist()]
    words = ("chosen", "set_up", "drafter")
    expendable = ("joule_per_token", "interval", "tokens_per_s_per_gpu", "drafts")
    return quantity_table(columns, words=words, title=title, expendable=expendable)


def _apart(names: list[str]) -> tuple[list[str], str]:
    """Names of set-ups without what all of them share after the GPUs, and that.

    >>> _apart(["1 x h100-sxm, fp8, vllm", "2 x h100-sxm, TP 2, fp8, vllm"])
    (['1 x h100-sxm', '2 x h100-sxm, TP 2'], 'fp8, vllm')
    """
    parts = [name.split(", ") for name in names]
    shared = [way for way in parts[0][1:] if all(way in ways for ways in parts)] if len(parts) > 1 else []
    return [", ".join(way for way in ways if way not in shared) for ways in parts], ", ".join(shared)
