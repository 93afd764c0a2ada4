"""Measured steps of the decoder on disk: `steps.csv`, `meta.toml`, and the config of every model.

    <folder>/steps.csv             one row a model, batch, number of candidates and pass
    <folder>/meta.toml             the environment
    <folder>/<model>/config.json   sizes of the model, as Hugging Face writes them

Nothing here needs torch: `validate` reads it.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta as Limit

from medusa_sim.errors import DataError, shown
from medusa_sim.measure.record import read_toml_struct, toml_text
from medusa_sim.reading import TABLE_BYTES, read_text
from medusa_sim.specs.measurement import META, Environment
from medusa_sim.specs.strict import Schema, Text
from medusa_sim.writing import write_text

STEPS = "steps.csv"
_WORDS = ("model", "dtype")
_TIMES = ("time_us", "p10_us", "p90_us", "tokens_per_step")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """One cell in one pass. candidates 1 is the decoding step; depth: heads that draft.

    tokens_per_step: what the tree emits under the acceptance profile of the meta data, so that a best
    count can be told; 1 for decoding.
    """

    model: str
    dtype: str
    batch: int
    seq_len: int
    candidates: int
    depth: int
    repetition: int
    time_us: float
    p10_us: float
    p90_us: float
    repeats: int
    tokens_per_step: float


COLUMNS = tuple(field.name for field in fields(StepRow))


class StepMeta(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the steps were measured. launched: `eager` or `cuda-graph`. acceptance: the profile of the trees.

    copy_bytes_per_s: memory traffic of a copy (read and written) in the same run.
    """

    schema: Schema
    title: Text
    launched: Literal["eager", "cuda-graph"]
    acceptance: Text
    accepted_draft_tokens: Annotated[int, Limit(ge=0, le=1_000)]
    copy_bytes_per_s: Annotated[float, Limit(gt=0.0, le=1e15, description="bytes/s")]
    environment: Environment


def write_steps(folder: Path, meta: StepMeta, rows: Sequence[StepRow]) -> None:
    """Replace both files. Raises OutputError."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        values = (getattr(row, name) for name in COLUMNS)
        writer.writerow([f"{value:.6g}" if isinstance(value, float) else value for value in values])
    write_text(folder / STEPS, text.getvalue())
    write_text(folder / META, toml_text(meta))


def read_steps(folder: Path) -> tuple[StepMeta, list[StepRow]]:
    """Meta data and rows. Raises DataError naming file, row and column."""
    path = folder / STEPS
    meta = read_toml_struct(folder / META, StepMeta)
    reader = csv.DictReader(
        io.StringIO(
            read_text(path, TABLE_BYTES, "measured steps of `benchmarks/decoder_steps.py`", DataError)
        )
    )
    if tuple(reader.fieldnames or ()) != COLUMNS:
        raise DataError(f"{path}: columns {', '.join(COLUMNS)} are needed, in this order")
    rows = [_row(record, f"{path}, row {number}") for number, record in enumerate(reader, 1)]
    if not rows:
        raise DataError(f"{path}: no rows below the header; measure again")
    return meta, rows


def _row(record: dict[str, str], where: str) -> StepRow:
    values: dict[str, str | int | float] = {}
    for name, text in record.items():
        try:
            if name in _WORDS:
                values[name] = text
            else:
                values[name] = float(text) if name in _TIMES else int(text)
        except (TypeError, ValueError):
            raise DataError(f"{where}, column {name}: given {shown(text)}; a number is needed") from None
    row = StepRow(**values)  # type: ignore[arg-type]  # the names are those of the class: checked above
    if not (row.time_us > 0.0 and row.candidates >= 1 and row.batch >= 1 and row.tokens_per_step >= 1.0):
        raise DataError(f"{where}: times above 0, sizes and tokens per step from 1 are needed")
    return row
