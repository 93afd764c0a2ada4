"""A profile of acceptance for people: tokens per step by candidates, with their band."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from medusa_sim.acceptance.profile import AcceptanceProfile
from medusa_sim.grid.quantity import BY_NAME
from medusa_sim.report.screen import Fact, Screen
from medusa_sim.report.table import TextTable


def acceptance_screen(
    profile: AcceptanceProfile, columns: Mapping[str, Any], notes: Sequence[str], doubt: str
) -> Screen:
    """columns: as rows have them, with tokens_per_step and its band; notes: what was left out or guessed.

    doubt: of shares that look like conditional rates; empty for none.
    """
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    last = rows[-1]
    # rates that were typed, or are told without trials, are taken as exact: that is no interval
    drafted = [row for row in rows if row["candidates"] > 1]  # one candidate is always one token
    is_exact = bool(drafted) and all(
        row["tokens_per_step_low"] == row["tokens_per_step_high"] for row in drafted
    )
    shown = {
        "candidates": [str(row["candidates"]) for row in rows],
        "tokens_per_step": [f"{row['tokens_per_step']:.3f}" for row in rows],
        "interval": [f"{row['tokens_per_step_low']:.3f}-{row['tokens_per_step_high']:.3f}" for row in rows],
    }
    if is_exact:
        del shown["interval"]
    table = {BY_NAME[name].title: cells for name, cells in shown.items()}
    if "depth" in columns:
        table["depth"] = [str(row["depth"]) for row in rows]
        table["heads worth running"] = [str(row["heads_worth_running"]) for row in rows]
    return Screen(
        asked=f"acceptance {profile.name}: {profile.title}",
        answer=(
            f"A step of {last['candidates']} candidates emits {last['tokens_per_step']:.2f} tokens on average"
            + (
                ", if these rates hold: nothing says how often they were tried, so they have no interval."
                if is_exact
                else f" (80 %: {last['tokens_per_step_low']:.2f} to {last['tokens_per_step_high']:.2f})."
            ),
        ),
        tables=(TextTable.by_column(table),),
        facts=(Fact("Source", profile.source), *(Fact("Note", line) for line in notes)),
        warnings=(doubt,) if doubt else (),
    )
