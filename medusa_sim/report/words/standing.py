"""Measurements near a set-up, as a sentence and tables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from medusa_sim.doubts.standing import DEVICE, OTHER_DEVICES, UNSERVED, Standing, standing
from medusa_sim.engines.accuracy_groups import SMALL_GROUPS, Group, mean_of
from medusa_sim.engines.served_groups import known_kinds
from medusa_sim.report.screen import Fact
from medusa_sim.report.table import TextTable
from medusa_sim.report.words.numbers import NOTHING, percent
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.units import format_text

WHAT_IS_NEW = {
    "measured": "inside what was measured",
    "version": "measured in another version of the engine",
    "gpu": "measured on another GPU of its generation",
    "generation": "measured on another generation of GPUs",
    "model": "another model was measured",
    "form": "models of other forms were measured",
    "format": "another format of weights was measured",
    "engine": "no server of this engine was measured",
    UNSERVED: "no server was measured; kernels have bands of their own",
    DEVICE: "speeds of this device were measured",
    OTHER_DEVICES: "speeds of other devices were measured",
}
"""Differences from the nearest measured set-up, in words."""


def standing_sentence(scenario: Scenario, found: Standing) -> str:
    """Whether a scenario lies inside what was measured, and the error to expect."""
    model = scenario.model
    set_up = f"{model.name} {model.numbers} in {scenario.runtime.name} on {scenario.gpus_text}"
    named = f"{set_up}: {WHAT_IS_NEW[found.kind]}"
    band = f"80 % of plain steps should lie within {percent(found.half_width)}"
    if found.nearness is None:
        return f"{named}. {band}."
    points = f"{found.nearness.group.cells} measured points"
    is_inside = found.kind == "measured"
    nearest = f" ({points})" if is_inside else f"; the nearest is {found.nearest} ({points})"
    expected = f"Expect plain steps to be off by {percent(found.expected or 0.0)}"
    between = f", {percent(found.between)} of it for what is new" if found.between else ""
    return f"{named}{nearest}. {expected}; {band}{between}."


def standing_fact(scenario: Scenario) -> Iterator[Fact]:
    """Distance of a scenario from an engine's measured rows, and the error to expect of a plain step."""
    if scenario.scope != "model" or scenario.runtime.engine is None:
        return
    found = standing(scenario)
    within = f"80 % of plain steps lie within {percent(found.half_width)}"
    yield Fact(
        "How sure", within if found.expected is None else f"{WHAT_IS_NEW[found.kind]}{expected_text(found)}"
    )


def expected_text(found: Standing) -> str:
    """`; expect plain steps to be off by 8.5 %`; empty where nothing tells."""
    return "" if found.expected is None else f"; expect plain steps to be off by {percent(found.expected)}"


def kinds_table() -> TextTable:
    """Error to expect of a set-up, by its differences from measured ones."""
    kinds = known_kinds().values()
    columns: dict[str, list[str]] = {
        "new": list(known_kinds()),
        "": [WHAT_IS_NEW[name] for name in known_kinds()],
        "error to expect": [percent(kind.error) for kind in kinds],
        "band for it": [percent(kind.step_share) for kind in kinds],
        "of experts": [percent(kind.experts_share) for kind in kinds],
        "of kernels' own": [percent(kind.kernels_half_share, 0) for kind in kinds],
        "in band": [percent(kind.held, 0) for kind in kinds],
        "cells": [f"{kind.cells:,}" for kind in kinds],
        "groups": [str(kind.groups) for kind in kinds],
    }
    title = "what to expect of a plain step, by what is new about the set-up"
    return TextTable.by_column(columns, words=("new", ""), title=title)


def groups_table(found: Sequence[Group], title: str = "") -> TextTable:
    """One line for each group."""
    columns: dict[str, list[str]] = {
        "kind": [group.kind for group in found],
        "what": [group.what for group in found],
        "engine": [group.engine for group in found],
        "gpu": [group.gpu for group in found],
        "model": [group.model for group in found],
        "weights": [format_text(group.weights) for group in found],
        "rows": [f"{group.rows:,}" for group in found],
        "mean error": [percent(group.error) for group in found],
        "bias": [percent(group.bias, signed=True) for group in found],
        "worst": [percent(group.worst, 0, signed=True) for group in found],
        "in band": [NOTHING if group.held is None else percent(group.held, 0) for group in found],
        "left out": [NOTHING if group.left_out is None else percent(group.left_out) for group in found],
        "fitted": [group.fitted for group in found],
        "rows are in": [group.source for group in found],
    }
    for header, name in (("in band", "held"), ("left out", "left_out")):
        if all(getattr(group, name) is None for group in found):  # no group of this kind has it
            del columns[header]
    words = ("kind", "what", "engine", "gpu", "model", "weights", "fitted", "rows are in")
    expendable = ("rows are in", "left out", "bias", "fitted")
    return TextTable.by_column(columns, words=words, title=title, expendable=expendable)


def overview_table(found: Sequence[Group]) -> TextTable:
    """A line for each engine, GPU and format of kinds of an engine; kernels by GPU."""
    parts: dict[tuple[str, ...], list[Group]] = {}
    for group in found:
        place = (group.kind, "" if group.kind == "kernel" else group.engine, group.gpu)
        parts.setdefault((*place, "" if group.kind == "kernel" else group.weights), []).append(group)

    def mean(some: Sequence[Group], name: str) -> str:
        found = mean_of(some, name)
        return NOTHING if math.isnan(found) else percent(found)

    def models(some: Sequence[Group]) -> str:
        return ", ".join(sorted({group.model for group in some} - {"", SMALL_GROUPS})) or NOTHING

    def furthest(some: Sequence[Group]) -> str:
        return percent(max((group.worst for group in some), key=abs), 0, signed=True)

    columns: dict[str, list[str]] = {
        "kind": [kind for kind, *_ in parts],
        "engine": [engine or NOTHING for _, engine, _, _ in parts],
        "gpu": [gpu or NOTHING for _, _, gpu, _ in parts],
        "weights": [format_text(weights) or NOTHING for *_, weights in parts],
        "models": [models(some) for some in parts.values()],
        "rows": [f"{sum(group.rows for group in some):,}" for some in parts.values()],
        "mean error": [mean(some, "error") for some in parts.values()],
        "in band": [mean(some, "held") for some in parts.values()],
        "furthest off": [furthest(some) for some in parts.values()],
    }
    words = ("kind", "engine", "gpu", "weights", "models")
    expendable = ("models", "furthest off", "in band")
    return TextTable.by_column(columns, words=words, title="what was measured", expendable=expendable)
