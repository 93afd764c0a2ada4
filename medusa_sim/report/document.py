"""A report as a list of blocks, rendered as self-contained HTML or as Markdown with pictures beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from medusa_sim.outside.escaping import code_block, for_file, for_html, for_markdown, paragraph
from medusa_sim.report.screen import LABELS, LABELS_OF, Screen
from medusa_sim.report.table import TextTable, markdown

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading of level 1 to 3."""

    text: str
    level: int = 2


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph; tone: `lead` for the answer, `soft` for what stands back."""

    text: str
    tone: Literal["", "lead", "soft"] = ""


@dataclass(frozen=True, slots=True)
class Bullets:
    """A list of sentences."""

    items: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Labelled:
    """Facts, each behind its label."""

    items: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Code:
    """Lines to copy."""

    text: str


@dataclass(frozen=True, slots=True)
class Cards:
    """The numbers that matter: (label, value, remark)."""

    items: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True)
class Picture:
    """A figure with the name of its file and a caption that says what it shows.

    draw: makes it, with `slim=True` as a phone shows it.
    """

    draw: Callable[..., Figure]
    name: str
    caption: str

    @property
    def file(self) -> str:
        """The PNG beside Markdown."""
        return f"{for_file(self.name)}.png"

    @cached_property
    def figure(self) -> Figure:
        """As a page of full width shows it."""
        return self.draw()


@dataclass(frozen=True, slots=True)
class Folded:
    """A table that a reader unfolds."""

    summary: str
    table: TextTable


@dataclass(frozen=True, slots=True)
class Appendix:
    """Everything behind the first page: a reader unfolds it; where it is open it is printed too."""

    summary: str
    blocks: tuple[Block, ...]


_PAGE_WIDTH = 122
"""Characters of a table that fit a page of full width."""
Block: TypeAlias = (
    "Heading | Text | Bullets | Labelled | Code | Cards | Picture | Folded | Appendix | TextTable"
)
_MOST_WARNINGS = 3
"""Warnings on the first page; the details have all of them."""
_WHY = LABELS_OF["where it pays"] + LABELS_OF["why"]
_SURE = ("If it differs",)
"""Facts that stand under How sure, beside what the answer rests on."""


def answer_page(
    title: str,
    screen: Screen,
    *,
    numbers: Sequence[tuple[str, str, str]] = (),
    picture: Picture | None = None,
    sure: Sequence[tuple[str, str]] = (),
    more: Sequence[Block] = (),
    foot: Sequence[Block] = (),
) -> list[Block]:
    """A report with the same first page in every command, everything else folded behind it.

    The page has the answer, why, how sure, what was measured near it, and warnings. numbers: cards (label,
    value, remark). picture: drawn below the first table. sure: (label, line) of what the answer rests on.
    more: blocks of the details, behind the rest of the screen. foot: blocks that end the page.
    """

    def of(labels: Sequence[str], *, detail: bool = False) -> tuple[tuple[str, str], ...]:
        return tuple(
            (fact.label, fact.text)
            for fact in screen.facts
            if fact.label in labels and (detail or not fact.detail)
        )

    warned, hidden = screen.warnings[:_MOST_WARNINGS], len(screen.warnings[_MOST_WARNINGS:])
    warned += (f"{hidden} more below, under Details.",) if hidden else ()
    parts: dict[str, Block] = {}
    for heading, lines in (
        ("Why", of(_WHY)), ("How sure", (*sure, *of(_SURE))), ("Measured near it", of(LABELS_OF["measured"]))
    ):  # fmt: skip
        parts |= {heading: Labelled(lines)} if lines else {}
    parts |= {"Warnings": Bullets(warned)} if warned else {}
    blocks: list[Block] = [Heading(title, level=1), *(Text(line, "lead") for line in screen.answer)]
    blocks += [Text(screen.asked, "soft"), *([Cards(tuple(numbers))] if numbers else []), *screen.tables[:1]]
    blocks += [] if picture is None else [picture]
    for heading, part in parts.items():
        blocks += [Heading(heading, level=3), part]
    shown = {fact.label for fact in screen.facts if not fact.detail} & {*_WHY, *_SURE, *LABELS_OF["measured"]}
    rest = of([label for label in LABELS if label != "Next" and label not in shown], detail=True)
    return [*blocks, *foot, Appendix("Details", (*_details(screen, rest), *more))]


def _details(screen: Screen, facts: tuple[tuple[str, str], ...]) -> list[Block]:
    """What a screen has beside the first page. facts: those that are not on it."""
    blocks: list[Block] = [*screen.tables[1:]]
    blocks += [Labelled(facts)] if facts else []
    blocks += screen.details
    if screen.code[1]:
        blocks += [Heading(screen.code[0].rstrip(":"), level=3), Code(screen.code[1])]
    if len(screen.warnings) > _MOST_WARNINGS:
        blocks += [Heading("Every flag", level=3), Bullets(screen.warnings)]
    return blocks


def screen_blocks(screen: Screen) -> tuple[list[Block], list[Block]]:
    """(the answer, what was asked and its tables; then facts, lines to copy and warnings) of a screen."""
    first: list[Block] = [Text(line, "lead") for line in screen.answer]
    first += [Text(screen.asked, "soft"), *screen.tables]
    then: list[Block] = []
    told = [fact for fact in screen.facts if fact.label != "Next"]  # of the command, not of the answer
    if told:
        then.append(Labelled(tuple((fact.label, fact.text) for fact in told)))
    then += screen.details
    if screen.code[1]:
        then += [Heading(screen.code[0].rstrip(":"), level=3), Code(screen.code[1])]
    if screen.warnings:
        then += [Heading("Warnings", level=3), Bullets(screen.warnings)]
    return first, then


def html_page(title: str, blocks: Sequence[Block]) -> str:
    """One HTML file that needs nothing else: styles and vector plots stand inside."""
    import jinja2

    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, finalize=_finalized
    )
    environment.filters |= {"code": _inline, "svg": _svg, "slim": _slim, "named": _named}
    return environment.get_template("page.html.j2").render(title=title, blocks=blocks)


def markdown_page(blocks: Sequence[Block]) -> str:
    """Markdown; pictures are PNG files beside it, named as in `pictures`."""
    return "\n".join(_markdown(block) for block in blocks)


def write_pages(folder: Path, blocks: Sequence[Block], *, overwrite: bool = False) -> tuple[Path, ...]:
    """Write report.html (all in one file), report.md and its PNG pictures; the paths written.

    The first block is the title. Raises OutputError where the folder cannot be written, or without
    `overwrite` holds other files of these names.
    """
    from medusa_sim.report.figures.files import render
    from medusa_sim.writing import write_folder

    title = blocks[0]
    assert isinstance(title, Heading)  # noqa: S101  # every report begins with one
    drawn = {picture.file: picture.figure for picture in pictures_of(blocks)}
    contents = {
        "report.html": html_page(title.text, blocks).encode("utf-8", "backslashreplace"),
        "report.md": markdown_page(blocks).encode("utf-8", "backslashreplace"),
        **{name: render(figure, ".png") for name, figure in drawn.items()},
    }
    return write_folder(folder, contents, overwrite=overwrite)


def _named(blocks: Sequence[Block]) -> list[tuple[str, Block]]:
    """Blocks behind the names of their kinds, tables as narrow as a page."""
    fitting = (block.within(_PAGE_WIDTH) if isinstance(block, TextTable) else block for block in blocks)
    return [(type(block).__name__, block) for block in fitting]


def pictures_of(blocks: Sequence[Block]) -> Iterator[Picture]:
    """Every picture of a report, those of its appendix too."""
    for block in blocks:
        if isinstance(block, Picture):
            yield block
        elif isinstance(block, Appendix):
            yield from pictures_of(block.blocks)


def _finalized(value: object) -> object:
    """A value as a template writes it: text escaped, HTML as it is."""
    from markupsafe import Markup

    return Markup(for_html(value)) if type(value) is str else value  # noqa: S704  # escaped by for_html


def _inline(text: str) -> Markup:
    """Escaped text in which `code` stands out."""
    from markupsafe import Markup

    parts = map(for_html, text.split("`"))
    return Markup(  # noqa: S704  # every part is escaped
        "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))
    )


def _svg(picture: Picture) -> Markup:
    from markupsafe import Markup

    from medusa_sim.report.figures.files import render

    drawn = render(picture.figure, ".svg").decode("utf-8")
    named = f'<svg role="img" aria-label="{for_html(picture.caption)}"'
    return Markup(drawn[drawn.index("<svg") :].replace("<svg", named, 1))  # noqa: S704  # drawn here


def _slim(picture: Picture) -> str:
    """The picture for a phone as an address: names inside an SVG of the page would clash."""
    from base64 import b64encode

    from medusa_sim.report.figures.files import render

    drawn = render(picture.draw(slim=True), ".svg")
    return f"data:image/svg+xml;base64,{b64encode(drawn).decode('ascii')}"


def _markdown(block: Block) -> str:
    match block:
        case Heading(text, level):
            text_of = f"{'#' * level} {for_markdown(text)}\n"
        case Text(text, _):
            text_of = f"{paragraph(text)}\n"
        case Bullets(items):
            text_of = "".join(f"- {paragraph(item)}\n" for item in items)
        case Labelled(items):
            text_of = "".join(f"- **{for_markdown(label)}**: {paragraph(text)}\n" for label, text in items)
        case Code(text):
            text_of = code_block(text)
        case Cards(items):
            cards = (map(for_markdown, item) for item in items)
            text_of = "".join(f"- {label}: **{value}** ({remark})\n" for label, value, remark in cards)
        case Picture():
            text_of = f"![{paragraph(block.caption)}]({block.file})\n"
        case Appendix(summary, inner):
            text_of = f"## {for_markdown(summary)}\n\n{markdown_page(inner)}"
        case Folded(summary, table):
            text_of = f"{paragraph(summary)}\n\n{markdown(table)}"
        case TextTable():
            text_of = markdown(block)
    return text_of
