"""A report as a list of blocks, rendered as self-contained HTML or as Markdown with pictures beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from medusa_sim.report.text import TextTable, markdown

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading of level 1 to 3; `page`: it begins a page where the report is printed."""

    text: str
    level: int = 2
    page: bool = False


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph: the answer stands out as `lead`, what it is said of and with stands back as `soft`."""

    text: str
    tone: Literal["", "lead", "soft"] = ""


@dataclass(frozen=True, slots=True)
class Bullets:
    """A list of sentences."""

    items: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Code:
    """Lines to be copied as they are."""

    text: str


@dataclass(frozen=True, slots=True)
class Cards:
    """The numbers that matter: (label, value, remark)."""

    items: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True)
class Picture:
    """A figure with the name of its file and a caption that says what it shows.

    draw: makes it, with `slim=True` as a telephone shows it.
    """

    draw: Callable[..., Figure]
    name: str
    caption: str

    @cached_property
    def figure(self) -> Figure:
        """As a page of full width shows it."""
        return self.draw()


@dataclass(frozen=True, slots=True)
class Folded:
    """A table that is opened on demand."""

    summary: str
    table: TextTable


_PAGE_WIDTH = 122
"""Characters of a table that a page of full width shows without scrolling."""
Block: TypeAlias = Heading | Text | Bullets | Code | Cards | Picture | Folded | TextTable


def html_page(title: str, blocks: Sequence[Block]) -> str:
    """One HTML file that needs nothing else: styles and vector plots stand inside."""
    import jinja2

    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    environment.filters |= {"code": _inline, "svg": _svg, "slim": _slim}
    fitting = (block.within(_PAGE_WIDTH) if isinstance(block, TextTable) else block for block in blocks)
    named = [(type(block).__name__, block) for block in fitting]
    return environment.get_template("page.html.j2").render(title=title, blocks=named)


def markdown_page(blocks: Sequence[Block]) -> str:
    """Markdown; pictures are PNG files beside it, named as in `pictures`."""
    return "\n".join(_markdown(block) for block in blocks)


def write_pages(folder: Path, blocks: Sequence[Block], *, overwrite: bool = False) -> tuple[Path, ...]:
    """Write report.html (all in one file), report.md and its PNG pictures; the paths written.

    The first block is the title. Raises OutputError where the folder cannot be written, or without
    `overwrite` holds other files of these names.
    """
    from medusa_sim.report.figures import render
    from medusa_sim.writing import write_folder

    title = blocks[0]
    assert isinstance(title, Heading)  # noqa: S101  # every report begins with one
    drawn = {f"{block.name}.png": block.figure for block in blocks if isinstance(block, Picture)}
    contents = {
        "report.html": html_page(title.text, blocks).encode("utf-8", "backslashreplace"),
        "report.md": markdown_page(blocks).encode("utf-8", "backslashreplace"),
        **{name: render(figure, ".png") for name, figure in drawn.items()},
    }
    return write_folder(folder, contents, overwrite=overwrite)


def _inline(text: str) -> Markup:
    """Escaped text in which `code` stands out."""
    from markupsafe import Markup, escape

    parts = (escape(part) for part in text.split("`"))
    return Markup("").join(  # every part is escaped
        Markup("<code>{}</code>").format(part) if i % 2 else part for i, part in enumerate(parts)
    )


def _svg(picture: Picture) -> Markup:
    from markupsafe import Markup, escape

    from medusa_sim.report.figures import render

    drawn = render(picture.figure, ".svg").decode("utf-8")
    named = f'<svg role="img" aria-label="{escape(picture.caption)}"'
    return Markup(drawn[drawn.index("<svg") :].replace("<svg", named, 1))  # noqa: S704  # drawn here


def _slim(picture: Picture) -> str:
    """The address of what a telephone shows: an image of its own, as names inside an SVG hold for a page."""
    from base64 import b64encode

    from medusa_sim.report.figures import render

    drawn = render(picture.draw(slim=True), ".svg")
    return f"data:image/svg+xml;base64,{b64encode(drawn).decode('ascii')}"


def _markdown(block: Block) -> str:
    match block:
        case Heading(text, level):
            text_of = f"{'#' * level} {text}\n"
        case Text(text, _):
            text_of = f"{text}\n"
        case Bullets(items):
            text_of = "".join(f"- {item}\n" for item in items)
        case Code(text):
            text_of = f"```\n{text.rstrip()}\n```\n"
        case Cards(items):
            text_of = "".join(f"- {label}: **{value}** ({remark})\n" for label, value, remark in items)
        case Picture(_, name, caption):
            text_of = f"![{caption}]({name}.png)\n"
        case Folded(summary, table):
            text_of = f"{summary}\n\n{markdown(table)}"
        case TextTable():
            text_of = markdown(block)
    return text_of
