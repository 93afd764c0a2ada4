"""A folder of parts: `part-000012.parquet` appears whole or not at all, `_manifest.json` says of what.

`pandas.read_parquet(folder)` reads all of them. Names that begin with `_` or `.` are no data to readers of
Parquet. A part that exists is finished, so an interrupted run continues where it stopped.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from medusa_sim.errors import OutputError
from medusa_sim.outside.limits import TABLE_BYTES
from medusa_sim.reading.documents import read_json
from medusa_sim.reading.files import named
from medusa_sim.writing import make_folder

Description: TypeAlias = dict[str, Any]
"""JSON that says everything a result depends on: `kind` names the work, `version` the package."""
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
