"""Tables as text (plain columns for pipes, rich for a terminal, Markdown) and numbers, rounded with units."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from medusa_sim.outside.escaping import for_markdown, printable
from medusa_sim.units import GIGA, KILO, MEGA, TERA, US_PER_MS, US_PER_S

NOTHING = "-"
"""What an empty cell shows."""

_PREFIXES = ((1e15, "P"), (TERA, "T"), (GIGA, "G"), (MEGA, "M"), (KILO, "k"))


def significant(value: float, digits: int = 4) -> str:
    """`digits` significant digits without an exponent where that is readable: 0.0123, 1.234, 12,340."""
    if not math.isfinite(value):
        return NOTHING if math.isnan(value) else str(value)
    if value == 0.0:
        return "0"
    magnitude = math.floor(math.log10(abs(value)))
    if magnitude >= 12 or magnitude < -5:
        return f"{value:.{digits - 1}e}"
    decimals = max(digits - 1 - magnitude, 0)
    return f"{value:,.{decimals}f}"


def span(first: int, last: int) -> str:
    """`1..8`, or `8` alone."""
    return str(first) if first == last else f"{first}..{last}"


def drafts_text(candidates: int) -> str:
    """A chain of so many candidates in the word of engines: `3 drafts` (num_speculative_tokens) of 4."""
    return {1: "no drafts", 2: "1 draft"}.get(candidates, f"{candidates - 1} drafts")


def duration(time_us: float) -> str:
    """Microseconds as us, ms or s: `812 us`, `14.2 ms`."""
    if not math.isfinite(time_us):
        return NOTHING
    if abs(time_us) >= US_PER_S:
        return f"{significant(time_us / US_PER_S, 3)} s"
    if abs(time_us) >= US_PER_MS:
        return f"{significant(time_us / US_PER_MS, 3)} ms"
    return f"{significant(time_us, 3)} us"


def with_prefix(value: float, unit: str, digits: int = 3) -> str:
    """A quantity with a decimal prefix: 8.5e10 B -> `85.0 GB`, 3.12e14 FLOP/s -> `312 TFLOP/s`."""
    if not math.isfinite(value):
        return NOTHING
    for factor, prefix in _PREFIXES:
        if abs(value) >= factor:
            return f"{significant(value / factor, digits)} {prefix}{unit}"
    return f"{significant(value, digits)} {unit}"


def capitalised(line: str) -> str:
    """The line as a sentence begins; a name with figures (sglang-0.5) keeps its case."""
    word = line.split(" ", 1)[0]
    return line if any(map(str.isdigit, word)) else f"{line[:1].upper()}{line[1:]}"


def percent(fraction: float, digits: int = 1) -> str:
    """A fraction as per cent: 0.0123 -> `1.2 %`."""
    return NOTHING if math.isnan(fraction) else f"{100.0 * fraction:.{digits}f} %"


def times(value: float) -> str:
    """A speedup: `2.31x`."""
    return NOTHING if math.isnan(value) else f"{value:.2f}x"


def times_between(low: float, high: float) -> str:
    """Speedups from the lowest to the highest: `1.21-1.91x`, or `2.31x` alone."""
    return times(high) if f"{low:.2f}" == f"{high:.2f}" else f"{low:.2f}-{times(high)}"


def cell(column: str, value: object) -> str:
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


_Row = TypeVar("_Row")

_LONG_TEXT = 40
"""A column of words wider than this may run over several lines at a terminal."""
_NARROWEST = 18
"""Characters that such a column keeps."""


_NARROWEST = 16
"""Characters that a column of words keeps."""


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
        widths, kept = self.widths, list(range(len(self.headers)))
        for name in self.expendable:
            if sum(widths[i] for i in kept) + between * (len(kept) - 1) <= width:
                break
            kept = [i for i in kept if self.headers[i] != name]
        return replace(
            self,
            headers=tuple(self.headers[i] for i in kept),
            rows=tuple(tuple(row[i] for i in kept) for row in self.rows),
            right=tuple(self.right[i] for i in kept),
        )

    def folded(self, width: int, between: int = 2) -> TextTable:
        """The table with its longest words broken over lines, so that none is wider where that can be.

        between: as `within`.
        """
        table = self
        for _ in self.headers:
            over = sum(table.widths) + between * (len(table.headers) - 1) - width
            words = [i for i, right in enumerate(table.right) if i and not right]  # a row's name stays whole
            if over <= 0 or not words:
                break
            longest = max(words, key=lambda i: table.widths[i])
            table = table._broken(longest, max(table.widths[longest] - over, _NARROWEST))
        return table

    def _broken(self, column: int, width: int) -> TextTable:
        """The cells of one column over as many lines as they take."""
        rows: list[tuple[str, ...]] = []
        for row in self.rows:
            lines = textwrap.wrap(row[column], width, break_on_hyphens=False) or [""]
            rows.append((*row[:column], lines[0], *row[column + 1 :]))
            before, after = ("",) * column, ("",) * (len(row) - column - 1)
            rows += [(*before, line, *after) for line in lines[1:]]
        return replace(self, rows=tuple(rows))

    def written(self, write: Callable[[str], str]) -> TextTable:
        """The table with every text as a target has it."""
        return replace(
            self,
            headers=tuple(map(write, self.headers)),
            rows=tuple(tuple(map(write, row)) for row in self.rows),
            title=write(self.title),
        )

    @classmethod
    def by_row(
        cls,
        rows: Iterable[_Row],
        columns: Mapping[str, Callable[[_Row], str]],
        *,
        words: Sequence[str] = (),
        title: str = "",
        expendable: tuple[str, ...] = (),
    ) -> TextTable:
        """A line for each of `rows`. columns: header -> the cell of a row; words: headers of left columns."""
        return cls(
            headers=tuple(columns),
            rows=tuple(tuple(shown(row) for shown in columns.values()) for row in rows),
            right=tuple(name not in words for name in columns),
            title=title,
            expendable=expendable,
        )

    @classmethod
    def of(
        cls, table: Mapping[str, Sequence[Any]], title: str = "", *, fold_constants: bool = False
    ) -> TextTable:
        """Rounded cells of columns, under their names.

        fold_constants: words that are the same in every row stand once, in the title.
        """
        columns = dict(table)
        if fold_constants and len(next(iter(columns.values()), ())) > 1:
            same = {
                name: values[0]
                for name, values in columns.items()
                if isinstance(values[0], str) and all(value == values[0] for value in values)
            }
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


def plain(table: TextTable) -> str:
    """Aligned columns, two spaces apart, nothing cut however wide they are."""
    table = table.written(printable)
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
    """A Markdown table."""
    table = table.written(for_markdown)

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cells) + " |"

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

    table = table.written(printable).within(width - 2, between=3)
    shortest = [
        size if right or size <= _LONG_TEXT else _NARROWEST
        for size, right in zip(table.widths, table.right, strict=True)
    ]
    # three characters between columns, one at each side
    if sum(shortest) + 3 * (len(shortest) - 1) + 2 > width:
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
