"""Tables of draft-model shapes: what `acceptance predict` reads."""

from __future__ import annotations

import csv
from pathlib import Path

from medusa_sim.acceptance.predict import parsed_shape
from medusa_sim.errors import DataError


def _rows(path: Path, needed: tuple[str, ...]) -> list[tuple[int, dict[str, str]]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, restval="", restkey="(extra)")
            columns = [name.strip() for name in reader.fieldnames or []]
            reader.fieldnames = columns
            rows = [(reader.line_num, row) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read ({error}); give a CSV file in UTF-8") from error
    if missing := [name for name in needed if name not in columns]:
        raise DataError(f"{path}: columns missing: {', '.join(missing)}; expected {', '.join(needed)}")
    if not rows:
        raise DataError(f"{path}: no rows below the header")
    for line, row in rows:
        if "(extra)" in row:
            raise DataError(f"{path} line {line}: more cells than the header has columns")
    return rows


def _shape_cells(path: Path, line: int, row: dict[str, str]) -> tuple[str, str]:
    decoder, spec = row["decoder"].strip(), row["spec"].strip()
    try:
        parsed_shape(decoder, spec)
    except DataError as error:
        raise DataError(f"{path} line {line}: {error}") from error
    return decoder, spec


def read_targets(path: Path) -> list[tuple[str, str]]:
    """(decoder, spec) of every row; other columns are left alone.

    Raises:
        DataError: a file that cannot be read, missing columns, no rows, or a malformed shape.
    """
    return [_shape_cells(path, line, row) for line, row in _rows(path, ("decoder", "spec"))]


def read_observations(path: Path) -> list[tuple[str, str, float]]:
    """(decoder, spec, block_efficiency) of every row.

    Raises:
        DataError: as `read_targets`, or a block efficiency that is no number.
    """
    observations = []
    for line, row in _rows(path, ("decoder", "spec", "block_efficiency")):
        decoder, spec = _shape_cells(path, line, row)
        try:
            observations.append((decoder, spec, float(row["block_efficiency"])))
        except ValueError:
            raise DataError(
                f"{path} line {line}: block_efficiency {row['block_efficiency']!r} is not a number"
            ) from None
    return observations
