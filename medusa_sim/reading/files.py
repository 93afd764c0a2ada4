"""Files read within limits: the only place of the package where files are opened to be read.

Every reader has a limit of `medusa_sim.outside.limits`, which holds while it reads: a device, a pipe or a
file given by mistake ends in one line and not in the machine's memory. What a command reads is noted, so that
its result cannot replace it.
"""

from __future__ import annotations

import contextlib
import io
import os
import stat
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import BinaryIO, NamedTuple

from medusa_sim.errors import MedusaSimError, OutputError, SpecError, shown

_inputs: set[str] = set()
_outputs: set[str] = set()
"""Real paths of what the command that runs has read, and of where it will write."""
_HELD = Path("/dev/null/uploaded")
"""The folder of files that are only in memory: nothing can lie below a device."""


def new_command() -> None:
    """Forget what was read and will be written: another command begins."""
    _inputs.clear()
    _outputs.clear()


def as_input(path: Path | str) -> None:
    """Note a file that is read; every reader here does. Raises OutputError where it is the output."""
    _note(path, _inputs, _outputs)


def as_output(path: Path | str) -> None:
    """Note where the user wants a result. Raises OutputError where the command read that file."""
    _note(path, _outputs, _inputs)


def as_written(path: Path | str) -> None:
    """Note that a result is in its place: from now on the command may read it."""
    _outputs.discard(os.path.realpath(path))


def _note(path: Path | str, own: set[str], others: set[str]) -> None:
    place = os.path.realpath(path)
    if place in others and Path(place).is_file():
        raise OutputError(
            f"{named(path)} is read by this command, and the result would replace it; write to another file"
        )
    own.add(place)


class FileState(NamedTuple):
    """A file at one moment: the key under which what was read from it may be cached."""

    path: Path
    mtime_ns: int
    size: int


def file_state(path: Path) -> FileState:
    """State of a file. Raises SpecError where it cannot be seen."""
    try:
        seen = path.stat()
    except OSError as error:
        raise _unreadable(path, error, SpecError) from error
    as_input(path)
    return FileState(path, seen.st_mtime_ns, seen.st_size)


_held: ContextVar[tuple[Path, bytes] | None] = ContextVar("held", default=None)


@contextlib.contextmanager
def held(name: str, content: bytes) -> Iterator[Path]:
    """A path from which every reader here takes `content`, without a file; messages have only its name."""
    path = _HELD / (Path(name).name[-80:] or "given.txt")
    token = _held.set((path, content))
    try:
        yield path
    finally:
        _held.reset(token)


@contextlib.contextmanager
def opened(path: Path, what: str, error: type[MedusaSimError]) -> Iterator[BinaryIO]:
    """A regular file, open to be read; `what` says in messages what it should be.

    Raises `error` for a folder, a device, a pipe or what the system refuses.
    """
    found = _held.get()
    if found is not None and found[0] == path:
        yield io.BytesIO(found[1])
        return
    if "\0" in str(path):
        raise error(f"{named(path)}: a file's name holds no NUL; give {what}")
    try:
        # Without O_NONBLOCK the opening of a pipe waits for a writer.
        with os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise error(f"{named(path)}: is no regular file; give {what}")
            as_input(path)
            yield file
    except IsADirectoryError:
        raise error(f"{named(path)}: is a folder; give {what}") from None
    except FileNotFoundError:
        raise error(f"{named(path)}: no such file; give {what}") from None
    except OSError as refused:
        raise _unreadable(path, refused, error) from refused


def read_bytes(path: Path, limit_bytes: int, what: str, error: type[MedusaSimError] = SpecError) -> bytes:
    """Content of a file of at most `limit_bytes`. Raises `error` for more and as `opened` does."""
    with opened(path, what, error) as file:
        content = file.read(limit_bytes + 1)
    if len(content) > limit_bytes:
        raise error(f"{named(path)}: more than {limit_bytes:,} bytes, the most that is read; give {what}")
    return content


def read_start(
    path: Path, limit_bytes: int, what: str, error: type[MedusaSimError] = SpecError
) -> tuple[bytes, bool]:
    """The first bytes of a file, and whether they are all of it. Raises `error` as `opened` does."""
    with opened(path, what, error) as file:
        return file.read(limit_bytes), not file.read(1)


def read_text(path: Path, limit_bytes: int, what: str, error: type[MedusaSimError] = SpecError) -> str:
    """UTF-8 text of a file (a byte order mark is left out), read as `read_bytes` does; same errors."""
    try:
        return read_bytes(path, limit_bytes, what, error).decode("utf-8-sig")
    except UnicodeDecodeError as wrong:
        raise error(f"{named(path)}: byte {wrong.start} is not UTF-8 text; save the file as UTF-8") from wrong


def named(path: Path | str) -> str:
    """A path as an error names it: whole, unless it is absurdly long; of what is held in memory the name."""
    text = str(path).removeprefix(f"{_HELD}{os.sep}")
    return text if len(text) <= 300 else shown(text)


def _unreadable(path: Path, refused: OSError, error: type[MedusaSimError]) -> MedusaSimError:
    reason = refused.strerror or " ".join(str(refused).split())[:200]
    return error(f"{named(path)}: cannot be read ({reason}); check the path and its permissions")
