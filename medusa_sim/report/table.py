"""Tables: cells that are text already, drawn as aligned columns or as Markdown."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from medusa_sim.outside.escaping import for_markdown, printable
from medusa_sim.report.words.numbers import NOTHING, significant, with_prefix
from medusa_sim.units import KILO

BETWEEN = 2
"""Characters between two columns."""
_NARROWEST = 16
"""Characters that a column of words keeps."""
_FOLDED = 40
"""Characters of a column of words beyond which it is folded before another column is left out."""


def cell_text(column: str, value: object) -> str:
    """One cell of a table for people; `column` names the quantity and thereby its unit."""
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        if column.endswith("_bytes") and abs(value) >= KILO:
            return with_prefix(value, "B")
        return significant(value)
    return " ".join(str(value).split())


def is_number(values: Sequence[object]) -> bool:
    """Whether a column holds numbers and nothing else (None and booleans apart)."""
    return all(isinstance(v, int | float) for v in values if v is not None) and any(
        v is not None and not isinstance(v, bool) for v in values
    )


@dataclass(frozen=True, slots=True)
class TextTable:
    """Cells that are text already, with the headers of their columns; numbers stand right.

    expendable: columns that a narrow terminal may leave out, the first to go first.
    """

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: tuple[bool, ...]
    title: str = ""
    expendable: tuple[str, ...] = ()

    @property
    def widths(self) -> list[int]:
        """Characters that each column takes."""
        return [max(map(len, column)) for column in zip(self.headers, *self.rows, strict=True)]

    def narrowed(self, width: int) -> TextTable:
        """The table without as many of its expendable columns as it takes to fit, once words are folded."""
        widths, kept = self.widths, list(range(len(self.headers)))
        for place in self._foldable:
            widths[place] = min(widths[place], _FOLDED)
        for name in self.expendable:
            if sum(widths[i] for i in kept) + BETWEEN * (len(kept) - 1) <= width:
                break
            kept = [i for i in kept if self.headers[i] != name]
        return replace(
            self,
            headers=tuple(self.headers[i] for i in kept),
            rows=tuple(tuple(row[i] for i in kept) for row in self.rows),
            right=tuple(self.right[i] for i in kept),
        )

    @property
    def _foldable(self) -> list[int]:
        """Places of columns of words, which may run over lines; a row's name stays whole."""
        return [place for place, right in enumerate(self.right) if place and not right]

    def folded(self, width: int) -> TextTable:
        """The table with columns of words broken over lines, the widest first, so that it fits if it can."""
        widths = self.widths
        over = sum(widths) + BETWEEN * (len(widths) - 1) - width
        while over > 0 and self._foldable:
            widest = max(self._foldable, key=lambda i: widths[i])
            if widths[widest] <= _NARROWEST:
                break
            widths[widest] -= 1
            over -= 1
        lines = (
            [_lines(cell, most) if i in self._foldable else [cell] for i, (cell, most) in enumerate(cells)]
            for cells in (tuple(zip(row, widths, strict=True)) for row in self.rows)
        )
        rows = (line for cells in lines for line in zip_longest(*cells, fillvalue=""))
        return replace(self, rows=tuple(rows))

    def fitted(self, width: int) -> TextTable:
        """The table in `width` characters where that can be: columns are left out, then words folded."""
        return self.narrowed(width).folded(width)

    def escaped(self, escape: Callable[[str], str]) -> TextTable:
        """The table with every text escaped for where it goes."""
        return replace(
            self,
            headers=tuple(map(escape, self.headers)),
            rows=tuple(tuple(map(escape, row)) for row in self.rows),
            title=escape(self.title),
        )

    @classmethod
    def by_column(
        cls,
        columns: Mapping[str, Sequence[str]],
        *,
        words: Sequence[str] = (),
        title: str = "",
        expendable: Sequence[str] = (),
    ) -> TextTable:
        """A table of columns: header -> its cells. words: headers of left columns."""
        return cls(
            headers=tuple(columns),
            rows=tuple(zip(*columns.values(), strict=True)),
            right=tuple(name not in words for name in columns),
            title=title,
            expendable=tuple(expendable),
        )

    @classmethod
    def rounded(
        cls, table: Mapping[str, Sequence[Any]], title: str = "", *, fold_constants: bool = False
    ) -> TextTable:
        """A table of values, rounded, under the names of their columns.

        fold_constants: what is the same in every row stands once, in the title.
        """
        columns = dict(table)
        if fold_constants and len(next(iter(columns.values()), ())) > 1:
            same = {
                name: values[0]
                for name, values in columns.items()
                if len({NOTHING if cell_text(name, value) == NOTHING else value for value in values}) == 1
            }
            columns = {name: values for name, values in columns.items() if name not in same}
            named = {name: cell_text(name, value) for name, value in same.items()}
            named = {name: text for name, text in named.items() if text != NOTHING}
            title = "  ".join(
                [*([title] if title else []), *(f"{name}={text}" for name, text in named.items())]
            )
        return cls.by_column(
            {name: [cell_text(name, value) for value in values] for name, values in columns.items()},
            words=[name for name, values in columns.items() if not is_number(values)],
            title=title,
        )


def _lines(text: str, width: int) -> list[str]:
    """Text in lines of at most `width` characters; a longer word breaks after one of its marks if it can.

    >>> _lines("as host_us_per_request", 12)
    ['as', 'host_us_per_', 'request']
    """
    words: list[str] = []
    for word in text.split():
        rest = word
        while len(rest) > width:
            marks = [place for place, mark in enumerate(rest[:width]) if mark in "_-/.,:"]
            end = marks[-1] + 1 if marks else width
            words.append(rest[:end])
            rest = rest[end:]
        words.append(rest)
    return textwrap.wrap(" ".join(words), width, break_on_hyphens=False) or [""]


def aligned(table: TextTable) -> str:
    """Aligned columns, two spaces apart, nothing cut however wide they are."""
    table = table.escaped(printable)
    widths, between = table.widths, " " * BETWEEN

    def line(cells: Sequence[str]) -> str:
        padded = [
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(cells, widths, table.right, strict=True)
        ]
        return between.join(padded).rstrip()

    rule = between.join("-" * width for width in widths)
    head = [table.title] if table.title else []
    return "\n".join([*head, line(table.headers), rule, *map(line, table.rows)]) + "\n"


def markdown(table: TextTable) -> str:
    """A Markdown table."""
    table = table.escaped(for_markdown)

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cells) + " |"

    rule = "| " + " | ".join("---:" if right else "---" for right in table.right) + " |"
    head = [f"**{table.title}**", ""] if table.title else []
    return "\n".join([*head, line(table.headers), rule, *map(line, table.rows)]) + "\n"
