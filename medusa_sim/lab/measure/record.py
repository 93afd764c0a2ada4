"""The folder of a measured device: CSV files of operator rows, and `meta.toml` with what they depend on.

    <folder>/gemm_fp16.csv, attention_fp16.csv, elementwise_fp16.csv, ...   one file a family and dtype
    <folder>/meta.toml                                                      environment, rates, launch floor

Files are replaced whole, every few seconds and at the end however it comes, so that a run that is
interrupted keeps what it measured and goes on from there.
"""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
from msgspec.structs import replace

from medusa_sim.errors import DataError, UsageError, shown
from medusa_sim.lab.measure.environment import differences
from medusa_sim.lab.measure.shapes import TimedShape
from medusa_sim.lab.measure.spread import SPREAD_LIMIT, Timing
from medusa_sim.latency.measurement import META, Meta, Rates, read_meta
from medusa_sim.operators.columns import SIZE_COLUMNS
from medusa_sim.operators.table import read_rows
from medusa_sim.reading.tables import csv_lines
from medusa_sim.writing import make_folder, write_text

COLUMNS = ("op", *SIZE_COLUMNS, "dtype", "time_us", "p10_us", "p90_us", "repeats")
_SAVE_EVERY_S = 5.0
_DIGITS = 6

Row = dict[str, str]


class Recorder:
    """Rows of one folder, those that were there and those that are added."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.folder = folder
        self.clock = clock
        self._files: dict[str, dict[tuple[str, ...], Row]] = {}
        self._changed: set[str] = set()
        self._saved_at = clock()

    @property
    def rows(self) -> int:
        """Rows in all files."""
        return sum(len(rows) for rows in self._files.values())

    @property
    def noisy(self) -> int:
        """Rows whose spread is above SPREAD_LIMIT."""
        return sum(_is_noisy(row) for rows in self._files.values() for row in rows.values())

    def load(self) -> None:
        """Read the rows that a run before has left. Raises DataError for files that are not of this form."""
        for path in sorted(self.folder.glob("*.csv")):
            (_, columns), *lines = [*csv_lines(path, "rows of `measure`")] or [(0, [])]
            if tuple(columns) != COLUMNS:
                raise DataError(
                    f"{path}: columns {shown(', '.join(columns))} were not written by "
                    f"`measure` (its own: {', '.join(COLUMNS)}); choose another --out"
                )
            read_rows(path, need_time=True)  # refuses cells that no measurement writes
            rows = (dict(zip(COLUMNS, cells, strict=True)) for _, cells in lines)
            self._files[path.name] = {_row_key(row): row for row in rows}

    def has(self, shape: TimedShape) -> bool:
        """Whether the shape was measured at all."""
        return _shape_key(shape) in self._files.get(file_name(shape), {})

    def has_steady(self, shape: TimedShape) -> bool:
        """Whether the shape was measured with a spread that can stand."""
        row = self._files.get(file_name(shape), {}).get(_shape_key(shape))
        return row is not None and not _is_noisy(row)

    def add(self, shape: TimedShape, timing: Timing) -> None:
        """Keep a row, unless the one that is there has the smaller spread; saved every few seconds."""
        name, key = file_name(shape), _shape_key(shape)
        row = row_of(shape, timing)
        held = self._files.setdefault(name, {}).get(key)
        if held is None or _spread(row) <= _spread(held):
            self._files[name][key] = row
            self._changed.add(name)
        if self.clock() - self._saved_at > _SAVE_EVERY_S:
            self.save()

    def put(self, shape: TimedShape, timing: Timing) -> None:
        """Keep a row in place of any that is there; not saved yet."""
        name = file_name(shape)
        self._files.setdefault(name, {})[_shape_key(shape)] = row_of(shape, timing)
        self._changed.add(name)

    def save(self) -> None:
        """Replace the files whose rows changed. Raises OutputError."""
        for name in sorted(self._changed):
            rows = (row.values() for row in _ordered(self._files[name].values()))
            write_text(self.folder / name, csv_text(COLUMNS, rows))
        self._changed.clear()
        self._saved_at = self.clock()


def file_name(shape: TimedShape) -> str:
    """The file that holds a shape's row."""
    return f"{shape.operator.FAMILY}_{shape.operator.dtype}.csv"


