"""Files and folders written whole or not at all, and never over what the user did not mean."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import stat
import sys
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import BinaryIO

from medusa_sim.errors import OutputError
from medusa_sim.outside.limits import SPEC_BYTES
from medusa_sim.reading.documents import read_json
from medusa_sim.reading.files import as_output, as_written, named

STDOUT = Path("-")
"""The path that stands for standard output."""
RECORD = ".medusa-sim-written.json"
"""Beside the files of a report: their names and digests, by which they are known again."""


def check_writable(path: Path) -> None:
    """Refuse at once what could not be written at the end, or is read by this command. Raises OutputError."""
    if path == STDOUT:
        return
    as_output(path)
    with _one_line(path):
        place = _target(path)
        if place.is_dir():
            raise OutputError(f"{path} is a folder; give the name of a file in it")
        folder = place.parent
        if not folder.is_dir():
            problem = "is not a folder" if folder.exists() else "does not exist"
            raise OutputError(f"cannot write {path}: {folder} {problem}; create it or choose another place")
        _check_allowed(path, place if place.exists() else folder)


def check_folder(folder: Path, names: Collection[str] = (), *, overwrite: bool = True) -> None:
    """Refuse at once a folder that could not be made or written at the end.

    names: files that will be written into it; without `overwrite` one that somebody else wrote, or that was
    changed since, is refused. Raises OutputError.
    """
    with _one_line(folder):
        place = _target(folder)
        while not place.exists():
            place = place.parent
        if not place.is_dir():
            raise OutputError(f"cannot write {folder}: {place} is not a folder; choose another place")
        _check_allowed(folder, place)
        known = _recorded(folder)
        for path in (folder / name for name in names):
            if path.is_dir():
                raise OutputError(f"cannot write {named(path)}: it is a folder; choose another place")
            as_output(path)
            if path.is_file() and not overwrite and known.get(path.name) != _digest(path.read_bytes()):
                raise OutputError(
                    f"{named(path)} was not written by this tool, or was changed since; add --overwrite to "
                    "replace it, or choose another folder"
                )


def check_new(path: Path, *, overwrite: bool) -> None:
    """Refuse to replace a file of the user's unasked. Raises OutputError."""
    if not overwrite and path.exists():
        raise OutputError(
            f"{named(path)} is there already; add --overwrite to replace it, or choose another name"
        )


def make_folder(folder: Path) -> None:
    """Create `folder` (with its parents) and refuse one that cannot be written. Raises OutputError."""
    with _one_line(folder):
        folder.mkdir(parents=True, exist_ok=True)
        _check_allowed(folder, folder)


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
    with _one_line(path):
        target = _target(path)
        if target.exists() and not target.is_file():
            with target.open("wb") as direct:
                yield direct
            return
        # named before it is there: a signal that ends the process as it appears leaves nothing
        temporary = target.with_name(f".{target.name}"[:100] + f"{secrets.token_hex(4)}.part")
        try:
            with open(temporary, "xb", opener=partial(os.open, mode=0o600)) as file:
                yield file
            temporary.chmod(stat.S_IMODE(target.stat().st_mode) if target.exists() else _new_mode())
            temporary.replace(target)
            as_written(target)
        finally:
            temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Replace `path` by `text` (UTF-8) in one step. Raises OutputError."""
    with atomic(path) as file:
        file.write(text.encode("utf-8", "backslashreplace"))


def write_folder(folder: Path, contents: Mapping[str, bytes], *, overwrite: bool = False) -> tuple[Path, ...]:
    """Write files (by name) into `folder`, all or none; the paths written, in the order given.

    All are complete beside their places before the first is replaced; nothing else in the folder is touched.
    A file that was not written here, or was changed since, is only replaced with `overwrite`; RECORD tells
    them apart. Raises OutputError.
    """
    check_folder(folder, contents, overwrite=overwrite)
    make_folder(folder)
    record = {**_recorded(folder), **{name: _digest(content) for name, content in contents.items()}}
    with contextlib.ExitStack() as whole:
        for name, content in {RECORD: json.dumps(record, indent=1).encode(), **contents}.items():
            file = whole.enter_context(atomic(folder / name))
            file.write(content)
            file.flush()
    return tuple(folder / name for name in contents)


def _recorded(folder: Path) -> dict[str, str]:
    """Name -> digest of what was written into a folder; empty where nothing was."""
    try:
        record = read_json(folder / RECORD, SPEC_BYTES, "what a report leaves", OutputError)
    except OutputError:
        return {}
    return {str(key): str(value) for key, value in record.items()} if isinstance(record, dict) else {}


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _target(path: Path) -> Path:
    """What is written: the end of a chain of links, which need not exist."""
    try:
        return path.resolve() if path.is_symlink() else path
    except RuntimeError as error:
        raise OutputError(f"cannot write {named(path)}: links that lead to each other") from error


def _check_allowed(path: Path, place: Path) -> None:
    if not os.access(place, os.W_OK):
        raise OutputError(f"cannot write {named(path)}: no permission for {place}; choose another place")


def _new_mode() -> int:
    """Mode of a new file."""
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


@contextlib.contextmanager
def _one_line(path: Path) -> Iterator[None]:
    """What the system refuses as an OutputError."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputError(f"cannot write {named(path)}: {reason}; choose another place") from error
