"""Files that users hand in: a size limit, then the package's own strict readers. Nothing is executed."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from medusa_sim.errors import DataError, SpecError
from medusa_sim.specs.hf_config import model_from_config
from medusa_sim.specs.model import Model

LARGEST_BYTES = 1_000_000


def checked(name: str, content: bytes, largest: int = LARGEST_BYTES) -> bytes:
    """The content. Raises DataError where it is empty or too large."""
    if not content:
        raise DataError(f"{name}: the file is empty")
    if len(content) > largest:
        raise DataError(f"{name}: {len(content):,} bytes; at most {largest:,} are allowed")
    return content


def config_bytes(name: str, content: bytes) -> bytes:
    """A config.json that the package can read. Raises DataError or SpecError."""
    model_of(checked(name, content))
    return content


@contextmanager
def as_file(name: str, content: bytes) -> Iterator[Path]:
    """The content as a file that the package's readers take, gone afterwards; its name kept for messages."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / (Path(name).name[-80:] or "given.txt")
        path.write_bytes(checked(name, content))
        yield path


def model_of(content: bytes) -> Model:
    """The model that a config.json describes."""
    with as_file("config.json", content) as path:
        try:
            return model_from_config(path)
        except SpecError as error:  # the path is ours, the name the user's
            raise SpecError(str(error).replace(str(path), "config.json")) from None


def text(name: str, content: bytes) -> str:
    """The content as text. Raises DataError where it is none."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise DataError(f"{name}: not a text file in UTF-8") from None
