"""CSV files of structs, a column a field: the rows that `measure` writes and reads."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

import msgspec

from medusa_sim.errors import DataError, shown
from medusa_sim.reading.strict import convert
from medusa_sim.reading.tables import csv_lines
from medusa_sim.writing import write_text

RowT = TypeVar("RowT", bound=msgspec.Struct)


def write_structs(path: Path, form: type[RowT], rows: Iterable[RowT]) -> None:
    """Replace the table; None is blank, floats have six significant digits. Raises OutputError."""
    text = io.StringIO()
    cells = ([_text(value) for value in msgspec.structs.astuple(row)] for row in rows)
    csv.writer(text, lineterminator="\n").writerows((form.__struct_fields__, *cells))
    write_text(path, text.getvalue())


def read_structs(path: Path, form: type[RowT], what: str) -> list[RowT]:
    """Its rows. what: says of what they are. Raises DataError naming file, row and column."""
    (_, columns), *lines = [*csv_lines(path, what)] or [(0, [])]
    if tuple(columns) != form.__struct_fields__:
        raise DataError(
            f"{path}: columns {shown(', '.join(columns))} were not written by `measure`, which writes the "
            f"columns {', '.join(form.__struct_fields__)}; choose another file"
        )
    return [
        convert(
            {name: _value(text) for name, text in zip(columns, cells, strict=True)},
            form,
            f"{path}, row {number}",
            error=DataError,
        )
        for number, (_, cells) in enumerate(lines, 1)
    ]


def _text(value: object) -> object:
    return f"{value:.6g}" if isinstance(value, float) else value


def _value(text: str) -> str | int | float | None:
    """The number that a cell holds; its text where it holds none, None where it is blank."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text or None
