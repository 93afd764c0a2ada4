"""Files that users hand in: a size limit, then the package's own strict readers. Nothing is executed.

They stay in memory: none is written to the server's disk.
"""

from __future__ import annotations

from medusa_sim.errors import DataError
from medusa_sim.outside.limits import CONFIG_BYTES, UPLOAD_BYTES
from medusa_sim.reading import held
from medusa_sim.specs.hf_config import model_from_config
from medusa_sim.specs.model import Model


def checked(name: str, content: bytes, largest: int = UPLOAD_BYTES) -> bytes:
    """The content. Raises DataError where it is empty or too large."""
    if not content:
        raise DataError(f"{name}: the file is empty")
    if len(content) > largest:
        raise DataError(f"{name}: {len(content):,} bytes; at most {largest:,} are allowed")
    return content


def config_bytes(name: str, content: bytes) -> bytes:
    """A config.json that the package can read. Raises DataError or SpecError."""
    model_of(checked(name, content, CONFIG_BYTES))
    return content


def model_of(content: bytes) -> Model:
    """The model that a config.json describes."""
    with held("config.json", content) as path:
        return model_from_config(path)


def text(name: str, content: bytes) -> str:
    """The content as text. Raises DataError where it is none."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise DataError(f"{name}: not a text file in UTF-8") from None
