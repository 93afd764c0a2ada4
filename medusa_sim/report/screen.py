"""One layout for every answer: what was asked, the answer, tables, facts by label, warnings.

A command describes its answer as a `Screen`; text for a terminal is drawn here, Markdown and reports from its
blocks (`report.screen_blocks`).
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from medusa_sim.outside.escaping import for_terminal
from medusa_sim.report.table import TextTable, aligned

WIDTH = 100
"""Characters of a line of text; a narrower terminal has fewer."""
MOST_PROSE = 110
"""Characters of a line of text below a table that is wider than WIDTH: both end at about one place."""
NARROWEST = 40
"""Characters that a line may have on any terminal."""
MOST_WARNINGS = 2
"""Warnings that are shown without --verbose."""
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=(?:%|[mu]?s|[kMGT]?B|J|W)(?!\w))")
"""The space between a number and its unit."""

LABELS_OF = {
    "what is listed": ("GPUs", "Devices", "Models", "Runtimes", "Profiles", "Prices"),
    "where it pays": (
        "By batch", "By length", "By context", "Would fit", "Engine", "Within limit", "Surer", "Without",
        "Tied", "Under load",
    ),
    "why": (
        "Why not more", "Other counts", "Tree", "Heads", "Experts", "Decoding", "Time goes to", "Schedule",
        "Off from", "Sessions", "Look at", "Quicker",
    ),
    "how sure": ("How sure", "Acceptance", "Acceptance ±10 %"),
    "measured": ("Measured",),
    "what it takes": ("Memory", "Memory use", "Throughput", "Cost", "Price", "Energy", "Latency"),
    "how it was computed": (
        "Rows", "Columns", "Searched", "Server", "Runs", "Kernels", "Errors", "Source", "Note", "Refused",
        "Next",
    ),
}  # fmt: skip
"""Labels of facts by what they answer, in the order in which every answer has them."""
LABELS = tuple(label for labels in LABELS_OF.values() for label in labels)
"""All of them, in that order."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One fact with its label.

    content: its text, or a function that prices and writes it. detail: shown only with --verbose.
    """

    label: str
    content: str | Callable[[], str]
    detail: bool = False

    @property
    def text(self) -> str:
        """Text of the fact; a detail that must be priced is priced here, when it is read."""
        return self.content if isinstance(self.content, str) else self.content()


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """An answer for people.

    asked: what was asked, on one line (`headline`). answer: its paragraphs (`answer_text`). details: tables
    that are shown only with --verbose. code: (heading, lines to copy).
    """

    asked: str
    answer: tuple[str, ...] = ()
    tables: tuple[TextTable, ...] = ()
    details: tuple[TextTable, ...] = ()
    facts: tuple[Fact, ...] = ()
    code: tuple[str, str] = ("", "")
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Put facts in the order of LABELS; facts of one label keep their order."""
        object.__setattr__(
            self, "facts", tuple(sorted(self.facts, key=lambda fact: LABELS.index(fact.label)))
        )


def warning_text(line: str) -> str:
    """A warning as every command shows it."""
    return f"warning: {line}"


def screen_text(screen: Screen, width: int, table_width: int | None, *, verbose: bool = False) -> str:
    """The answer as text of at most `width` characters a line, where tables are wider up to MOST_PROSE.

    table_width: of tables, which leave out columns and fold words to keep it; None: they keep every column.
    verbose: every fact, every table and every warning.
    """
    width = max(width, NARROWEST)
    shown = (*screen.tables, *(screen.details if verbose else ()))
    tables = [drawn_table(table, table_width).strip("\n") for table in shown]
    if table_width is not None:
        widest = max((len(line) for table in tables for line in table.splitlines()), default=0)
        width = max(width, min(widest, table_width, MOST_PROSE))
    facts = [fact for fact in screen.facts if verbose or not fact.detail]
    warnings = screen.warnings if verbose else screen.warnings[:MOST_WARNINGS]
    blocks = [
        [_filled(screen.asked, width)] if screen.asked else [],
        [_filled(line, width) for line in screen.answer],
        *([table] for table in tables),
        fact_lines(facts, width),
        _code(screen.code),
        [_filled(warning_text(line), width) for line in warnings],
        [_filled(line, width) for line in _hidden(screen, facts, warnings)],
    ]
    return for_terminal("\n\n".join("\n".join(lines) for lines in blocks if lines)) + "\n"


def drawn_table(table: TextTable, width: int | None) -> str:
    """Aligned columns in `width` characters, or in as many as they take."""
    title = [textwrap.fill(table.title, width or WIDTH)] if table.title else []
    return "\n".join([*title, aligned(replace(table if width is None else table.fitted(width), title=""))])


def fact_lines(facts: Sequence[Fact], width: int) -> list[str]:
    """A line a fact: the label, then the texts, all below each other; a label that repeats stands once."""
    if not facts:
        return []
    place = max(len(fact.label) for fact in facts) + 2
    lines, before = [], ""
    for fact in facts:
        label = "" if fact.label == before else fact.label
        lines.append(_filled(fact.text, width, label.ljust(place), " " * place))
        before = fact.label
    return lines


def fact_sentences(facts: Iterable[Fact]) -> list[str]:
    """`Memory: 421 requests fit ...`, a line a fact."""
    return [f"{fact.label}: {fact.text}" for fact in facts]


def _filled(text: str, width: int, first: str = "", then: str = "  ") -> str:
    """Lines of at most `width` characters; a number and its unit stay together.

    >>> print(_filled("off by +3 % of a step", 10))
    off by
      +3 % of
      a step
    """
    together = _BEFORE_UNIT.sub("\u00a0", text)
    lines = textwrap.fill(
        together, width, initial_indent=first, subsequent_indent=then, break_on_hyphens=False
    )
    return lines.replace("\u00a0", " ")


def _code(code: tuple[str, str]) -> list[str]:
    heading, text = code
    return [heading, "", *(f"  {line}" for line in text.rstrip("\n").split("\n"))] if text else []


def _hidden(screen: Screen, facts: Sequence[Fact], warnings: Sequence[str]) -> Iterator[str]:
    """How much --verbose adds; nothing where it adds nothing."""
    counted = {
        "warning": len(screen.warnings) - len(warnings),
        "fact": len(screen.facts) - len(facts),
    }
    parts = [f"{count} more {name}{'s' if count > 1 else ''}" for name, count in counted.items() if count]
    if parts:
        yield f"({' and '.join(parts)} with --verbose)"
