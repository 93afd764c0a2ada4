"""Files read within limits: the only place of the package where files are opened to be read.

Every reader has a limit of `medusa_sim.outside.limits`, which holds while it reads: a device, a pipe or a
file given by mistake ends in one line and not in the machine's memory. What a command reads is noted, so that
its result cannot replace it.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import os
import re
import stat
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from medusa_sim.errors import DataError, MedusaSimError, OutputError, SpecError, shown
from medusa_sim.outside.limits import (
    DEEPEST,
    LINE_CHARACTERS,
    SPEC_BYTES,
    TABLE_BYTES,
    TABLE_COLUMNS,
    TABLE_ROWS,
)

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class _Files:
    """Files of one command by device and inode, so that links and other spellings are the same file."""

    inputs: set[tuple[int, int]] = field(default_factory=set)
    outputs: set[tuple[int, int]] = field(default_factory=set)


_commands: list[_Files] = []
"""The command that runs, if any, is the last."""


@contextlib.contextmanager
def one_command() -> Iterator[None]:
    """Within this context, refuse to write to any file that the command has read."""
    _commands.append(_Files())
    try:
        yield
    finally:
        _commands.pop()


def as_input(path: Path | str, seen: os.stat_result | None = None) -> None:
    """Note a file that is read; every reader here does. Raises OutputError where it is the output."""
    if _commands and (identity := _identity(path, seen)) is not None:
        _commands[-1].inputs.add(identity)
        _check_apart(path, identity)


def as_output(path: Path | str) -> None:
    """Note where the user wants a result. Raises OutputError where the command read that very file."""
    if _commands and (identity := _identity(path)) is not None:
        _commands[-1].outputs.add(identity)
        _check_apart(path, identity)


def _check_apart(path: Path | str, identity: tuple[int, int]) -> None:
    if identity in _commands[-1].inputs & _commands[-1].outputs:
        raise OutputError(
            f"{named(path)} is read by this command, and the result would replace it; write to another file"
        )


def _identity(path: Path | str, seen: os.stat_result | None = None) -> tuple[int, int] | None:
    """Device and inode of a regular file; None for what is not there, which is no file twice."""
    try:
        seen = seen or Path(path).stat()
    except (OSError, ValueError):
        return None
    return (seen.st_dev, seen.st_ino) if stat.S_ISREG(seen.st_mode) else None


class FileState(NamedTuple):
    """A file at one moment: the key under which what was read from it may be cached."""

    path: Path
    mtime_ns: int
    size: int


def file_state(path: Path) -> FileState:
    """State of a file. Raises SpecError where it cannot be seen."""
    try:
        seen = path.stat()
    except OSError as error:
        raise _unreadable(path, error, SpecError) from error
    as_input(path, seen)
    return FileState(path, seen.st_mtime_ns, seen.st_size)


_HELD = Path("/dev/null/uploaded")
"""The folder of files that are in memory alone: nothing can lie below a device."""
_held: ContextVar[tuple[Path, bytes] | None] = ContextVar("held", default=None)


@contextlib.contextmanager
def held(name: str, content: bytes) -> Iterator[Path]:
    """A path from which every reader here takes `content`, without a file; messages have its name alone."""
    path = _HELD / (Path(name).name[-80:] or "given.txt")
    token = _held.set((path, content))
    try:
        yield path
    finally:
        _held.reset(token)


def _held_at(path: Path) -> bytes | None:
    """The content of a path of `held`; None for any other."""
    found = _held.get()
    return found[1] if found is not None and found[0] == path else None


def read_bytes(path: Path, limit_bytes: int, what: str, error: type[MedusaSimError] = SpecError) -> bytes:
    """Content of a file of at most `limit_bytes`; `what` says in messages what the file should be.

    Raises `error` for a folder, a device, a pipe, more bytes, or what the system refuses.
    """
    if (content := _held_at(path)) is not None:
        return _within(path, content, limit_bytes, what, error)
    try:
        # Without O_NONBLOCK the opening of a pipe waits for a writer.
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with os.fdopen(handle, "rb") as file:
            seen = os.fstat(handle)
            if not stat.S_ISREG(seen.st_mode):
                raise error(f"{named(path)}: is no regular file; give {what}")
            as_input(path, seen)
            content = file.read(limit_bytes + 1)
    except IsADirectoryError:
        raise error(f"{named(path)}: is a folder; give {what}") from None
    except FileNotFoundError:
        raise error(f"{named(path)}: no such file; give {what}") from None
    except OSError as refused:
        raise _unreadable(path, refused, error) from refused
    return _within(path, content, limit_bytes, what, error)


def _within(path: Path, content: bytes, limit_bytes: int, what: str, error: type[MedusaSimError]) -> bytes:
    if len(content) > limit_bytes:
        raise error(f"{named(path)}: more than {limit_bytes:,} bytes, the most that is read; give {what}")
    return content


def check_regular(path: Path, what: str) -> None:
    """Refuse what is no regular file, before a library opens it. Raises DataError."""
    if _held_at(path) is not None:
        return
    try:
        if path.is_file():
            as_input(path)
            return
    except OSError as refused:
        raise _unreadable(path, refused, DataError) from refused
    read_bytes(path, 0, what, DataError)  # says what it is instead


def read_text(path: Path, limit_bytes: int, what: str, error: type[MedusaSimError] = SpecError) -> str:
    """UTF-8 text of a file (a byte order mark is left out), read as `read_bytes` does; same errors."""
    try:
        return read_bytes(path, limit_bytes, what, error).decode("utf-8-sig")
    except UnicodeDecodeError as wrong:
        raise error(f"{named(path)}: byte {wrong.start} is not UTF-8 text; save the file as UTF-8") from wrong


def read_toml(
    path: Path, what: str = "a TOML file", error: type[MedusaSimError] = SpecError
) -> dict[str, Any]:
    """Tables of a TOML file. Raises `error` for a syntax error, a key given twice, or tables too deep."""
    import tomli  # compiled: a hardware file of 300 kB in half of tomllib's time

    text = read_text(path, SPEC_BYTES, what, error)
    content: dict[str, Any] = parsed(path, what, error, tomli.loads, text)
    return content


def read_json(
    path: Path,
    limit_bytes: int,
    what: str,
    error: type[MedusaSimError] = SpecError,
    *,
    finite: bool = True,
) -> Any:
    """Content of a JSON file. Raises `error` also for a key given twice, NaN and Infinity.

    finite: False reads the latter two as null: publishers of models write them where no size depends on it,
    SGLang's benchmark as the request rate of a closed loop.
    """
    return json_of(read_text(path, limit_bytes, what, error), path, what, error, finite=finite)


def json_of(
    text: str,
    where: Path | str,
    what: str,
    error: type[MedusaSimError] = SpecError,
    *,
    finite: bool = True,
) -> Any:
    """Content of JSON text, with the checks of `read_json`; `where` names it in messages."""
    return parsed(where, what, error, _decoder(where, error, finite=finite), text)


def _decoder(where: Path | str, error: type[MedusaSimError], *, finite: bool) -> Callable[[str], Any]:
    """What reads JSON text, keys given twice refused."""

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        table = dict(pairs)
        if len(table) < len(pairs):
            seen: set[str] = set()
            for key, _ in pairs:
                if key in seen:
                    raise error(f"{named(where)}: {shown(key)} is given twice; keep one")
                seen.add(key)
        return table

    def constant(word: str) -> None:
        if not finite:
            return
        raise error(f"{named(where)}: holds {word}, which is no JSON number; write a finite number")

    return json.JSONDecoder(object_pairs_hook=unique, parse_constant=constant).decode


def json_documents(
    text: str,
    where: Path | str,
    what: str,
    error: type[MedusaSimError] = SpecError,
    *,
    finite: bool = True,
) -> list[Any]:
    """The JSON document in `text`, or one a line (JSON lines); checked and refused as `json_of` does."""
    try:
        return [json_of(text, where, what, error, finite=finite)]
    except error:
        lines = lines_of(text)
        if next(lines, None) is None or next(lines, None) is None:
            raise
    decode = _decoder(where, error, finite=finite)
    return [parsed(where, what, error, decode, line) for line in lines_of(text)]


_LINE = re.compile(r"[^\r\n]+")


def lines_of(text: str) -> Iterator[str]:
    """Lines of a text that hold more than blanks, one after another."""
    return (line for match in _LINE.finditer(text) if not (line := match[0]).isspace())


def short_lines_of(text: str) -> Iterator[str]:
    """Lines of a log or page; those of more than LINE_CHARACTERS hold no counter."""
    return (line for line in lines_of(text) if len(line) <= LINE_CHARACTERS)


def parsed(
    where: Path | str, what: str, error: type[MedusaSimError], parse: Callable[[str], Any], text: str
) -> Any:
    """What `parse` makes of a text, no deeper than DEEPEST. Raises `error` in one line where it fails."""
    try:
        content = parse(text)
    except RecursionError:
        raise error(f"{named(where)}: lists or tables are nested too deep; give {what}") from None
    except ValueError as wrong:  # JSONDecodeError, TOMLDecodeError, integers of more than 4,300 digits
        reason = " ".join(str(wrong).split())
        raise error(f"{named(where)}: cannot be parsed: {reason[:200]}; give {what}") from wrong
    level = [content]
    for _ in range(DEEPEST):
        level = [
            child
            for entry in level
            if isinstance(entry, dict | list)
            for child in (entry.values() if isinstance(entry, dict) else entry)
        ]
        if not level:
            return content
    raise error(f"{named(where)}: lists or tables are nested more than {DEEPEST} deep; give {what}")


def first_not_finite(value: object, key: str = "") -> str | None:
    """Dotted key of the first nan or infinity in a file's content, or None."""
    if isinstance(value, float):
        return None if math.isfinite(value) else key
    children = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for name, child in children:
        if isinstance(child, dict | list) or (isinstance(child, float) and not math.isfinite(child)):
            dot = "." if key else ""
            place = f"{key}{dot}{name}" if isinstance(value, dict) else f"{key}[{name}]"
            if (place_of := first_not_finite(child, place)) is not None:
                return place_of
    return None


