"""Sections of pages under docs/ that scripts write: from `<!-- NAME: COMMAND -->` to `<!-- end NAME -->`.

A script writes a section whole, from its page in templates/, or its tables alone: what stands between them is
then written by hand.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from medusa_sim.writing import write_text

DOCS = Path(__file__).resolve().parents[2] / "docs"


def filled(name: str, **values: object) -> str:
    """The page templates/NAME.md with its `{...}` filled as `str.format` does."""
    text = (Path(__file__).parents[1] / "templates" / f"{name}.md").read_text(encoding="utf-8")
    return text.format(**values)


def read_section(page: str, name: str) -> str:
    """The text of a section of docs/`page`. Raises ValueError where the page has no such section."""
    text, start, end = _found(page, name)
    return text[start:end]


def write_section(page: str, name: str, content: str) -> None:
    """Put `content`, a page with a title of its own, into a section of docs/`page`, a level down."""
    text, start, end = _found(page, name)
    write_text(DOCS / page, text[:start] + as_section(content) + text[end:])


def write_tables(page: str, name: str, tables: Sequence[str]) -> None:
    """Put Markdown tables in the place of a section's own. Raises ValueError where their number differs."""
    text, start, end = _found(page, name)
    before, *after = re.split(r"(?m)(?:^\|.*(?:\n|\Z))+", text[start:end])
    written = "".join(table + rest for table, rest in zip(tables, after, strict=True))
    write_text(DOCS / page, text[:start] + before + written + text[end:])


def as_section(content: str) -> str:
    """A page as a section of another one."""
    return re.sub(r"(?m)^(#+ )", r"#\1", content).strip("\n") + "\n"


def _found(page: str, name: str) -> tuple[str, int, int]:
    """The page, and where its section begins and ends."""
    text = (DOCS / page).read_text(encoding="utf-8")
    found = re.search(rf"(?s)<!-- {name}: [^\n]* -->\n\n(.*?)\n<!-- end {name} -->", text)
    if found is None:
        raise ValueError(f"docs/{page} has no section `{name}`; write `<!-- {name}: COMMAND -->` and its end")
    return text, *found.span(1)
