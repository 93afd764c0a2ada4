"""Blocks of a report rendered as self-contained HTML, or as Markdown with its pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from medusa_sim.outside.escaping import code_block, for_html, for_markdown, paragraph
from medusa_sim.report.blocks import (
    Appendix,
    Block,
    Bullets,
    Code,
    Folded,
    Heading,
    Labelled,
    Picture,
    Text,
    pictures_of,
)
from medusa_sim.report.table import TextTable, markdown

if TYPE_CHECKING:
    from markupsafe import Markup

_PAGE_WIDTH = 122
"""Characters of a table that fit a page of full width."""


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
    """Markdown; pictures are PNG files in the same folder, named as in `pictures`."""
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
    """Blocks by the names of their kinds, tables as narrow as a page."""
    fitting = (block.narrowed(_PAGE_WIDTH) if isinstance(block, TextTable) else block for block in blocks)
    return [(type(block).__name__, block) for block in fitting]


def _finalized(value: object) -> object:
    """A value as a template writes it: text escaped, HTML unchanged."""
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
        case Picture():
            text_of = f"![{paragraph(block.caption)}]({block.file})\n"
        case Appendix(summary, inner):
            text_of = f"## {for_markdown(summary)}\n\n{markdown_page(inner)}"
        case Folded(summary, table):
            text_of = f"{paragraph(summary)}\n\n{markdown(table)}"
        case TextTable():
            text_of = markdown(block)
    return text_of