def csv_chunks(path: Path, rows: int, **options: Any) -> Iterator[pd.DataFrame]:
    """The table of a CSV file, `rows` at a time. `options` go to pandas' reader (dtype, comment).

    Raises DataError for what is no table, when its place in the file is reached.
    """
    import pandas as pd

    wanted = "a CSV table"
    try:
        check_regular(path, wanted)
        content = _held_at(path)
        # A line without an end, as in a device or a binary file, would be read whole.
        with path.open("rb") if content is None else io.BytesIO(content) as file:
            head = file.read(SPEC_BYTES)
        lines = head.split(b"\n")
        if len(head) == SPEC_BYTES and len(lines) == 1:
            raise DataError(f"{named(path)}: its first line has no end; give {wanted}")
        separator = str(options.get("sep", ",")).encode()
        if max(line.count(separator) for line in lines) >= TABLE_COLUMNS:
            raise DataError(f"{named(path)}: more than {TABLE_COLUMNS:,} columns; give {wanted}")
        # Without index_col=False the first field of rows that are longer than the header is their index, and
        # every column its neighbour.
        source = path if content is None else io.BytesIO(content)
        with pd.read_csv(source, chunksize=rows, index_col=False, **options) as reader:
            while True:
                with warnings.catch_warnings():  # where fields would be lost
                    warnings.simplefilter("error", pd.errors.ParserWarning)
                    chunk = next(reader, None)
                if chunk is None:
                    break
                yield chunk
    except pd.errors.ParserWarning:
        raise DataError(f"{named(path)}: rows have more fields than the header; name every column") from None
    except OSError as error:
        raise _unreadable(path, error, DataError) from error
    except (ValueError, pd.errors.ParserError, pd.errors.EmptyDataError, MemoryError) as error:
        reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        raise DataError(f"{named(path)}: cannot be read ({reason}); give {wanted}") from error


