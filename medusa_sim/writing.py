"""Files and folders written whole or not at all, and never over what the user did not mean."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import stat
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from medusa_sim.errors import OutputError
from medusa_sim.outside.limits import SPEC_BYTES
from medusa_sim.reading import as_output, named, read_json

STDOUT = Path("-")
"""The path that stands for standard output."""


RECORD = ".medusa-sim-written.json"
"""Beside the files of a report: their names and digests, by which they are known again."""


def check_writable(path: Path) -> None:
    """Refuse at once what could not be written at the end, or is read by this command. Raises OutputError."""
    if path == STDOUT:
        return
    as_output(path)
    try:
        place = _target(path)
        if place.is_dir():
            raise OutputError(f"{path} is a folder; give the name of a file in it")
        folder = place.parent
        if not folder.is_dir():
            problem = "is not a folder" if folder.exists() else "does not exist"
            raise OutputError(f"cannot write {path}: {folder} {problem}; create it or choose another place")
        target = place if place.exists() else folder
    except OSError as error:
        raise _refused(path, error) from error
    if not os.access(target, os.W_OK):
        raise OutputError(f"cannot write {path}: no permission for {target}; choose another place")


def check_folder(folder: Path, names: Collection[str] = (), *, overwrite: bool = True) -> None:
    """Refuse at once a folder that could not be made or written at the end.

    names: files that will be written into it; without `overwrite` one that somebody else wrote is refused.
    Raises OutputError.
    """
    _check_files(folder, names, overwrite=overwrite)
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
    output; it, a device or a pipe is written directly. What killed runs left of this file goes. Raises
    OutputError where the system refuses.
    """
    if path == STDOUT:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    temporary = None
    try:
        target = _target(path)
        if target.exists() and not target.is_file():
            with _opened(target) as direct:
                yield direct
            return
        handle, temporary = _temporary(target)
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.chmod(temporary, _mode(target))  # noqa: PTH101  # a str, so that `finally` can tell it was made
            Path(temporary).replace(target)
        _remove_left_over(target)
    except OSError as error:
        raise _refused(path, error) from error
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Replace `path` by `text` (UTF-8) in one step. Raises OutputError."""
    with atomic(path) as file:
        file.write(text.encode("utf-8", "backslashreplace"))


def write_folder(folder: Path, contents: Mapping[str, bytes], *, overwrite: bool = False) -> tuple[Path, ...]:
    """Write files (by name) into `folder`, all or none; the paths written, in the order given.

    They are built in a folder beside it. A new folder then appears in one rename; in one that is there
    only files of these names are replaced, nothing else is touched. A file that was not written here, or
    was changed since, is only replaced with `overwrite`; RECORD tells them apart. Raises OutputError.
    """
    check_folder(folder, contents, overwrite=overwrite)
    record = {name: _digest(content) for name, content in contents.items()}
    try:
        place = _target(folder)
        if blocked := [name for name in contents if (place / name).is_dir()]:
            raise OutputError(f"cannot write {folder / blocked[0]}: it is a folder; choose another place")
        written = {**contents, RECORD: json.dumps({**_recorded(place), **record}, indent=1).encode()}
        place.parent.mkdir(parents=True, exist_ok=True)
        with (
            tempfile.TemporaryDirectory(dir=place.parent, prefix=_prefix(place), suffix=".part") as own,
            _held(own),
        ):
            building = Path(own) / "whole"
            building.mkdir()
            for name, content in written.items():
                (building / name).write_bytes(content)
                (building / name).chmod(_mode(place / name))
            if place.is_dir():
                for name in written:
                    (building / name).replace(place / name)
            else:
                building.rename(place)
        _remove_left_over(place)
    except OSError as error:
        raise _refused(folder, error) from error
    return tuple(folder / name for name in contents)


def check_new(path: Path, *, overwrite: bool) -> None:
    """Refuse to replace a file of the user's unasked. Raises OutputError."""
    if not overwrite and path.exists():
        raise OutputError(
            f"{named(path)} is there already; add --overwrite to replace it, or choose another name"
        )


def _check_files(folder: Path, names: Collection[str], *, overwrite: bool) -> None:
    """Refuse files in `folder` that the command reads, or that somebody else wrote. Raises OutputError."""
    there = [path for name in names if (path := folder / name).is_file()]
    for path in there:
        as_output(path)
    if not there or overwrite:
        return
    known = _recorded(folder)
    for path in there:
        try:
            if path.name not in known or known[path.name] != _digest(path.read_bytes()):
                raise OutputError(
                    f"{named(path)} was not written by this tool, or was changed since; add --overwrite to "
                    "replace it, or choose another folder"
                )
        except OSError as error:
            raise _refused(path, error) from error


def _recorded(folder: Path) -> dict[str, str]:
    """Name -> digest of what was written into a folder; empty where nothing was."""
    try:
        record = read_json(folder / RECORD, SPEC_BYTES, "what a report leaves", OutputError)
    except OutputError:
        return {}
    return {str(key): str(value) for key, value in record.items()} if isinstance(record, dict) else {}


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _opened(device: Path) -> BinaryIO:
    """A device or a pipe to write to. Raises OSError also for a pipe that nobody reads, and does not wait."""
    try:
        handle = os.open(device, os.O_WRONLY | getattr(os, "O_NONBLOCK", 0))
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise OSError(errno.ENXIO, "nobody reads from it; start its reader first") from error
        raise
    os.set_blocking(handle, True)
    return os.fdopen(handle, "wb")


def _temporary(target: Path) -> tuple[int, str]:
    """A new locked file beside `target`. While its handle is open `_remove_left_over` leaves it alone."""
    while True:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=_prefix(target), suffix=".part")
        _lock(handle)
        if Path(name).exists():  # else another process took it for left over before it was locked
            return handle, name
        os.close(handle)


@contextlib.contextmanager
def _held(folder: str) -> Iterator[None]:
    """A folder that `_remove_left_over` leaves alone."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        _lock(handle)
        yield
    finally:
        os.close(handle)


def _lock(handle: int, *, wait: bool = True) -> bool:
    """Lock a file until its handle is closed, however the process ends; whether it could be."""
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except (ImportError, OSError):  # held by another, or a system without locks
        return False
    return True


def _remove_left_over(target: Path) -> None:
    """Remove what killed runs left beside `target` when they wrote it; what a living one holds stays."""
    mine = re.compile(re.escape(_prefix(target)) + r"[a-z0-9_]{8}\.part")
    with contextlib.suppress(OSError):
        for path in target.parent.iterdir():
            if not mine.fullmatch(path.name) or path.is_symlink():
                continue
            handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
            try:
                if _lock(handle, wait=False):
                    _remove(path)
            finally:
                os.close(handle)


def _remove(path: Path, folders: int = 2) -> None:
    """A file, or a folder and the one in it in which a run puts a whole together; what is deeper stays."""
    if folders and path.is_dir() and not path.is_symlink():
        for each in path.iterdir():
            _remove(each, folders - 1)
        path.rmdir()
    else:
        path.unlink()


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
