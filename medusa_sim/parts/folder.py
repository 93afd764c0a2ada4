"""A folder of parts: `part-000012.parquet` appears whole or not at all, `_manifest.json` says of what.

`pandas.read_parquet(folder)` reads all of them. Names that begin with `_` or `.` are no data to readers of
Parquet. A part that exists is finished, so an interrupted run continues where it stopped.

`run_here` computes them here, one after another: all, or the shard of a machine that knows nothing of others.

What can be cut into parts, and scenarios by their arguments, as JSON carries them to another process.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import socket
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from medusa_sim.data import user_data_dir
from medusa_sim.errors import OutputError, UsageError, shown
from medusa_sim.outside.limits import TABLE_BYTES
from medusa_sim.reading.documents import read_json
from medusa_sim.reading.files import named, read_bytes
from medusa_sim.report.formats import write_parquet
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.writing import atomic, make_folder

if TYPE_CHECKING:
    import pyarrow as pa


Description: TypeAlias = dict[str, Any]
"""JSON that says everything a result depends on: `kind` names the work, `version` the package."""


class Work(Protocol):
    """Rows in numbered parts. Equal descriptions give equal parts, on any machine and in any order."""

    @property
    def description(self) -> Description:
        """From which `sweep_parts.work_of` makes the same work again."""
        ...

    @property
    def parts(self) -> int:
        """How many there are."""
        ...

    def computed(self, number: int) -> int:
        """Rows that are computed for a part, of which it may keep fewer: what progress counts."""
        ...

    def tables(self, number: int) -> Iterator[pa.Table]:
        """The rows of a part in chunks that fit in memory; all parts have the same columns."""
        ...


Case: TypeAlias = dict[str, Any]
"""Arguments by name: words, numbers, lists of these."""
Frozen: TypeAlias = tuple[tuple[str, Any], ...]
_SUFFIXES = (".json", ".toml", ".csv")
"""How files end that an argument may name, with or without a folder before them."""
_PLAIN = (str, int, float, bool, type(None))


def case_of(scenario: Scenario) -> Case:
    """The arguments of a scenario as JSON holds them. Raises UsageError for objects that it cannot hold."""
    return {name: plain(name, value) for name, value in scenario.changed.items()}


def plain(name: str, value: object) -> object:
    """An argument as JSON holds it: paths absolute, tuples as lists. Raises UsageError for other objects."""
    if isinstance(value, os.PathLike) or (isinstance(value, str) and _is_path(name, value)):
        return str(Path(value).expanduser().resolve())
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, tuple | list):
        return [plain(name, each) for each in value]
    raise UsageError(
        f"{name} was given as an object of Python; parts are made from names: pass its name instead"
    )


def _is_path(name: str, value: str) -> bool:
    """Whether text names a file or folder here: by its name alone `vicuna-7b` is a model, not a folder."""
    if name == "data_dir":
        return True
    return (os.sep in value or value.endswith(_SUFFIXES)) and Path(value).expanduser().exists()


def digests(cases: Sequence[Case], **asked: object) -> dict[str, str]:
    """SHA-256 of every file that the rows depend on beside the shipped ones: with other content they differ.

    Files and models' folders that cases and `asked` name, and the specifications in the user's data folder.
    """
    values = {value for each in (*cases, asked) for value in each.values() if isinstance(value, str)}
    named = {path for path in map(Path, values) if path.is_absolute()}
    named |= {path / "config.json" for path in named}
    roots = {user_data_dir(case.get("data_dir")) for case in cases}
    folders = [root / kind for root in roots for kind in ("hardware", "profiles")]
    named |= {path for folder in folders for path in folder.rglob("*") if path.suffix in _SUFFIXES}
    return {
        str(path): hashlib.sha256(read_bytes(path, TABLE_BYTES, "a file of the scenario")).hexdigest()
        for path in sorted(named)
        if path.is_file()
    }


def frozen(case: Case) -> Frozen:
    """A case as a key of caches."""
    return tuple(
        (name, tuple(value) if isinstance(value, list) else value) for name, value in sorted(case.items())
    )


@lru_cache(maxsize=64)
def scenario_of(case: Frozen) -> Scenario:
    """The scenario of a case, kept between parts."""
    return Scenario(**dict(case))


Advance = Callable[[int, int], None]
"""Told (rows computed, rows to compute)."""
_SHARD = re.compile(r"([0-9]{1,9})/([0-9]{1,9})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Shard:
    """Every `count`-th part from the `number`-th on, counted from 1."""

    number: int = 1
    count: int = 1

    @classmethod
    def read(cls, text: str) -> Shard:
        """`3/8`. Raises UsageError for anything else."""
        match = _SHARD.fullmatch(text.strip())
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise UsageError(f"shard {shown(text)}: give i/n with i from 1 to n, as in 3/8")
        return cls(int(match[1]), int(match[2]))

    @property
    def name(self) -> str:
        """Name of its claim on a folder."""
        return f"shard-{self.number}-of-{self.count}"

    def parts(self, work: Work) -> range:
        """Numbers of its parts."""
        return range(self.number - 1, work.parts, self.count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """Result of a run. parts: written now; there: finished before; computed: rows."""

    parts: int
    there: int
    computed: int


def open_parts(folder: PartFolder, numbers: range, work: Work) -> tuple[list[int], int]:
    """(parts that are not finished, rows that these compute)."""
    missing = [number for number in numbers if not folder.is_done(number)]
    return missing, sum(map(work.computed, missing))


def run_here(work: Work, folder: PartFolder, shard: Shard, advance: Advance) -> Done:
    """Compute what a shard lacks. Raises OutputError where another client has it, and what parts raise."""
    numbers = shard.parts(work)
    with folder.claimed(shard.name):
        missing, _ = open_parts(folder, numbers, work)
        computed = compute_missing(work, folder, missing, advance)
    return Done(parts=len(missing), there=len(numbers) - len(missing), computed=computed)


def compute_missing(work: Work, folder: PartFolder, missing: list[int], advance: Advance) -> int:
    """Compute these parts, one after another; rows computed."""
    rows, computed = sum(map(work.computed, missing)), 0
    for number in missing:
        folder.write(work, number)
        computed += work.computed(number)
        advance(computed, rows)
    return computed


MANIFEST = "_manifest.json"
_PARQUET = b"PAR1"


@dataclass(frozen=True)
class PartFolder:
    """Where the parts of one work are written."""

    path: Path

    @classmethod
    def of(cls, path: Path, description: Description) -> PartFolder:
        """The folder of a work, made where it is not there.

        Raises OutputError where it holds other work, or files that are no parts, or cannot be written.
        """
        make_folder(path)
        folder = cls(path.resolve())
        if not folder.manifest.exists():
            if any(folder.path.glob("*.parquet")):
                raise OutputError(
                    f"{named(path)} holds Parquet files and no {MANIFEST}; choose another folder"
                )
            _write_once(folder.manifest, description)
        held = folder.description
        if held != description:
            differs = sorted(key for key in {*held, *description} if held.get(key) != description.get(key))
            raise OutputError(
                f"{named(path)} holds parts of another question ({', '.join(differs)} differ); choose "
                "another folder, or delete it to begin again"
            )
        return folder

    @property
    def manifest(self) -> Path:
        """The file that says of what the parts are."""
        return self.path / MANIFEST

    @property
    def description(self) -> Description:
        """Contents of the manifest. Raises OutputError where it is none."""
        held = read_json(self.manifest, TABLE_BYTES, "what `--out` writes", OutputError)
        if not isinstance(held, dict):
            raise OutputError(f"{named(self.manifest)}: no manifest of parts; choose another folder")
        return held

    def part(self, number: int) -> Path:
        """File of a part."""
        return self.path / f"part-{number:06d}.parquet"

    def is_done(self, number: int) -> bool:
        """Whether a part is there and whole: a full disk or a copy that was cut off may leave half of one.

        Parquet begins and ends with the same four bytes.
        """
        try:
            with self.part(number).open("rb") as file:
                begins = file.read(len(_PARQUET))
                file.seek(-min(file.seek(0, os.SEEK_END), len(_PARQUET)), os.SEEK_END)
                return begins == file.read() == _PARQUET
        except FileNotFoundError:
            return False

    def write(self, work: Work, number: int) -> None:
        """Compute a part and write it. Raises OutputError, and what computing raises; leaves nothing then."""
        with atomic(self.part(number)) as file:
            write_parquet(work.tables(number), file)

    @contextlib.contextmanager
    def claimed(self, name: str) -> Iterator[None]:
        """Nobody else may write under this name meanwhile; the claim ends with the process, however it ends.

        Raises OutputError where another client has it.
        """
        import fcntl

        path = self.path / f".{name}.lock"
        with path.open("a+", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                holder = file.read().strip() or "another process"
                raise OutputError(
                    f"{self.path}: {holder} is writing {name} there; wait for it, or take another shard"
                ) from None
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}")
            file.flush()
            yield


def _write_once(path: Path, description: Description) -> None:
    """Write a manifest where none is; of two clients that begin at once one is the first."""
    temporary = None
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".manifest", suffix=".part")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(description, file)
        Path(temporary).chmod(0o644)
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputError(f"cannot write {named(path)}: {reason}; choose another folder") from error
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
