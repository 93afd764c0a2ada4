"""Whole generations of a trained decoder on disk: `runs.csv` beside the steps of the same device.

    <folder>/runs.csv              one row a model, batch, number of candidates and pass
    <folder>/<model>/config.json   sizes of the model

Nothing here needs torch: `validate` reads it.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from medusa_sim.errors import DataError, shown
from medusa_sim.reading import TABLE_BYTES, read_text
from medusa_sim.writing import write_text

RUNS = "runs.csv"
_WORDS = ("model", "dtype", "acceptance")
_NUMBERS = ("step_us", "tokens_per_step")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """One cell in one pass (`decoder.run_grid.RunCell`). acceptance: the profile that predicts its tokens.

    The profile's prompts are others than the run's.
    """

    model: str
    dtype: str
    acceptance: str
    batch: int
    candidates: int
    depth: int
    seq_len: int
    repetition: int
    steps: int
    step_us: float
    tokens_per_step: float


COLUMNS = tuple(field.name for field in fields(RunRow))


def write_runs(folder: Path, rows: Sequence[RunRow]) -> None:
    """Replace the file. Raises OutputError."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        values = (getattr(row, name) for name in COLUMNS)
        writer.writerow([f"{value:.6g}" if isinstance(value, float) else value for value in values])
    write_text(folder / RUNS, text.getvalue())


def read_runs(folder: Path) -> list[RunRow]:
    """Rows. Raises DataError naming file, row and column."""
    path = folder / RUNS
    reader = csv.DictReader(
        io.StringIO(read_text(path, TABLE_BYTES, "measured runs of `benchmarks/decoder_runs.py`", DataError))
    )
    if tuple(reader.fieldnames or ()) != COLUMNS:
        raise DataError(f"{path}: columns {', '.join(COLUMNS)} are needed, in this order")
    rows = [_row(record, f"{path}, row {number}") for number, record in enumerate(reader, 1)]
    if not rows:
        raise DataError(f"{path}: no rows below the header; measure again")
    return rows


def _row(record: dict[str, str], where: str) -> RunRow:
    values: dict[str, str | int | float] = {}
    for name, text in record.items():
        try:
            if name in _WORDS:
                values[name] = text
            else:
                values[name] = float(text) if name in _NUMBERS else int(text)
        except (TypeError, ValueError):
            raise DataError(f"{where}, column {name}: given {shown(text)}; a number is needed") from None
    row = RunRow(**values)  # type: ignore[arg-type]  # the names are those of the class: checked above
    if not (row.step_us > 0.0 and row.candidates >= 1 and row.batch >= 1 and row.tokens_per_step >= 1.0):
        raise DataError(f"{where}: times above 0, sizes and tokens per step from 1 are needed")
    return row
