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
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

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

_inputs: set[str] = set()
_outputs: set[str] = set()
"""Real paths of what the command that runs has read, and of where it will write."""


def new_command() -> None:
    """Forget what was read and will be written: another command begins."""
    _inputs.clear()
    _outputs.clear()


def as_input(path: Path | str) -> None:
    """Note a file that is read; every reader here does. Raises OutputError where it is the output."""
    _note(path, _inputs, _outputs)


def as_output(path: Path | str) -> None:
    """Note where the user wants a result. Raises OutputError where the command read that file."""
    _note(path, _outputs, _inputs)


def as_written(path: Path | str) -> None:
    """Note that a result is in its place: from now on the command may read it."""
    _outputs.discard(os.path.realpath(path))


def _note(path: Path | str, own: set[str], others: set[str]) -> None:
    place = os.path.realpath(path)
    if place in others and Path(place).is_file():
        raise OutputError(
            f"{named(path)} is read by this command, and the result would replace it; write to another file"
        )
    own.add(place)


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
    as_input(path)
    return FileState(path, seen.st_mtime_ns, seen.st_size)


_HELD = Path("/dev/null/uploaded")
"""The folder of files that are only in memory: nothing can lie below a device."""
_held: ContextVar[tuple[Path, bytes] | None] = ContextVar("held", default=None)


@contextlib.contextmanager
def held(name: str, content: bytes) -> Iterator[Path]:
    """A path from which every reader here takes `content`, without a file; messages have only its name."""
    path = _HELD / (Path(name).name[-80:] or "given.txt")
    token = _held.set((path, content))
    try:
        yield path
    finally:
        _held.reset(token)


@contextlib.contextmanager
def opened(path: Path, what: str, error: type[MedusaSimError]) -> Iterator[BinaryIO]:
    """A regular file, open to be read; `what` says in messages what it should be.

    Raises `error` for a folder, a device, a pipe or what the system refuses.
    """
    found = _held.get()
    if found is not None and found[0] == path:
        yield io.BytesIO(found[1])
        return
    if "\0" in str(path):
        raise error(f"{named(path)}: a file's name holds no NUL; give {what}")
    try:
        # Without O_NONBLOCK the opening of a pipe waits for a writer.
        with os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise error(f"{named(path)}: is no regular file; give {what}")
            as_input(path)
            yield file
    except IsADirectoryError:
        raise error(f"{named(path)}: is a folder; give {what}") from None
    except FileNotFoundError:
        raise error(f"{named(path)}: no such file; give {what}") from None
    except OSError as refused:
        raise _unreadable(path, refused, error) from refused


def read_bytes(path: Path, limit_bytes: int, what: str, error: type[MedusaSimError] = SpecError) -> bytes:
    """Content of a file of at most `limit_bytes`. Raises `error` for more and as `opened` does."""
    with opened(path, what, error) as file:
        content = file.read(limit_bytes + 1)
    if len(content) > limit_bytes:
        raise error(f"{named(path)}: more than {limit_bytes:,} bytes, the most that is read; give {what}")
    return content


def read_start(
    path: Path, limit_bytes: int, what: str, error: type[MedusaSimError] = SpecError
) -> tuple[bytes, bool]:
    """The first bytes of a file, and whether they are all of it. Raises `error` as `opened` does."""
    with opened(path, what, error) as file:
        return file.read(limit_bytes), not file.read(1)


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
    return toml_of(read_text(path, SPEC_BYTES, what, error), path, what, error)


def toml_of(
    text: str, where: Path | str, what: str, error: type[MedusaSimError] = SpecError
) -> dict[str, Any]:
    """Tables of TOML text, with the checks of `read_toml`; `where` names it in messages."""
    import tomli  # compiled: a hardware file of 300 kB in half of tomllib's time

    content: dict[str, Any] = parsed(where, what, error, tomli.loads, text)
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
    return parsed(where, what, error, _JSON if finite else _JSON_WITH_NAN, text)


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
    return [json_of(line, where, what, error, finite=finite) for line in lines_of(text)]


def _each_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    table: dict[str, object] = {}
    for key, value in pairs:
        if key in table:
            raise ValueError(f"{shown(key)} is given twice; keep one")
        table[key] = value
    return table


def _not_finite(word: str) -> None:
    raise ValueError(f"holds {word}, which is no JSON number; write a finite number")


