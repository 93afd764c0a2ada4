"""A report as a list of blocks, rendered as self-contained HTML or as Markdown with pictures beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, TypeAlias

from medusa_sim.report.text import TextTable, markdown

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading of level 1 to 3."""

    text: str
    level: int = 2


@dataclass(frozen=True, slots=True)
class Text:
    """A paragraph; `lead` ones stand out."""

    text: str
    lead: bool = False


@dataclass(frozen=True, slots=True)
class Bullets:
    """A list of sentences."""

    items: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Cards:
    """The numbers that matter: (label, value, remark)."""

    items: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure with the name of its file and a caption that says what it shows."""

    figure: Figure
    name: str
    caption: str


@dataclass(frozen=True, slots=True)
class Folded:
    """A table that is opened on demand."""

    summary: str
    table: TextTable


Block: TypeAlias = Heading | Text | Bullets | Cards | Picture | Folded | TextTable

_CSS = """
:root { --ink: #1b1b1b; --soft: #5b6470; --line: #d9dee5; --accent: #00429d; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1080px; padding: 32px 24px 64px; color: var(--ink); background: #fff;
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
h1 { font-size: 26px; line-height: 1.25; margin: 0 0 4px; }
h2 { font-size: 19px; margin: 36px 0 8px; padding-top: 12px; border-top: 1px solid var(--line); }
h3 { font-size: 16px; margin: 24px 0 6px; }
p { margin: 6px 0 10px; }
p.lead { color: var(--soft); }
ul { padding-left: 20px; margin: 6px 0 12px; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(180px, 1fr));
  gap: 12px; margin: 16px 0; }
.card { border: 1px solid var(--line); border-left: 4px solid var(--accent);
  border-radius: 6px; padding: 10px 14px; }
.card .label { color: var(--soft); font-size: 13px; }
.card .value { font-size: 22px; font-weight: 650; line-height: 1.3; }
.card .remark { color: var(--soft); font-size: 13px; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; margin: 8px 0 12px; }
caption { text-align: left; font-weight: 600; padding: 4px 0; }
th, td { padding: 4px 8px; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
th { border-bottom: 2px solid var(--ink); vertical-align: bottom; }
td.n, th.n { text-align: right; white-space: nowrap; }
tbody tr:nth-child(even) { background: #f6f8fa; }
figure { margin: 12px 0 20px; }
figure svg { max-width: 100%; height: auto; }
figcaption { color: var(--soft); font-size: 13px; }
details { margin: 8px 0; } summary { cursor: pointer; color: var(--accent); }
code { font: 13px ui-monospace, "DejaVu Sans Mono", monospace; background: #f6f8fa; padding: 1px 4px; }
@media print { details { display: block; } h2 { break-after: avoid; } figure { break-inside: avoid; } }
"""


def html_page(title: str, blocks: Sequence[Block]) -> str:
    """One HTML file that needs nothing else: styles and vector plots stand inside."""
    body = "\n".join(_html(block) for block in blocks)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_CSS}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def markdown_page(blocks: Sequence[Block]) -> str:
    """Markdown; pictures are PNG files beside it, named as in `pictures`."""
    return "\n".join(_markdown(block) for block in blocks)


def pictures(blocks: Sequence[Block]) -> dict[str, Figure]:
    """File name -> figure of every picture."""
    return {f"{block.name}.png": block.figure for block in blocks if isinstance(block, Picture)}


def _html(block: Block) -> str:
    match block:
        case Heading(text, level):
            found = f"<h{level}>{escape(text)}</h{level}>"
        case Text(text, lead):
            kind = ' class="lead"' if lead else ""
            found = f"<p{kind}>{_inline(text)}</p>"
        case Bullets(items):
            found = "<ul>" + "".join(f"<li>{_inline(item)}</li>" for item in items) + "</ul>"
        case Cards(items):
            found = '<div class="cards">' + "".join(_card(*item) for item in items) + "</div>"
        case Picture(figure, _, caption):
            found = f"<figure>{_svg(figure, caption)}<figcaption>{_inline(caption)}</figcaption></figure>"
        case Folded(summary, table):
            found = f"<details><summary>{escape(summary)}</summary>{_html_table(table)}</details>"
        case TextTable():
            found = _html_table(block)
    return found


def _card(label: str, value: str, remark: str) -> str:
    return (
        f'<div class="card"><div class="label">{escape(label)}</div><div class="value">{escape(value)}</div>'
        f'<div class="remark">{escape(remark)}</div></div>'
    )


def _inline(text: str) -> str:
    """Escaped text in which `code` stands out."""
    parts = escape(text, quote=False).split("`")
    return "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))


def _svg(figure: Figure, caption: str) -> str:
    from medusa_sim.report.figures import rendered

    drawn = rendered(figure, ".svg").decode("utf-8")
    picture = drawn[drawn.index("<svg") :]
    return picture.replace("<svg", f'<svg role="img" aria-label="{escape(caption)}"', 1)


def _html_table(table: TextTable) -> str:
    kinds = [' class="n"' if right else "" for right in table.right]
    head = "".join(f"<th{kind}>{escape(text)}</th>" for kind, text in zip(kinds, table.headers, strict=True))
    rows = "".join(
        "<tr>"
        + "".join(f"<td{kind}>{escape(cell)}</td>" for kind, cell in zip(kinds, row, strict=True))
        + "</tr>"
        for row in table.rows
    )
    caption = f"<caption>{escape(table.title)}</caption>" if table.title else ""
    return (
        f'<div class="wide"><table>{caption}<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    )


def _markdown(block: Block) -> str:
    match block:
        case Heading(text, level):
            found = f"{'#' * level} {text}\n"
        case Text(text, _):
            found = f"{text}\n"
        case Bullets(items):
            found = "".join(f"- {item}\n" for item in items)
        case Cards(items):
            found = "".join(f"- {label}: **{value}** ({remark})\n" for label, value, remark in items)
        case Picture(_, name, caption):
            found = f"![{caption}]({name}.png)\n"
        case Folded(summary, table):
            found = f"{summary}\n\n{markdown(table)}"
        case TextTable():
            found = markdown(block)
    return found
