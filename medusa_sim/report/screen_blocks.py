"""A screen as blocks of a page, whose first part is alike in every command, and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from medusa_sim.report.blocks import Appendix, Block, Bullets, Code, Heading, Labelled, Picture, Text
from medusa_sim.report.document import markdown_page
from medusa_sim.report.screen import LABELS, LABELS_OF, Screen, fact_sentences, warning_text

_MOST_WARNINGS = 3
"""Warnings on the first page; the details have all of them."""
_WHY = LABELS_OF["where it pays"] + LABELS_OF["why"]
_SURE = ("Acceptance ±10 %",)
"""Facts that stand under How sure, with what the answer rests on."""


def answer_page(
    title: str,
    screen: Screen,
    *,
    picture: Picture | None,
    sure: Sequence[tuple[str, str]],
    more: Sequence[Block],
    end: Sequence[Block] = (),
    level: int = 1,
) -> list[Block]:
    """A report with the same first page in every command, everything else folded below it.

    The page has the answer, why, how sure, what was measured near it, and warnings. picture: drawn below the
    first table. sure: (label, line) of what the answer rests on. more: blocks of the details, after the rest
    of the screen. end: `sources.closing`, whose last block ends the page. level: of the title.
    """
    warned, hidden = screen.warnings[:_MOST_WARNINGS], len(screen.warnings[_MOST_WARNINGS:])
    warned += (f"{hidden} more below, under Details.",) if hidden else ()
    parts: dict[str, Labelled | Bullets] = {
        "Why": Labelled(_labelled(screen, _WHY)),
        "How sure": Labelled((*sure, *_labelled(screen, _SURE))),
        "Measured near it": Labelled(_labelled(screen, LABELS_OF["measured"])),
        "Warnings": Bullets(warned),
    }
    blocks: list[Block] = [Heading(title, level), *(Text(line, "lead") for line in screen.answer)]
    blocks += [Text(screen.asked, "soft"), *screen.tables[:1]]
    blocks += [] if picture is None else [picture]
    for heading, part in parts.items():
        blocks += [Heading(heading, level=3), part] if part.items else []
    shown = {fact.label for fact in screen.facts if not fact.detail} & {*_WHY, *_SURE, *LABELS_OF["measured"]}
    others = [label for label in LABELS if label != "Next" and label not in shown]
    rest = _labelled(screen, others, with_details=True)
    details: list[Block] = [*screen.tables[1:], *([Labelled(rest)] if rest else []), *screen.details]
    if screen.code[1]:
        details += [Heading(screen.code[0].rstrip(":"), level=3), Code(screen.code[1])]
    if hidden:
        details += [Heading("All warnings", level=3), Bullets(screen.warnings)]
    return [*blocks, *end[-1:], Appendix("Details", (*details, *more, *end[:-1]))]


def _labelled(
    screen: Screen, labels: Sequence[str], *, with_details: bool = False
) -> tuple[tuple[str, str], ...]:
    """(label, text) of the facts with these labels; without `with_details` those that are always shown."""
    return tuple(
        (fact.label, fact.text)
        for fact in screen.facts
        if fact.label in labels and (with_details or not fact.detail)
    )


def screen_markdown(screen: Screen) -> str:
    """Everything as Markdown, as a terminal has it."""
    heading, lines = screen.code
    blocks: list[Block] = [Text(screen.asked), *map(Text, screen.answer), *screen.tables, *screen.details]
    blocks.append(Bullets(tuple(fact_sentences(screen.facts))))
    if lines:
        blocks += [Text(heading), Code(lines)]
    return markdown_page([*blocks, Bullets(tuple(map(warning_text, screen.warnings)))])