def row_of(shape: TimedShape, timing: Timing) -> Row:
    """The cells of a row; sizes that do not apply are blank."""
    times = {name: f"{getattr(timing, name):.{_DIGITS}g}" for name in ("time_us", "p10_us", "p90_us")}
    named = {"op": shape.operator.name, **_size_cells(shape), "dtype": shape.operator.dtype}
    return {**named, **times, "repeats": str(timing.repeats)}


def _size_cells(shape: TimedShape) -> Row:
    return {name: str(shape.sizes.get(name, "")) for name in SIZE_COLUMNS}


def begin(folder: Path, meta: Meta, *, resume: bool, allow_different: bool = False) -> tuple[Recorder, Meta]:
    """The record of a folder, and the meta data to go on with.

    Raises UsageError where rows are there and `resume` is not given, or where they are of another device,
    another torch or other clocks; OutputError where the folder cannot be written.
    """
    make_folder(folder)
    record = Recorder(folder)
    if not any(folder.glob("*.csv")) and not (folder / META).exists():
        return record, meta
    if not resume:
        raise UsageError(f"{folder} holds rows; add --resume to go on with them, or choose another --out")
    record.load()
    if not (folder / META).exists():
        raise DataError(
            f"{folder}: rows without {META}, which says where they come from; choose another --out"
        )
    before = read_meta(folder, Meta)
    different = differences(before.environment, meta.environment)
    if before.environment.torch != meta.environment.torch:
        different.append(f"torch {before.environment.torch} and {meta.environment.torch}")
    if before.packed != meta.packed:
        different.append(f"weights {'packed' if before.packed else 'as they are'} there")
    if different and not allow_different:
        raise UsageError(
            f"{folder} was measured elsewhere ({'; '.join(different)}); choose another --out, "
            "or mix them with --allow-different"
        )
    merged = replace(
        meta,
        models=tuple(dict.fromkeys((*before.models, *meta.models))),
        dtypes=tuple(dict.fromkeys((*before.dtypes, *meta.dtypes))),
        environment=before.environment,
        rates=_best_rates(before.rates, meta.rates),
        resumed=(*before.resumed, meta.environment),
    )
    return record, merged


def csv_text(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A table in CSV."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows((columns, *rows))
    return text.getvalue()


def write_meta(folder: Path, meta: Meta) -> None:
    """Replace `meta.toml`. Raises OutputError."""
    write_text(folder / META, toml_text(meta))


def toml_text(struct: msgspec.Struct) -> str:
    """A struct as TOML, tables after plain values."""
    import tomlkit

    document = tomlkit.document()
    for key, value in msgspec.to_builtins(struct).items():
        document.add(key, value)
    return tomlkit.dumps(document)


def _best_rates(first: Rates, second: Rates) -> Rates:
    """The higher rates and the lower launch floor: what else ran only ever lowers a rate."""
    dtypes = first.flops_per_s.keys() | second.flops_per_s.keys()
    return Rates(
        copy_bytes_per_s=max(first.copy_bytes_per_s, second.copy_bytes_per_s),
        read_bytes_per_s=max(first.read_bytes_per_s, second.read_bytes_per_s),
        flops_per_s={
            dtype: max(first.flops_per_s.get(dtype, 0.0), second.flops_per_s.get(dtype, 0.0))
            for dtype in sorted(dtypes)
        },
        launch_eager_us=min(first.launch_eager_us, second.launch_eager_us),
        launch_graph_us=min(first.launch_graph_us, second.launch_graph_us),
    )


def _ordered(rows: Iterable[Row]) -> list[Row]:
    def place(row: Row) -> tuple[object, ...]:
        return (row["op"], *(int(row[name] or 0) for name in ("n", "k", *SIZE_COLUMNS)))

    return sorted(rows, key=place)


def _row_key(row: Row) -> tuple[str, ...]:
    op = "gemm" if row["k"] else row["op"]
    return (op, *(row[name] for name in SIZE_COLUMNS), row["dtype"])


def _shape_key(shape: TimedShape) -> tuple[str, ...]:
    return (shape.operator.kind, *_size_cells(shape).values(), shape.operator.dtype)


def _spread(row: Row) -> float:
    return (float(row["p90_us"]) - float(row["p10_us"])) / float(row["time_us"])


def _is_noisy(row: Row) -> bool:
    return _spread(row) > SPREAD_LIMIT
