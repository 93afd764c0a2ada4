"""Where a command's result goes: stdout or a file, in the form that was asked for."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from medusa_sim.cli import say
from medusa_sim.errors import UsageError, shown
from medusa_sim.outside.escaping import for_terminal
from medusa_sim.scenario.declare import FLAG, PATH, Declared, argument

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from medusa_sim.report.blocks import Block
    from medusa_sim.report.screen import Screen
    from medusa_sim.report.table import TextTable


FORMATS = ("table", "csv", "json", "md", "parquet")
TABLE_ROWS = 200_000
"""The longest table that is laid out for people, which takes all of it in memory."""
_SUFFIXES = {".csv": "csv", ".json": "json", ".md": "md", ".parquet": "parquet", ".txt": "table"}


@dataclass(frozen=True, slots=True)
class Output:
    """Form and place of a result; `path` None is stdout.

    is_wide: tables keep every column. is_verbose: an answer for people tells all that it knows.
    """

    form: str
    path: Path | None
    is_wide: bool = False
    is_verbose: bool = False

    @classmethod
    def of(
        cls, form: str | None, path: Path | None, *, is_wide: bool = False, is_verbose: bool = False
    ) -> Output:
        """Checked at once, before anything is computed; the path `-` is stdout.

        Raises UsageError (parquet to stdout, a suffix that says nothing without `form`) or OutputError (a
        path that cannot be written).
        """
        if path is not None:
            from medusa_sim.writing import STDOUT, check_writable

            check_writable(path)
            path = None if path == STDOUT else path
        if form is None:
            form = "table" if path is None else _form_of(path)
        if path is None and form == "parquet":
            raise UsageError("--format parquet is binary and needs a file; add -o FILE.parquet")
        return cls(form, path, is_wide, is_verbose)

    @property
    def on_terminal(self) -> bool:
        """Whether the result is read by a person at a terminal."""
        return self.path is None and sys.stdout.isatty()

    def rows(
        self,
        tables: pa.Table | pd.DataFrame | Iterable[pa.Table],
        kind: str,
        expendable: Sequence[str] = (),
        **more: Any,
    ) -> None:
        """Write a table of rows (or its chunks as they come) in the chosen form.

        `kind` names the JSON schema; `more` are further top-level keys of the JSON. expendable: columns that
        a narrow table for people leaves out first, before those that stand last.
        """
        from medusa_sim.report import formats
        from medusa_sim.report.table import TextTable

        chunks = _chunks(tables)
        match self.form:
            case "csv":
                self._write(lambda file: file.writelines(formats.csv_parts(chunks)))
            case "json":
                parts = formats.json_parts(chunks, command_line(), kind, more)
                self._write(lambda file: file.writelines(parts))
            case "md":
                self._write(lambda file: file.writelines(formats.markdown_parts(chunks)))
            case "parquet":
                self._write(lambda file: formats.write_parquet(chunks, file))
            case _:
                table = TextTable.rounded(_whole(chunks).to_pydict(), fold_constants=True)
                others = [name for name in table.headers[1:] if name not in expendable]
                narrow = replace(table, expendable=(*expendable, *reversed(others)))
                if not self.is_wide:
                    narrow = narrow.narrowed(self.columns)
                self.table(narrow)
                if left_out := [name for name in table.headers if name not in narrow.headers]:
                    say(f"left out for room: {', '.join(left_out)}; --wide or --format csv has them")

    @property
    def columns(self) -> int:
        """Characters of a line: $COLUMNS, else the terminal's width; WIDTH in a file or a pipe."""
        import shutil

        from medusa_sim.report.screen import WIDTH

        is_told = self.on_terminal or (self.path is None and "COLUMNS" in os.environ)
        return shutil.get_terminal_size((WIDTH, 0)).columns if is_told else WIDTH

    def screen(self, screen: Screen) -> None:
        """Write an answer for people, as text or Markdown."""
        self.screens([screen])

    def screens(self, screens: Sequence[Screen]) -> None:
        """Write several answers, one below the other."""
        self.text("\n".join(map(self.told, screens)))

    def told(self, screen: Screen) -> str:
        """An answer as `screen` would write it."""
        if self.form == "md":
            from medusa_sim.report.screen_blocks import screen_markdown

            return screen_markdown(screen)
        from medusa_sim.report.screen import WIDTH, screen_text

        table_width = None if self.is_wide else self.columns
        return screen_text(screen, min(self.columns, WIDTH), table_width, verbose=self.is_verbose)

    def table(self, table: TextTable) -> None:
        """Write a table of ready cells: aligned columns, or Markdown."""
        self._encoded(self.drawn(table))

    def drawn(self, table: TextTable) -> str:
        """The table as `table` would write it: as wide as a line where it has columns to spare."""
        from medusa_sim.report.screen import drawn_table
        from medusa_sim.report.table import markdown

        if self.form == "md":
            return markdown(table)
        return drawn_table(table, None if self.is_wide else self.columns)

    def text(self, text: str) -> None:
        """Write text in UTF-8, or in the characters that the terminal can show."""
        self._encoded(for_terminal(text) if self.on_terminal else text)

    def _encoded(self, text: str) -> None:
        encoding = sys.stdout.encoding if self.on_terminal else "utf-8"
        self._write(lambda file: file.write(text.encode(encoding, "backslashreplace")))

    def _write(self, fill: Callable[[BinaryIO], object]) -> None:
        if self.path is None:
            fill(sys.stdout.buffer)
            sys.stdout.buffer.flush()
            return
        from medusa_sim.writing import atomic

        with atomic(self.path) as file:
            fill(file)
        say(f"wrote {self.path}")