def csv_lines(path: Path, what: str) -> Iterator[tuple[int, list[str]]]:
    """(number from 1, cells) of the header and of every row of a CSV file; blank lines and `#` are left out.

    Raises DataError, also for a row that has more or fewer cells than the header.
    """
    reader = csv.reader(io.StringIO(read_text(path, TABLE_BYTES, what, DataError), newline=""))
    columns = 0
    try:
        for number, cells in enumerate(reader, start=1):
            if not cells or cells[0].lstrip().startswith("#"):
                continue
            columns = columns or len(cells)
            if columns > TABLE_COLUMNS:
                raise DataError(f"{named(path)}: more than {TABLE_COLUMNS:,} columns; give {what}")
            if len(cells) != columns:
                raise DataError(f"{named(path)} line {number}: {len(cells)} cells, the header has {columns}")
            yield number, cells
    except csv.Error as error:
        raise DataError(f"{named(path)}: cannot be read ({error}); give {what} in UTF-8") from error


def parquet_parts(path: Path, rows: int, what: str) -> Iterator[pa.Table]:
    """Parts of a Parquet file of at most `rows`; one without any where it is empty.

    Columns of lists or tables are left out. Raises DataError, also for texts that are short in the file and
    long when they are written out.
    """
    import pyarrow as pa
    from pyarrow import parquet

    check_regular(path, what)
    try:
        with parquet.ParquetFile(path) as file:
            schema = file.schema_arrow
            if len(schema.names) > TABLE_COLUMNS:
                raise DataError(f"{named(path)}: more than {TABLE_COLUMNS:,} columns; give {what}")
            kinds = {field.name: field.type for field in schema if not pa.types.is_nested(field.type)}
            names = list(kinds)
            texts = [name for name, kind in kinds.items() if _is_text(kind)]
        # A text once, as the file has it, however often it stands: written out when its length is known.
        with parquet.ParquetFile(path, read_dictionary=texts) as file:
            for batch in file.iter_batches(batch_size=rows, columns=names):
                part = pa.Table.from_batches([batch])
                if sum(_text_bytes(part[name]) for name in texts) > TABLE_BYTES:
                    raise DataError(f"{named(path)}: texts of more than {TABLE_BYTES:,} bytes; give {what}")
                yield part.cast(pa.schema([(name, kinds[name]) for name in names]))
            if file.metadata.num_rows == 0:
                yield schema.empty_table().select(names)
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise DataError(f"{named(path)}: cannot be read as Parquet ({reason}); give {what}") from error