_JSON = json.JSONDecoder(object_pairs_hook=_each_once, parse_constant=_not_finite).decode
_JSON_WITH_NAN = json.JSONDecoder(object_pairs_hook=_each_once, parse_constant=lambda _: None).decode


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
    """What `parse` makes of a text: at most DEEPEST deep, numbers finite. Raises `error` in one line."""
    try:
        content = parse(text)
    except RecursionError:
        raise error(f"{named(where)}: lists or tables are nested too deep; give {what}") from None
    except ValueError as wrong:  # JSONDecodeError, TOMLDecodeError, integers of more than 4,300 digits
        if not text.strip():
            raise error(f"{named(where)}: is empty; give {what}") from None
        reason = " ".join(str(wrong).split())
        raise error(f"{named(where)}: cannot be parsed: {reason[:200]}; give {what}") from wrong
    level = [content]
    for _ in range(DEEPEST):
        below: list[Any] = []
        for entry in level:
            if isinstance(entry, dict):
                below += entry.values()
            elif isinstance(entry, list):
                below += entry
            elif isinstance(entry, float) and not math.isfinite(entry):
                key = next(_not_finite_at(content), "")
                raise error(f"{named(where)}:{key}: given nan or infinity; allowed: a finite number")
        if not below:
            return content
        level = below
    raise error(f"{named(where)}: lists or tables are nested more than {DEEPEST} deep; give {what}")


def _not_finite_at(content: object, key: str = " ") -> Iterator[str]:
    """Dotted keys of each nan or infinity."""
    if isinstance(content, float) and not math.isfinite(content):
        yield key
    if isinstance(content, dict):
        for name, child in content.items():
            yield from _not_finite_at(child, f"{key}.{name}".replace(" .", " "))
    if isinstance(content, list):
        for index, child in enumerate(content):
            yield from _not_finite_at(child, f"{key}[{index}]")


def csv_chunks(path: Path, rows: int, **options: Any) -> Iterator[pd.DataFrame]:
    """The table of a CSV file, `rows` at a time. `options` go to pandas' reader (dtype, comment).

    Raises DataError for what is no table, when its place in the file is reached.
    """
    import pandas as pd

    wanted = "a CSV table"
    try:
        with opened(path, wanted, DataError) as file:
            # A line without an end, as in a binary file, would be read whole.
            head = file.read(SPEC_BYTES)
            lines = head.split(b"\n")
            if len(head) == SPEC_BYTES and len(lines) == 1:
                raise DataError(f"{named(path)}: its first line has no end; give {wanted}")
            separator = str(options.get("sep", ",")).encode()
            if max(line.count(separator) for line in lines) >= TABLE_COLUMNS:
                raise DataError(f"{named(path)}: more than {TABLE_COLUMNS:,} columns; give {wanted}")
            file.seek(0)
            # Without index_col=False the first field of rows that are longer than the header is their index,
            # and every column its neighbour.
            reader = pd.read_csv(file, chunksize=rows, index_col=False, **options)
            while True:
                with warnings.catch_warnings():  # where fields would be lost
                    warnings.simplefilter("error", pd.errors.ParserWarning)
                    chunk = next(reader, None)
                if chunk is None:
                    break
                yield chunk
    except pd.errors.ParserWarning:
        raise DataError(f"{named(path)}: rows have more fields than the header; name every column") from None
    except (ValueError, pd.errors.ParserError, pd.errors.EmptyDataError, MemoryError) as error:
        raise DataError(f"{named(path)}: {_unread(error)}; give {wanted}") from error


def _unread(error: Exception) -> str:
    """Why a table cannot be read, in words."""
    import pandas as pd

    if isinstance(error, pd.errors.EmptyDataError):
        return "cannot be read (no columns are in it)"
    if isinstance(error, UnicodeDecodeError):
        return "cannot be read (it is no text in UTF-8)"
    reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
    return f"cannot be read ({reason})"


def read_csv_table(
    path: Path, columns: Sequence[str], *, limit_rows: int = TABLE_ROWS, **options: Any
) -> pd.DataFrame:
    """The table, with at least `columns` and one row. `options` go to pandas' reader (dtype, comment).

    Raises DataError, naming the file and what a good one has.
    """
    import pandas as pd

    wanted = f"give a CSV with columns {', '.join(columns)}"
    chunks: list[pd.DataFrame] = []
    for chunk in csv_chunks(path, 20_000, **options):
        chunk.columns = chunk.columns.astype(str).str.strip()
        _check_columns(path, columns, list(chunk.columns), wanted)
        chunks.append(chunk)
        if sum(map(len, chunks)) > limit_rows:
            raise DataError(f"{named(path)}: more than {limit_rows:,} rows; {wanted} and fewer rows")
    if not any(map(len, chunks)):
        raise DataError(f"{named(path)}: no rows below the header; {wanted}")
    return pd.concat(chunks)


def _check_columns(path: Path, columns: Sequence[str], given: Sequence[str], wanted: str) -> None:
    """Raises DataError where any of the columns is not among those given."""
    if missing := [column for column in columns if column not in given]:
        shown_names = ", ".join(given)[:80]
        raise DataError(
            f"{named(path)}: columns missing: {', '.join(missing)} (it has: {shown_names}); {wanted}"
        )


