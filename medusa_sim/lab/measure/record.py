"""The folder of a measured device: CSV files of operator rows, and `meta.toml` with what they depend on.

    <folder>/gemm_fp16.csv, attention_fp16.csv, elementwise_fp16.csv, ...   one file a family and dtype
    <folder>/meta.toml                                                      environment, rates, launch floor

Files are replaced whole, every few seconds and at the end however it comes, so that a run that is
interrupted keeps what it measured and goes on from there.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec.structs import replace

from medusa_sim.errors import DataError, UsageError
from medusa_sim.lab.measure.environment import differences
from medusa_sim.lab.measure.shapes import TimedShape
from medusa_sim.lab.measure.spread import SPREAD_LIMIT, Timing
from medusa_sim.lab.measure.struct_csv import read_structs, write_structs
from medusa_sim.latency.measurement import META, Meta, Rates, read_meta
from medusa_sim.operators.columns import SIZE_COLUMNS
from medusa_sim.operators.table import read_rows
from medusa_sim.writing import make_folder, write_text

_SAVE_EVERY_S = 5.0


class OperatorRow(msgspec.Struct, frozen=True, kw_only=True):
    """Times of one operator; sizes that it has not are blank."""

    op: str
    m: int | None = None
    n: int | None = None
    k: int | None = None
    batch: int | None = None
    q_len: int | None = None
    kv_len: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    dtype: str
    time_us: float
    p10_us: float
    p90_us: float
    repeats: int

    @classmethod
    def of(cls, shape: TimedShape, timing: Timing) -> OperatorRow:
        """The row of a shape."""
        operator = shape.operator
        return cls(op=operator.name, dtype=operator.dtype, **shape.sizes, **dataclasses.asdict(timing))

    @property
    def key(self) -> tuple[object, ...]:
        """What makes two rows one: linear layers of any name share their shape."""
        return ("gemm" if self.k else self.op, *(getattr(self, name) for name in SIZE_COLUMNS), self.dtype)

    @property
    def place(self) -> tuple[object, ...]:
        """Where it stands in its file."""
        return (self.op, *(getattr(self, name) or 0 for name in ("n", "k", *SIZE_COLUMNS)))

    @property
    def spread(self) -> float:
        """(p90 - p10) / median."""
        return (self.p90_us - self.p10_us) / self.time_us


class Recorder:
    """Rows of one folder, those that were there and those that are added."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.folder = folder
        self.clock = clock
        self._files: dict[str, dict[tuple[object, ...], OperatorRow]] = {}
        self._changed: set[str] = set()
        self._saved_at = clock()

    @property
    def rows(self) -> int:
        """Rows in all files."""
        return sum(len(rows) for rows in self._files.values())

    @property
    def noisy(self) -> int:
        """Rows whose spread is above SPREAD_LIMIT."""
        return sum(row.spread > SPREAD_LIMIT for rows in self._files.values() for row in rows.values())

    def load(self) -> None:
        """Read the rows that a run before has left. Raises DataError for files that are not of this form."""
        for path in sorted(self.folder.glob("*.csv")):
            rows = read_structs(path, OperatorRow, "rows of `measure`")
            read_rows(path, need_time=True)  # refuses cells that no measurement writes
            self._files[path.name] = {row.key: row for row in rows}

    def has(self, shape: TimedShape) -> bool:
        """Whether the shape was measured at all."""
        return self._held(shape) is not None

    def has_steady(self, shape: TimedShape) -> bool:
        """Whether the shape was measured with a spread that can stand."""
        row = self._held(shape)
        return row is not None and row.spread <= SPREAD_LIMIT

    def _held(self, shape: TimedShape) -> OperatorRow | None:
        return self._files.get(file_name(shape), {}).get(_shape_key(shape))

    def add(self, shape: TimedShape, timing: Timing) -> None:
        """Keep a row, unless the one that is there has the smaller spread; saved every few seconds."""
        held = self._held(shape)
        if held is None or timing.spread <= held.spread:
            self.put(shape, timing)
        if self.clock() - self._saved_at > _SAVE_EVERY_S:
            self.save()

    def put(self, shape: TimedShape, timing: Timing) -> None:
        """Keep a row in place of any that is there; not saved yet."""
        name = file_name(shape)
        self._files.setdefault(name, {})[_shape_key(shape)] = OperatorRow.of(shape, timing)
        self._changed.add(name)

    def save(self) -> None:
        """Replace the files whose rows changed. Raises OutputError."""
        for name in sorted(self._changed):
            rows = sorted(self._files[name].values(), key=lambda row: row.place)
            write_structs(self.folder / name, OperatorRow, rows)
        self._changed.clear()
        self._saved_at = self.clock()


def file_name(shape: TimedShape) -> str:
    """The file that holds a shape's row."""
    return f"{shape.operator.FAMILY}_{shape.operator.dtype}.csv"


def _shape_key(shape: TimedShape) -> tuple[object, ...]:
    """The key of its row."""
    return (shape.operator.kind, *(shape.sizes.get(name) for name in SIZE_COLUMNS), shape.operator.dtype)


def begin(folder: Path, meta: Meta, *, resume: bool, allow_different: bool = False) -> tuple[Recorder, Meta]:
    """The record of a folder, and the meta data to go on with.

    Raises UsageError where rows are there and `resume` is not given, or where they are of another device,
    another torch or other clocks; OutputError where the folder cannot be written.
    """
    make_folder(folder)
    record = Recorder(folder)
    has_rows = any(folder.glob("*.csv"))
    if not has_rows and not (folder / META).exists():
        return record, meta
    if not resume:
        held = "rows" if has_rows else f"the {META} of a run without rows"
        raise UsageError(f"{folder} holds {held}; add --resume to go on with it, or choose another --out")
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


def write_meta(folder: Path, meta: Meta) -> None:
    """Replace `meta.toml`. Raises OutputError."""
    write_text(folder / META, toml_text(meta))


def toml_text(struct: msgspec.Struct) -> str:
    """A struct as TOML, tables after plain values."""
    import tomlkit

    return tomlkit.dumps(msgspec.to_builtins(struct))


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