def _is_text(kind: pa.DataType) -> bool:
    from pyarrow import types

    kinds = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    return any(is_kind(kind) for is_kind in kinds)


def _text_bytes(column: pa.ChunkedArray) -> int:
    """Bytes of the texts of a column when each is written out."""
    from pyarrow import compute, types

    total = 0
    for chunk in column.chunks:
        lengths = compute.binary_length(chunk.dictionary if types.is_dictionary(chunk.type) else chunk)
        lengths = lengths.take(chunk.indices) if types.is_dictionary(chunk.type) else lengths
        total += compute.sum(lengths).as_py() or 0
    return total


def read_csv_table(
    path: Path, columns: Sequence[str], *, limit_rows: int = TABLE_ROWS, **options: Any
) -> pd.DataFrame:
    """The table, with at least `columns` and one row. `options` go to pandas' reader (dtype, comment).

    Raises DataError, naming the file and what a good one has.
    """
    import pandas as pd

    wanted = f"give a CSV with columns {', '.join(columns)}"
    chunks: list[pd.DataFrame] = []
    held = 0
    for chunk in csv_chunks(path, 20_000, **options):
        chunk.columns = chunk.columns.astype(str).str.strip()
        if missing := [column for column in columns if column not in chunk]:
            given = ", ".join(map(str, chunk.columns))[:80]
            raise DataError(
                f"{named(path)}: columns missing: {', '.join(missing)} (it has: {given}); {wanted}"
            )
        held += len(chunk)
        if held > limit_rows:
            raise DataError(f"{named(path)}: more than {limit_rows:,} rows; {wanted} and fewer rows")
        chunks.append(chunk)
    if not held:
        raise DataError(f"{named(path)}: no rows below the header; {wanted}")
    return pd.concat(chunks)


def named(path: Path | str) -> str:
    """A path as an error names it: whole, unless it is absurdly long; of what is held in memory the name."""
    text = str(path).removeprefix(f"{_HELD}{os.sep}")
    return text if len(text) <= 300 else shown(text)


def _unreadable(path: Path, refused: OSError, error: type[MedusaSimError]) -> MedusaSimError:
    reason = refused.strerror or str(refused)
    return error(f"{named(path)}: cannot be read ({reason}); check the path and its permissions")
