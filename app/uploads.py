"""Files that users hand in: a size limit, then the package's own strict readers. Nothing is executed.

They stay in memory: none is written to the server's disk.
"""

from __future__ import annotations

from medusa_sim.errors import DataError
from medusa_sim.models.gguf import model_from_gguf
from medusa_sim.models.gguf_header import MAGIC
from medusa_sim.models.hf_config import model_from_config
from medusa_sim.models.model import Model
from medusa_sim.outside.limits import CONFIG_BYTES, SENT_HEADER_BYTES, UPLOAD_BYTES
from medusa_sim.reading.files import held


def checked(name: str, content: bytes, largest: int = UPLOAD_BYTES) -> bytes:
    """The content. Raises DataError where it is empty or too large."""
    if not content:
        raise DataError(f"{name}: the file is empty")
    if len(content) > largest:
        raise DataError(f"{name}: {len(content):,} bytes; at most {largest:,} are allowed")
    return content


def model_bytes(name: str, content: bytes) -> bytes:
    """A config.json, or the start of a GGUF file, that can be read. Raises DataError or SpecError."""
    model_of(checked(name, content, SENT_HEADER_BYTES if is_gguf(content) else CONFIG_BYTES))
    return content


def model_of(content: bytes) -> Model:
    """The model that a config.json or the header of a GGUF file describes."""
    with held(called(content), content) as path:
        return model_from_gguf(path) if is_gguf(content) else model_from_config(path)


def is_gguf(content: bytes) -> bool:
    """Whether a file of weights was handed in, not a config.json."""
    return content.startswith(MAGIC)


def called(content: bytes) -> str:
    """What a command would name in its place."""
    return "model.gguf" if is_gguf(content) else "config.json"


def text(name: str, content: bytes) -> str:
    """The content as text. Raises DataError where it is none."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise DataError(f"{name}: not a text file in UTF-8") from None
