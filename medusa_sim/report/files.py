"""Files written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from medusa_sim.errors import OutputError


def check_writable(path: Path) -> None:
    """Refuse at once what could not be written at the end. Raises OutputError."""
    if path.is_dir():
        raise OutputError(f"{path} is a folder; give the name of a file in it")
    folder = path.parent
    if not folder.is_dir():
        found = "is not a folder" if folder.exists() else "does not exist"
        raise OutputError(f"cannot write {path}: {folder} {found}; create it or choose another place")
    target = path if path.exists() else folder
    if not os.access(target, os.W_OK):
        raise OutputError(f"cannot write {path}: no permission for {target}; choose another place")


def check_folder(folder: Path) -> None:
    """Create `folder` (with its parents) and refuse one that cannot be written. Raises OutputError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot create folder {folder}: {_reason(error)}; choose another place") from error
    if not os.access(folder, os.W_OK):
        raise OutputError(f"cannot write into {folder}: no permission; choose another place")


@contextlib.contextmanager
def atomic(path: Path) -> Iterator[BinaryIO]:
    """A binary file that appears at `path` when the block ends well, and leaves nothing when it does not.

    A device or a pipe is written directly. Raises OutputError where the system refuses.
    """
    if path.exists() and not path.is_file():
        with path.open("wb") as direct:
            yield direct
        return
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    except OSError as error:
        raise OutputError(f"cannot write {path}: {_reason(error)}; choose another place") from error
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        temporary.replace(path)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {_reason(error)}; choose another place") from error
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Replace `path` by `text` (UTF-8) in one step. Raises OutputError."""
    with atomic(path) as file:
        file.write(text.encode("utf-8"))


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
