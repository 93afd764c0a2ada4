"""Arrow tables as CSV, JSON, Markdown and Parquet, chunk by chunk, in full precision (Markdown rounds)."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO

from medusa_sim import __version__
from medusa_sim.errors import DataError
from medusa_sim.outside.escaping import for_csv
from medusa_sim.report.table import TextTable, markdown

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

_CSV_ROWS = 65_536


def csv_parts(tables: Iterable[pa.Table]) -> Iterator[bytes]:
    """CSV with one header; empty cells for missing values, shortest digits that read back exactly."""
    import pyarrow as pa

    for number, table in enumerate(tables):
        if number == 0:
            yield _csv_bytes(pa.table({str(i): [for_csv(name)] for i, name in enumerate(table.column_names)}))
        written = _no_formulas(table)
        for start in range(0, written.num_rows, _CSV_ROWS):
            yield _csv_bytes(written.slice(start, _CSV_ROWS))


def _no_formulas(table: pa.Table) -> pa.Table:
    """The table with its texts as cells of a CSV; a text that stands in many rows is looked at once."""
    import pyarrow as pa

    for place, column in enumerate(table.columns):
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            coded = column.combine_chunks().dictionary_encode()
            texts = coded.dictionary.to_pylist()
            written = list(map(for_csv, texts))
            if written != texts:
                escaped = pa.DictionaryArray.from_arrays(coded.indices, pa.array(written, column.type))
                table = table.set_column(place, table.column_names[place], escaped.cast(column.type))
    return table


def _csv_bytes(table: pa.Table) -> bytes:
    import pyarrow as pa
    from pyarrow import csv

    # Arrow's "needed" quotes every text; bare text is what people and cut(1) expect.
    for style in ("none", "needed"):
        buffer = io.BytesIO()
        try:
            csv.write_csv(table, buffer, csv.WriteOptions(include_header=False, quoting_style=style))
        except pa.ArrowInvalid:
            if style == "needed":
                raise
            continue
        return buffer.getvalue()
    return b""


def json_parts(tables: Iterable[pa.Table], command: str, kind: str, more: dict[str, Any]) -> Iterator[bytes]:
    """One JSON object: schema, version, command, what `more` holds, then the rows.

    Missing values and NaN are null. Keys are the columns' names with their units.
    """
    head = {"schema": f"medusa-sim/{kind}/1", "version": __version__, "command": command, **more}
    yield json.dumps(head, indent=1, allow_nan=False)[:-2].encode() + b',\n "rows": ['
    separator = b"\n  "
    for table in tables:
        for start in range(0, table.num_rows, _CSV_ROWS):
            for row in table.slice(start, _CSV_ROWS).to_pylist():
                yield separator + json.dumps({k: json_value(v) for k, v in row.items()}).encode()
                separator = b",\n  "
    yield b"\n ]\n}\n"


def json_value(value: Any) -> Any:
    """A value for JSON: nan and infinity become null."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def json_row(row: Mapping[Any, Any]) -> dict[str, Any]:
    """A row of Python's own numbers, by name."""
    return {str(name): json_value(getattr(value, "item", lambda v=value: v)()) for name, value in row.items()}


def markdown_parts(tables: Iterable[pa.Table]) -> Iterator[bytes]:
    """A Markdown table with rounded cells."""
    for number, table in enumerate(tables):
        text = markdown(TextTable.rounded(table.to_pydict()))
        yield (text if number == 0 else text.split("\n", 2)[2]).encode()


def arrow_chunks(frames: Iterable[pd.DataFrame]) -> Iterator[pa.Table]:
    """Parts of one table as Arrow tables, all with the types of the first.

    Raises DataError where a column has other types further on.
    """
    import pyarrow as pa

    schema = None
    for frame in frames:
        try:
            table = pa.Table.from_pandas(frame, schema=schema, preserve_index=False)
        except pa.ArrowException as error:
            raise DataError(
                f"a column does not keep its type: {' '.join(str(error).split())[:200]}"
            ) from error
        schema = table.schema
        yield table


def write_parquet(tables: Iterable[pa.Table], file: BinaryIO) -> None:
    """Parquet, a row group a chunk. An empty iterable writes nothing."""
    from pyarrow import parquet

    writer = None
    try:
        for table in tables:
            if writer is None:
                writer = parquet.ParquetWriter(file, table.schema)
            writer.write_table(table)
    finally:
        if writer is not None:
            writer.close()
