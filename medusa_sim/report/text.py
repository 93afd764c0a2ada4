"""Tables as text: plain columns for pipes, rich ones for a terminal, Markdown for documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from medusa_sim.report.numbers import cell, is_number

if TYPE_CHECKING:
    import pyarrow as pa

_LONG_TEXT = 40
"""A column of words wider than this may run over several lines at a terminal."""
_NARROWEST = 18
"""Characters that such a column keeps."""


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

    def within(self, width: int, between: int = 2) -> TextTable:
        """The table without as many of its expendable columns as it takes to fit.

        between: characters that separate two columns.
        """
        table = self
        for name in self.expendable:
            if sum(table.widths) + between * (len(table.widths) - 1) <= width:
                break
            table = table.without(name)
        return table

    def without(self, name: str) -> TextTable:
        """The table without the columns of that name."""
        kept = [i for i, header in enumerate(self.headers) if header != name]
        return replace(
            self,
            headers=tuple(self.headers[i] for i in kept),
            rows=tuple(tuple(row[i] for i in kept) for row in self.rows),
            right=tuple(self.right[i] for i in kept),
        )

    @classmethod
    def of(cls, table: pa.Table, title: str = "", *, fold_constants: bool = False) -> TextTable:
        """Rounded cells of an Arrow table, under the names of its columns.

        fold_constants: words that are the same in every row stand once, in the title.
        """
        columns = {name: table.column(name).to_pylist() for name in table.column_names}
        if fold_constants and table.num_rows > 1:
            same = {name: values[0] for name, values in columns.items() if _is_one_word(values)}
            columns = {name: values for name, values in columns.items() if name not in same}
            title = "  ".join(
                [*([title] if title else []), *(f"{name}={value}" for name, value in same.items())]
            )
        cells = [[cell(name, value) for value in values] for name, values in columns.items()]
        return cls(
            headers=tuple(columns),
            rows=tuple(zip(*cells, strict=True)),
            right=tuple(is_number(values) for values in columns.values()),
            title=title,
        )


def _is_one_word(values: Sequence[object]) -> bool:
    return isinstance(values[0], str) and all(value == values[0] for value in values)


def plain(table: TextTable) -> str:
    """Aligned columns, two spaces apart, nothing cut however wide they are."""
    widths = table.widths

    def line(cells: Sequence[str]) -> str:
        padded = [
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(cells, widths, table.right, strict=True)
        ]
        return "  ".join(padded).rstrip()

    rule = "  ".join("-" * width for width in widths)
    head = [table.title] if table.title else []
    return "\n".join([*head, line(table.headers), rule, *map(line, table.rows)]) + "\n"


def markdown(table: TextTable) -> str:
    """A Markdown table; bars in cells are escaped."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(text.replace("|", "\\|") for text in cells) + " |"

    rule = "| " + " | ".join("---:" if right else "---" for right in table.right) + " |"
    head = [f"**{table.title}**", ""] if table.title else []
    return "\n".join([*head, line(table.headers), rule, *map(line, table.rows)]) + "\n"


def on_terminal(table: TextTable, width: int) -> str | None:
    """The table drawn by rich in `width` characters, or None where it would have to cut cells.

    Expendable columns go first; then a column of long text may run over several lines.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = table.within(width - 2, between=3)
    shortest = [
        size if right or size <= _LONG_TEXT else _NARROWEST
        for size, right in zip(table.widths, table.right, strict=True)
    ]
    if _rich_width(shortest) > width:
        return None
    drawn = Table(box=box.SIMPLE_HEAD, title=table.title or None, title_justify="left", pad_edge=False)
    for header, right, size in zip(table.headers, table.right, table.widths, strict=True):
        fixed = right or size <= _LONG_TEXT
        drawn.add_column(
            header,
            justify="right" if right else "left",
            no_wrap=fixed,
            min_width=size if fixed else None,
            overflow="ellipsis" if fixed else "fold",  # an address keeps its end
        )
    for row in table.rows:
        drawn.add_row(*row)
    console = Console(width=width, force_terminal=True)
    with console.capture() as captured:
        console.print(drawn, markup=False, highlight=False)
    return captured.get()


def _rich_width(widths: Sequence[int]) -> int:
    """Characters of a rich table without outer padding: three between columns, one at each side."""
    return sum(widths) + 3 * (len(widths) - 1) + 2
