"""A comparison of set-ups for people: the answer, tables, what is tied or refused, warnings, the command."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from medusa_sim.errors import UsageError
from medusa_sim.grid.quantity import BY_NAME, both_ends, with_unlisted
from medusa_sim.report.compare.sentences import (
    WORDS,
    answer_text,
    drafting_text,
    limits_text,
    loaded_line,
    measure_text,
    speed_texts,
    surer_text,
    without_text,
    workload,
)
from medusa_sim.report.formats import json_row
from medusa_sim.report.quantity_table import quantity_table, quantity_text
from medusa_sim.report.screen import Fact, Screen
from medusa_sim.report.table import TextTable
from medusa_sim.report.words.basis import rests_on
from medusa_sim.report.words.cost import price_lines
from medusa_sim.report.words.measured import measured_text
from medusa_sim.report.words.numbers import NOTHING, and_more, percent, significant
from medusa_sim.setups.comparison import Comparison
from medusa_sim.setups.question import SURER
from medusa_sim.setups.setup import NO_DRAFTER, name_of

if TYPE_CHECKING:
    import pandas as pd

    from medusa_sim.setups.loaded import Loaded


SCREEN_ROWS = 8
"""Rows of the frontier on a screen."""
MOST_ROWS = 12
"""Rows of a table for people; the whole table is the CSV."""
_SPEED = "tokens_per_s_per_user"
_SHOWN = (
    "drafter", "drafts", "batch", _SPEED, "tokens_per_s_per_gpu", "usd_per_million_tokens", "joule_per_token",
)  # fmt: skip
"""Columns of tables for people."""
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
        BY_NAME[_SPEED].on_axis: column(lambda row: speed_texts(row)[0]),
        BY_NAME["interval"].title: column(lambda row: " to ".join(speed_texts(row)[1:])),
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
        if name == _SPEED:
            ends = zip(*(rows[end].tolist() for end in both_ends(_SPEED)), strict=True)
            columns["interval"] = [
                f"{quantity_text(_SPEED, low)}-{quantity_text(_SPEED, high)}" for low, high in ends
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
