"""Tables of CSV and Parquet files, read in parts within limits of rows, columns and the length of texts."""

from __future__ import annotations

import csv
import io
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medusa_sim.errors import DataError, shown
from medusa_sim.outside.limits import SPEC_BYTES, TABLE_BYTES, TABLE_COLUMNS, TABLE_ROWS
from medusa_sim.reading.files import named, opened, read_text

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


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


def _check_columns(path: Path, columns: Sequence[str], given: Sequence[str], wanted: str) -> None:
    """Raises DataError where any of the columns is not among those given."""
    if missing := [column for column in columns if column not in given]:
        has = shown(", ".join(given))
        raise DataError(f"{named(path)}: columns missing: {', '.join(missing)} (it has: {has}); {wanted}")


def numbered_csv_table(path: Path, columns: Sequence[str], text: Sequence[str] = ()) -> pd.DataFrame:
    """The table with each row's line of the file as its index, counted as `csv_lines` does.

    text: columns that stay text. Raises DataError, naming the file and what a good one has.
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
