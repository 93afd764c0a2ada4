"""Files and folders written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from medusa_sim.errors import OutputError
from medusa_sim.reading import named

STDOUT = Path("-")
"""The path that stands for standard output."""


def check_writable(path: Path) -> None:
    """Refuse at once what could not be written at the end. Raises OutputError."""
    if path == STDOUT:
        return
    try:
        place = _target(path)
        if place.is_dir():
            raise OutputError(f"{path} is a folder; give the name of a file in it")
        folder = place.parent
        if not folder.is_dir():
            found = "is not a folder" if folder.exists() else "does not exist"
            raise OutputError(f"cannot write {path}: {folder} {found}; create it or choose another place")
        target = place if place.exists() else folder
    except OSError as error:
        raise _refused(path, error) from error
    if not os.access(target, os.W_OK):
        raise OutputError(f"cannot write {path}: no permission for {target}; choose another place")


def check_folder(folder: Path) -> None:
    """Refuse at once a folder that could not be made or written at the end. Raises OutputError."""
    try:
        place = _target(folder)
        while not place.exists():
            place = place.parent
    except OSError as error:
        raise _refused(folder, error) from error
    if not place.is_dir():
        raise OutputError(f"cannot write {folder}: {place} is not a folder; choose another place")
    if not os.access(place, os.W_OK):
        raise OutputError(f"cannot write {folder}: no permission for {place}; choose another place")


def make_folder(folder: Path) -> None:
    """Create `folder` (with its parents) and refuse one that cannot be written. Raises OutputError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(
            f"cannot create folder {named(folder)}: {_reason(error)}; choose another place"
        ) from error
    if not os.access(folder, os.W_OK):
        raise OutputError(f"cannot write into {folder}: no permission; choose another place")


@contextlib.contextmanager
def atomic(path: Path) -> Iterator[BinaryIO]:
    """A binary file that appears at `path` when the block ends well, and leaves nothing when it does not.

    A link stays and what it points to is replaced; a file that is there keeps its mode. `-` is standard
    output; it, a device or a pipe is written directly. Raises OutputError where the system refuses.
    """
    if path == STDOUT:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    temporary = None
    try:
        target = _target(path)
        if target.exists() and not target.is_file():
            with target.open("wb") as direct:
                yield direct
            return
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=_prefix(target), suffix=".part")
        with os.fdopen(handle, "wb") as file:
            yield file
        os.chmod(temporary, _mode(target))  # noqa: PTH101  # a str, so that `finally` can tell it was made
        Path(temporary).replace(target)
    except OSError as error:
        raise _refused(path, error) from error
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Replace `path` by `text` (UTF-8) in one step. Raises OutputError."""
    with atomic(path) as file:
        file.write(text.encode("utf-8", "backslashreplace"))


def write_folder(folder: Path, contents: Mapping[str, bytes]) -> tuple[Path, ...]:
    """Write files (by name) into `folder`, all or none; the paths written, in the order given.

    They are built in a folder beside it. A new folder then appears in one rename; in one that is there
    only files of these names are replaced, nothing else is touched. Raises OutputError.
    """
    try:
        place = _target(folder)
        if blocked := [name for name in contents if (place / name).is_dir()]:
            raise OutputError(f"cannot write {folder / blocked[0]}: it is a folder; choose another place")
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent, prefix=_prefix(place), suffix=".part") as own:
            building = Path(own) / "whole"
            building.mkdir()
            for name, content in contents.items():
                (building / name).write_bytes(content)
                (building / name).chmod(_mode(place / name))
            if place.is_dir():
                for name in contents:
                    (building / name).replace(place / name)
            else:
                building.rename(place)
    except OSError as error:
        raise _refused(folder, error) from error
    return tuple(folder / name for name in contents)


def _target(path: Path) -> Path:
    """What is written: the end of a chain of links, which need not exist."""
    try:
        return path.resolve() if path.is_symlink() else path
    except RuntimeError as error:
        raise OutputError(f"cannot write {named(path)}: links that lead to each other") from error


def _prefix(target: Path) -> str:
    """Of a temporary file beside `target`: hidden, and no longer than names may be."""
    return f".{target.name}"[:100]


def _mode(target: Path) -> int:
    """Mode of the file that is replaced, else that of a new one."""
    return stat.S_IMODE(target.stat().st_mode) if target.exists() else 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _refused(path: Path, error: OSError) -> OutputError:
    return OutputError(f"cannot write {named(path)}: {_reason(error)}; choose another place")


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
