"""A profile of acceptance for people: tokens per step by candidates, with their band."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from medusa_sim.acceptance.profile import AcceptanceProfile
from medusa_sim.grid.quantity import BY_NAME
from medusa_sim.report.screen import Fact, Screen
from medusa_sim.report.table import TextTable


def acceptance_screen(profile: AcceptanceProfile, columns: Mapping[str, Any], notes: Sequence[str]) -> Screen:
    """columns: as rows have them, with tokens_per_step and its band; notes: what was left out or guessed."""
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    last = rows[-1]
    shown = {
        BY_NAME["candidates"].title: lambda row: str(row["candidates"]),
        BY_NAME["tokens_per_step"].title: lambda row: f"{row['tokens_per_step']:.3f}",
        BY_NAME["interval"].title: lambda row: (
            f"{row['tokens_per_step_low']:.3f}-{row['tokens_per_step_high']:.3f}"
        ),
    }
    if "depth" in columns:
        shown["depth"] = lambda row: str(row["depth"])
        shown["heads worth running"] = lambda row: str(row["heads_worth_running"])
    return Screen(
        asked=f"acceptance {profile.name}: {profile.title}",
        answer=(
            f"A step of {last['candidates']} candidates emits {last['tokens_per_step']:.2f} tokens on "
            f"average (80 %: {last['tokens_per_step_low']:.2f} to {last['tokens_per_step_high']:.2f}).",
        ),
        tables=(TextTable.by_row(rows, shown),),
        facts=(Fact("Source", profile.source), *(Fact("Note", line) for line in notes)),
    )
