"""What was measured near a set-up, as a sentence and tables for people."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from medusa_sim.doubts.standing import OTHERS, UNSERVED, Group, Standing, standing, weights_of
from medusa_sim.report.screen import Fact, Screen
from medusa_sim.report.table import TextTable
from medusa_sim.report.words.numbers import NOTHING, percent
from medusa_sim.report.words.scenario import setup_text
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.specs.nearness import Near, known_kinds
from medusa_sim.units import format_text

WHAT_IS_NEW = {
    "measured": "inside what was measured",
    "version": "measured in another version of the engine",
    "card": "measured on another card of its generation",
    "generation": "measured on another generation of cards",
    "model": "another model was measured",
    "format": "another format of weights was measured",
    "engine": "no server of this engine was measured",
    UNSERVED: "no server was measured; kernels have bands of their own",
}
"""What is new about a set-up, in words."""


def standing_sentence(scenario: Scenario, found: Standing) -> str:
    """Whether a scenario lies inside what was measured, and the error to expect."""
    weights = format_text(weights_of(scenario.model))
    named = f"{scenario.model.name} ({weights}) in {scenario.runtime.name} on {scenario.cards}"
    band = f"80 % of plain steps within {percent(found.half_width)}"
    if found.nearness is None:
        return f"{named}: {WHAT_IS_NEW[found.kind]} ({band})."
    between = f", of which {percent(found.between)} for how near that is" if found.between else ""
    cells = f"the nearest is {found.nearest} ({found.nearness.nearest.cells} cells)"
    expected = f"Expect an error of {percent(found.expected or 0.0)} ({band}{between})."
    return f"{named}: {WHAT_IS_NEW[found.kind]}; {cells}. {expected}"


def standing_screen(scenario: Scenario, found: Standing) -> Screen:
    """How near a scenario is to what was measured, with the nearest groups."""
    return Screen(
        asked=setup_text(scenario),
        answer=(standing_sentence(scenario, found),),
        tables=(groups_table(found.near),) if found.near else (),
    )


def standing_fact(scenario: Scenario) -> Iterator[Fact]:
    """How near a scenario in an engine is to what was measured, and the error to expect of a plain step."""
    if scenario.scope != "model" or scenario.runtime.engine is None:
        return
    found = standing(scenario)
    known = f"80 % of plain steps lie within {percent(found.half_width)}"
    yield Fact(
        "How sure", known if found.expected is None else f"{WHAT_IS_NEW[found.kind]}{expected_text(found)}"
    )


def expected_text(found: Standing) -> str:
    """`; expect a plain step to err by 8.5 %`; empty where nothing tells."""
    return "" if found.expected is None else f"; expect a plain step to err by {percent(found.expected)}"


def kinds_table() -> TextTable:
    """What to expect of a set-up by what is new about it."""
    columns: dict[str, Callable[[tuple[str, Near]], str]] = {
        "new": lambda pair: pair[0],
        "": lambda pair: WHAT_IS_NEW[pair[0]],
        "error to expect": lambda pair: percent(pair[1].error),
        "band for it": lambda pair: percent(pair[1].between_share),
        "of experts": lambda pair: percent(pair[1].experts_share),
        "in band": lambda pair: percent(pair[1].held, 0),
        "cells": lambda pair: f"{pair[1].cells:,}",
        "groups": lambda pair: str(pair[1].groups),
    }
    title = "what to expect of a plain step, by what is new about the set-up"
    return TextTable.by_row(known_kinds().items(), columns, words=("new", ""), title=title)


def groups_table(found: Sequence[Group], title: str = "") -> TextTable:
    """One line for each group."""
    columns: dict[str, Callable[[Group], str]] = {
        "kind": lambda group: group.kind,
        "what": lambda group: group.what,
        "engine": lambda group: group.engine,
        "card": lambda group: group.card,
        "model": lambda group: group.model,
        "weights": lambda group: format_text(group.weights),
        "rows": lambda group: f"{group.rows:,}",
        "mean error": lambda group: percent(group.error),
        "bias": lambda group: f"{100.0 * group.bias:+.1f} %",
        "worst": lambda group: f"{100.0 * group.worst:+.0f} %",
        "in band": lambda group: NOTHING if group.held is None else percent(group.held, 0),
        "left out": lambda group: NOTHING if group.left_out is None else percent(group.left_out),
        "fitted": lambda group: group.fitted,
        "rows are in": lambda group: group.source,
    }
    for header, name in (("in band", "held"), ("left out", "left_out")):
        if all(getattr(group, name) is None for group in found):  # no group of this kind has it
            del columns[header]
    words = ("kind", "what", "engine", "card", "model", "weights", "fitted", "rows are in")
    expendable = ("rows are in", "left out", "bias", "fitted")
    return TextTable.by_row(found, columns, words=words, title=title, expendable=expendable)


def overview_table(found: Sequence[Group]) -> TextTable:
    """A line for each engine, card and format of kinds that are of an engine; kernels by card."""
    parts: dict[tuple[str, ...], list[Group]] = {}
    for group in found:
        place = (group.kind, "" if group.kind == "kernel" else group.engine, group.card)
        parts.setdefault((*place, "" if group.kind == "kernel" else group.weights), []).append(group)

    def mean(own: Sequence[Group], name: str) -> str:
        known = [(getattr(group, name), group.rows) for group in own if getattr(group, name) is not None]
        rows = sum(count for _, count in known)
        return percent(sum(value * count for value, count in known) / rows) if known else NOTHING

    def models(own: Sequence[Group]) -> str:
        return ", ".join(sorted({group.model for group in own} - {"", OTHERS})) or NOTHING

    columns: dict[str, Callable[[tuple[tuple[str, ...], list[Group]]], str]] = {
        "kind": lambda part: part[0][0],
        "engine": lambda part: part[0][1] or NOTHING,
        "card": lambda part: part[0][2] or NOTHING,
        "weights": lambda part: format_text(part[0][3]) or NOTHING,
        "models": lambda part: models(part[1]),
        "rows": lambda part: f"{sum(group.rows for group in part[1]):,}",
        "mean error": lambda part: mean(part[1], "error"),
        "in band": lambda part: mean(part[1], "held"),
        "furthest off": lambda part: f"{100.0 * max((group.worst for group in part[1]), key=abs):+.0f} %",
    }  # fmt: skip
    words = ("kind", "engine", "card", "weights", "models")
    return TextTable.by_row(parts.items(), columns, words=words, title="what was measured")
