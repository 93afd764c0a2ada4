"""Measured steps and whole generations of the decoder on disk.

    <folder>/steps.csv             one row a model, batch, number of candidates and pass
    <folder>/meta.toml             how the steps were measured, and on what
    <folder>/runs.csv              whole generations of a trained decoder, one row as above
    <folder>/<model>/config.json   sizes of the model, as Hugging Face writes them

Nothing here needs torch: `validate` reads it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta as Limit

from medusa_sim.errors import DataError, shown
from medusa_sim.lab.measure.record import toml_text
from medusa_sim.lab.measure.struct_csv import RowT, read_structs, write_structs
from medusa_sim.latency.measurement import META, Environment, read_meta
from medusa_sim.reading.strict import Schema, Text
from medusa_sim.writing import make_folder, write_text

STEPS = "steps.csv"
RUNS = "runs.csv"

_Size = Annotated[int, Limit(ge=1, le=10**9)]
_Count = Annotated[int, Limit(ge=0, le=10**9)]
_Us = Annotated[float, Limit(gt=0.0, le=1e12, description="us")]
_Tokens = Annotated[float, Limit(ge=1.0, le=1e6, description="tokens per step")]


class StepRow(msgspec.Struct, frozen=True, kw_only=True):
    """One step in one pass. candidates 1 is the decoding step; depth: heads that draft.

    tokens_per_step: what the tree emits under the acceptance profile of the meta data, so that a best
    count can be told; 1 for decoding.
    """

    model: Text
    dtype: Text
    batch: _Size
    seq_len: _Size
    candidates: _Size
    depth: _Count
    repetition: _Count
    time_us: _Us
    p10_us: _Us
    p90_us: _Us
    repeats: _Size
    tokens_per_step: _Tokens


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """Greedy generations of every prompt in batches, in one pass. candidates 1 is plain decoding.

    acceptance: the profile that predicts the tokens; its prompts are others than the run's. seq_len: mean
    committed tokens of a step. steps: those that the batches ran, prefill apart; step_us: their time over
    them (`turns.step_clock`). tokens_per_step: of a sequence while it runs, so that tokens_per_step x batch
    / step_us is the throughput of batches that are kept full.
    """

    model: Text
    dtype: Text
    acceptance: Text
    batch: _Size
    candidates: _Size
    depth: _Count
    seq_len: _Size
    repetition: _Count
    steps: _Size
    step_us: _Us
    tokens_per_step: _Tokens


class StepMeta(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the steps were measured. acceptance: the profile of the trees.

    packed: whether linear layers had their weights laid out once (`decoder.packed`).
    copy_bytes_per_s: memory traffic of a copy (read and written) in the same run. attention: by model,
    torch's kernel of a plain step and of a tree. reference: how the machine's state wandered (see `Meta`).
    """

    schema: Schema
    title: Text
    acceptance: Text
    accepted_draft_tokens: Annotated[int, Limit(ge=0, le=1_000)]
    copy_bytes_per_s: Annotated[float, Limit(gt=0.0, le=1e15, description="bytes/s")]
    environment: Environment
    packed: bool = False
    attention: dict[str, dict[str, Text]] = {}
    reference: dict[str, _Us] = {}


def cell_name(row: StepRow | RunRow) -> str:
    """Model, pass, batch and candidates in words."""
    return f"{row.model} pass {row.repetition + 1} batch {row.batch} candidates {row.candidates}"


def write_config(folder: Path, model: str, sizes: dict[str, object]) -> None:
    """The sizes of a model beside its rows; the folder is made. Raises OutputError."""
    make_folder(folder / model)
    write_text(folder / model / "config.json", json.dumps(sizes, indent=2) + "\n")


def write_steps(folder: Path, meta: StepMeta, rows: Sequence[StepRow]) -> None:
    """Replace the table and its meta data. Raises OutputError."""
    write_structs(folder / STEPS, StepRow, rows)
    write_text(folder / META, toml_text(meta))


def write_runs(folder: Path, rows: Sequence[RunRow]) -> None:
    """Replace the table. Raises OutputError."""
    write_structs(folder / RUNS, RunRow, rows)


def read_steps(folder: Path) -> tuple[StepMeta, list[StepRow]]:
    """Meta data and rows. Raises DataError naming file, row and column."""
    meta = read_meta(folder, StepMeta)
    path = folder / STEPS
    rows = _read(path, StepRow, "steps of `medusa-sim measure steps`")
    _check_passes(path, rows)
    return meta, rows


def read_runs(folder: Path) -> list[RunRow]:
    """Rows. Raises DataError naming file, row and column."""
    return _read(folder / RUNS, RunRow, "generations of `medusa-sim measure runs`")


def _read(path: Path, form: type[RowT], what: str) -> list[RowT]:
    rows = read_structs(path, form, what)
    if not rows:
        raise DataError(f"{path}: no rows below the header; measure again")
    return rows


def _check_passes(path: Path, rows: Sequence[StepRow]) -> None:
    """Every cell was measured once in every pass. Raises DataError."""
    passes: dict[tuple[str, str, int, int, int, int], list[int]] = {}
    for row in rows:
        cell = (row.model, row.dtype, row.batch, row.seq_len, row.candidates, row.depth)
        passes.setdefault(cell, []).append(row.repetition)
    expected = sorted(next(iter(passes.values())))
    for (model, _, batch, _, candidates, _), seen in passes.items():
        if sorted(seen) != expected or len(set(seen)) < len(seen):
            raise DataError(
                f"{path}: {model}, batch {batch}, {candidates} candidates: passes {shown(sorted(seen))}, the "
                f"first cell has {shown(expected)}; every cell is needed once in every pass"
            )