def numbered_csv_table(path: Path, columns: Sequence[str], text: Sequence[str] = ()) -> pd.DataFrame:
    """The table with each row's line of the file as its index, counted as `csv_lines` does.

    text: columns that stay text. Raises DataError as `read_csv_table`.
    """
    import pandas as pd

    wanted = f"a CSV with columns {', '.join(columns)}"
    lines = [*csv_lines(path, wanted)]
    if not lines:
        raise DataError(f"{named(path)}: cannot be read (it is empty); give {wanted}")
    (_, header), *rows = lines
    names = [name.strip() for name in header]
    _check_columns(path, columns, names, f"give {wanted}")
    if not rows:
        raise DataError(f"{named(path)}: no rows below the header; give {wanted}")
    if len(rows) > TABLE_ROWS:
        raise DataError(f"{named(path)}: more than {TABLE_ROWS:,} rows; give {wanted} and fewer rows")
    text_of_rows = io.StringIO()
    csv.writer(text_of_rows).writerows([names, *(cells for _, cells in rows)])
    text_of_rows.seek(0)
    frame = pd.read_csv(text_of_rows, index_col=False, skip_blank_lines=False, dtype=dict.fromkeys(text, str))
    return frame.set_axis([number for number, _ in rows])


def csv_lines(path: Path, what: str) -> Iterator[tuple[int, list[str]]]:
    """(number from 1, cells) of the header and of every row of a CSV file; blank lines and `#` are left out.

    Raises DataError, also for a row that has more or fewer cells than the header, and a column named twice.
    """
    reader = csv.reader(io.StringIO(read_text(path, TABLE_BYTES, what, DataError), newline=""))
    columns, following = 0, 1
    try:
        for cells in reader:
            number, following = following, reader.line_num + 1  # a quoted cell may go over several lines
            if not cells or cells[0].lstrip().startswith("#"):
                continue
            if not columns:
                columns = len(cells)
                if columns > TABLE_COLUMNS:
                    raise DataError(f"{named(path)}: more than {TABLE_COLUMNS:,} columns; give {what}")
                names = Counter(cell.strip().lower() for cell in cells if cell.strip())
                if twice := [name for name, count in names.items() if count > 1]:
                    raise DataError(f"{named(path)} line {number}: column {shown(twice[0])} stands twice")
            if len(cells) == columns + 1 and not cells[-1].strip():  # a comma at the end of a line
                cells.pop()
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

    try:
        with opened(path, what, DataError) as file:
            schema = parquet.read_schema(file)
            if len(schema.names) > TABLE_COLUMNS:
                raise DataError(f"{named(path)}: more than {TABLE_COLUMNS:,} columns; give {what}")
            kept = pa.schema([field for field in schema if not pa.types.is_nested(field.type)])
            texts = [field.name for field in kept if _is_text(field.type)]
            # A text once, as the file has it, however often it stands: written out when its length is known.
            table = parquet.ParquetFile(file, read_dictionary=texts)
            for batch in table.iter_batches(batch_size=rows, columns=kept.names):
                if sum(_text_bytes(batch[name]) for name in texts) > TABLE_BYTES:
                    raise DataError(f"{named(path)}: texts of more than {TABLE_BYTES:,} bytes; give {what}")
                yield pa.Table.from_batches([batch]).cast(kept)
            if table.metadata.num_rows == 0:
                yield kept.empty_table()
    except (ValueError, KeyError, pa.ArrowException) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise DataError(f"{named(path)}: cannot be read as Parquet ({reason}); give {what}") from error


def _is_text(kind: pa.DataType) -> bool:
    from pyarrow import types

    kinds = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    return any(is_kind(kind) for is_kind in kinds)


def _text_bytes(column: pa.Array) -> int:
    """Bytes of the texts of a column when each is written out."""
    from pyarrow import compute, types

    if types.is_dictionary(column.type):
        lengths = compute.binary_length(column.dictionary).take(column.indices)
    else:
        lengths = compute.binary_length(column)
    return compute.sum(lengths).as_py() or 0


def named(path: Path | str) -> str:
    """A path as an error names it: whole, unless it is absurdly long; of what is held in memory the name."""
    text = str(path).removeprefix(f"{_HELD}{os.sep}")
    return text if len(text) <= 300 else shown(text)


def _unreadable(path: Path, refused: OSError, error: type[MedusaSimError]) -> MedusaSimError:
    reason = refused.strerror or " ".join(str(refused).split())[:200]
    return error(f"{named(path)}: cannot be read ({reason}); check the path and its permissions")
