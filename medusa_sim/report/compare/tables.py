"""Tables of a comparison: the frontier and rows of set-ups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from medusa_sim.grid.quantity import BY_NAME, with_unlisted
from medusa_sim.report.compare.measure import WORDS
from medusa_sim.report.quantity_table import quantity_table, quantity_text
from medusa_sim.report.table import TextTable
from medusa_sim.report.words.numbers import NOTHING
from medusa_sim.setups.comparison import Comparison
from medusa_sim.setups.setup import name_of

if TYPE_CHECKING:
    import pandas as pd


MOST_ROWS = 12
"""Rows of a table for people; the whole table is the CSV."""
_SHOWN = (
    "drafter", "drafts", "batch", "tokens_per_s_per_user", "tokens_per_s_per_gpu", "usd_per_million_tokens",
    "joule_per_token",
)  # fmt: skip
"""Columns of tables for people."""


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
    """Set-ups as rows of text; the chosen one has a star."""
    user = "tokens_per_s_per_user"
    columns: dict[str, list[str]] = {
        "chosen": ["*" if chosen else "" for chosen in rows.chosen],
        "set_up": [name_of(row) for row in rows.to_dict("records")],
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