@dataclass(frozen=True, kw_only=True)
class ReportPlace(Declared):
    """The folder of a report, checked at once; None: none is written. Raises UsageError or OutputError."""

    folder: Path | None = argument(
        None, PATH, "Also write report.html and report.md with plots into this folder.", option="--report"
    )
    overwrite: bool = argument(False, FLAG, "Replace existing files that another command wrote.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.folder is not None:
            from medusa_sim.writing import check_folder

            check_folder(self.folder, ("report.html", "report.md"), overwrite=self.overwrite)
        elif self.overwrite:
            raise UsageError("--overwrite is about files of --report DIR; give it, or leave both out")

    def write(self, blocks: Sequence[Block]) -> None:
        """Write a report, and say where."""
        from medusa_sim.report.document import write_pages

        assert self.folder is not None  # noqa: S101  # callers ask for a report
        for path in write_pages(self.folder, blocks, overwrite=self.overwrite):
            say(f"wrote {path}")


def _form_of(path: Path) -> str:
    """The form that a path's suffix names. Raises UsageError where it names none."""
    if path.suffix.lower() in _SUFFIXES:
        return _SUFFIXES[path.suffix.lower()]
    if path.exists() and not path.is_file():  # a device or a pipe
        return "table"
    raise UsageError(
        f"cannot tell the form of -o {shown(str(path))} from its suffix (known: {', '.join(_SUFFIXES)}); "
        f"use one of these or add --format {'|'.join(FORMATS)}"
    )


def _whole(chunks: Iterable[pa.Table]) -> pa.Table:
    """All chunks as one table for people. Raises UsageError where nobody could read it."""
    import pyarrow as pa

    held: list[pa.Table] = []
    rows = 0
    for chunk in chunks:
        held.append(chunk)
        rows += chunk.num_rows
        if rows > TABLE_ROWS:
            raise UsageError(
                f"a table of more than {TABLE_ROWS:,} rows; choose --format csv, json or parquet"
            )
    return pa.concat_tables(held)


def _chunks(tables: Any) -> Iterator[pa.Table]:
    """Arrow tables from a table, a frame or chunks; the first is fetched now, so that errors come first."""
    import pyarrow as pa

    if isinstance(tables, pa.Table):
        return iter([tables])
    if hasattr(tables, "iterrows"):
        return iter([pa.Table.from_pandas(tables, preserve_index=False)])
    chunks = iter(tables)
    return chain([next(chunks)], chunks)


def command_line() -> str:
    """The command as it was typed, for records."""
    context = click.get_current_context(silent=True)
    given = context.find_root().obj if context is not None else None
    return shlex.join(["medusa-sim", *(given if isinstance(given, tuple) else ())])
