"""A comparison of set-ups for people: the answer, the frontier, what is tied or refused, the command."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from medusa_sim.errors import UsageError
from medusa_sim.report.compare.sentences import (
    answer_text,
    drafting_text,
    limits_text,
    loaded_line,
    measure_text,
    surer_text,
    without_text,
    workload,
)
from medusa_sim.report.compare.tables import MOST_ROWS, frontier_table, rows_table
from medusa_sim.report.compare.warnings import warnings
from medusa_sim.report.formats import json_row
from medusa_sim.report.screen import Fact, Screen
from medusa_sim.report.words.measured import measured_text
from medusa_sim.report.words.numbers import and_more
from medusa_sim.setups.comparison import Comparison
from medusa_sim.setups.setup import name_of

if TYPE_CHECKING:
    from medusa_sim.setups.loaded import Loaded

SCREEN_ROWS = 8
"""Rows of the frontier on a screen."""
_WITHOUT, _SURER = OF_THE_DECISION = ("Without", "Surer")
"""Labels of facts that a table of the decision has as lines."""


def compare_screen(
    answer: Comparison, fleets: Sequence[Loaded] = (), draft_path: str | None = None
) -> Screen:
    """All of the answer. fleets: set-ups under load; draft_path: the drafter's checkpoint."""
    others = answer.runners_up.head(MOST_ROWS)
    tied = f"Statistically tied ({len(answer.runners_up)} set-ups within the interval):"
    return Screen(
        asked=headline(answer),
        answer=(answer_text(answer),),
        tables=(frontier_table(answer, SCREEN_ROWS),),
        details=(rows_table(others, tied),) if len(others) else (),
        facts=tuple(facts(answer, fleets)),
        code=("One copy of it:", launch_text(answer, draft_path)),
        warnings=tuple(warnings(answer)),
    )


def headline(answer: Comparison) -> str:
    """The question in one line: requests, model and limits."""
    return f"{workload(answer.question)}: {answer.model.name}, {limits_text(answer.question)}"


def facts(answer: Comparison, fleets: Sequence[Loaded] = ()) -> Iterator[Fact]:
    """Facts about the chosen set-up."""
    if without := without_text(answer):
        yield Fact(_WITHOUT, without)
    if surer := surer_text(answer):
        yield Fact(_SURER, surer)
    if number := len(answer.runners_up):
        first: Mapping[str, Any] = json_row(answer.runners_up.to_dict("records")[0])
        many = "1 other set-up has" if number == 1 else f"{number} other set-ups have"
        yield Fact(
            "Tied",
            f"{many} intervals that reach it; first {name_of(first)}, {drafting_text(answer, first)}: "
            f"{measure_text(answer, first)}",
        )
    yield from (Fact("Under load", loaded_line(fleet)) for fleet in fleets)
    yield Fact("Measured", measured_text(answer))
    refused = refused_lines(answer)
    if refused:
        number = len(answer.refused)
        yield Fact("Refused", f"{number} set-up{'s' * (number > 1)} that cannot run")
        yield from (Fact("Refused", line, detail=True) for line in refused)


def refused_lines(answer: Comparison) -> list[str]:
    """A line a reason, with the first set-up that it refuses and how many more."""
    by_reason: dict[str, list[str]] = {}
    for item in answer.refused:
        by_reason.setdefault(item.reason, []).append(item.setup)
    return [f"{and_more(setups)}: {reason}" for reason, setups in by_reason.items()]


def launch_text(answer: Comparison, draft_path: str | None = None) -> str:
    """The command of the chosen set-up, or why the engine has no words for it; empty where none is chosen."""
    from medusa_sim.export.launch import chosen_command

    try:
        return "" if answer.chosen is None else chosen_command(answer, answer.chosen, draft_path)
    except UsageError as error:
        return f"# {error}\n"
