"""Files read within limits: the only place of the package where files are opened to be read.

Every reader has a limit, which holds while it reads: a device, a pipe or a file given by mistake ends in
one line and not in the machine's memory. What a command reads is noted, so that its result cannot replace it.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import stat
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from medusa_sim.errors import DataError, MedusaSimError, OutputError, SpecError, shown

if TYPE_CHECKING:
    import pandas as pd

SPEC_BYTES = 1_000_000
"""The largest specification: hardware files with their kernels have some 20 kB."""
TABLE_BYTES = 64_000_000
"""The largest table that is held in memory as a whole."""
TABLE_ROWS = 200_000
DEEPEST = 40
"""Tables within tables that a TOML or JSON file may have; specifications have six levels."""


@dataclass(frozen=True, slots=True)
class _Files:
    """Files of one command by device and inode, so that links and other spellings are the same file."""

    inputs: set[tuple[int, int]] = field(default_factory=set)
    outputs: set[tuple[int, int]] = field(default_factory=set)


_commands: list[_Files] = []
"""The command that runs, if any, is the last."""


@contextlib.contextmanager
def one_command() -> Iterator[None]:
    """Inside, a file that is read is no place for the result, whichever is told first."""
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


def read_bytes(path: Path, limit_bytes: int, what: str, error: type[MedusaSimError] = SpecError) -> bytes:
    """Content of a file of at most `limit_bytes`; `what` says in messages what the file should be.

    Raises `error` for a folder, a device, a pipe, more bytes, or what the system refuses.
    """
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
    if len(content) > limit_bytes:
        raise error(f"{named(path)}: more than {limit_bytes:,} bytes, the most that is read; give {what}")
    return content


def check_regular(path: Path, what: str) -> None:
    """Refuse what is no regular file, before a library opens it. Raises DataError."""
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
    content: dict[str, Any] = parsed(path, what, error, lambda: tomli.loads(text))
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

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        table = dict(pairs)
        if len(table) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise error(f"{named(where)}: {shown(twice)} is given twice; keep one")
        return table

    def constant(word: str) -> None:
        if not finite:
            return
        raise error(f"{named(where)}: holds {word}, which is no JSON number; write a finite number")

    return parsed(
        where,
        what,
        error,
        lambda: json.loads(text, object_pairs_hook=unique, parse_constant=constant),
    )


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
        lines = [line for line in text.splitlines() if line.strip()]
        if len(lines) < 2:
            raise
    return [json_of(line, where, what, error, finite=finite) for line in lines]


def parsed(where: Path | str, what: str, error: type[MedusaSimError], parse: Callable[[], Any]) -> Any:
    """What `parse` returns, no deeper than DEEPEST. Raises `error` in one line where it fails."""
    try:
        content = parse()
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
        # A line without an end, as in a device or a binary file, would be read whole.
        with path.open("rb") as file:
            if len(file.readline(SPEC_BYTES)) == SPEC_BYTES:
                raise DataError(f"{named(path)}: its first line has no end; give {wanted}")
        # Without index_col=False the first field of rows that are longer than the header is their index, and
        # every column its neighbour.
        with pd.read_csv(path, chunksize=rows, index_col=False, **options) as reader:
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
    """A path as an error names it: whole, unless it is absurdly long."""
    text = str(path)
    return text if len(text) <= 300 else shown(text)


def _unreadable(path: Path, refused: OSError, error: type[MedusaSimError]) -> MedusaSimError:
    reason = refused.strerror or str(refused)
    return error(f"{named(path)}: cannot be read ({reason}); check the path and its permissions")
