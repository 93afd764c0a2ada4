"""The header of a GGUF file: its keys and lists, and names, sizes and types of its tensors.

All stand at the start of the file, before the tensors, which are never read: a file of 50 GB takes as long as
one of 5. Format: ggml's description of GGUF (versions 2 and 3, little endian).
"""

from __future__ import annotations

import struct
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from medusa_sim.errors import SpecError, shown
from medusa_sim.outside.limits import HEADER_BYTES
from medusa_sim.reading.files import named, read_start

MAGIC = b"GGUF"
"""How such a file begins."""
_VERSIONS = (2, 3)
_MOST = 1_000_000
"""Keys, tensors or dimensions of a header; the largest published models have some 2,000 tensors."""
_LONGEST = 10_000_000
"""Entries of a list: tokens and merges of a vocabulary."""
_KEPT = 4_096
"""Entries of a list that are kept: a number a layer; vocabularies are counted alone."""
_WHOLE = "<Q"
_NUMBERS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_TEXT, _LIST = 8, 9
_TYPES = {
    0: "f32", 1: "f16", 2: "q4_0", 3: "q4_1", 6: "q5_0", 7: "q5_1", 8: "q8_0", 10: "q2_k", 11: "q3_k",
    12: "q4_k", 13: "q5_k", 14: "q6_k", 16: "iq2_xxs", 17: "iq2_xs", 18: "iq3_xxs", 19: "iq1_s", 20: "iq4_nl",
    21: "iq3_s", 22: "iq2_s", 23: "iq4_xs", 29: "iq1_m", 30: "bf16", 34: "tq1_0", 35: "tq2_0", 39: "mxfp4",
    40: "nvfp4",
}  # fmt: skip
"""Number of a tensor's type -> its name (ggml.h, enum ggml_type)."""


class Tensor(NamedTuple):
    """Name, weights and type of one tensor."""

    name: str
    weights: int
    type: str
    is_matrix: bool


class Header(NamedTuple):
    """What stands before the tensors. keys: numbers and texts; of a list its start, and `length` of each."""

    keys: dict[str, Any]
    lengths: dict[str, int]
    tensors: tuple[Tensor, ...]


class _Reader:
    """A place in the start of a file; every step is within it, or a struct.error."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.at = 0

    def number(self, form: str) -> Any:
        """The next number."""
        (value,) = struct.unpack_from(form, self.content, self.at)
        self.at += struct.calcsize(form)
        return value

    def text(self) -> str:
        """The next text: its length, then that many bytes."""
        length = self.number(_WHOLE)
        if length > len(self.content) - self.at:
            raise struct.error("a text ends beyond the header")
        start, self.at = self.at, self.at + length
        return self.content[start : self.at].decode("utf-8", "replace")

    def passed_texts(self, count: int) -> None:
        """Skip `count` texts: a vocabulary of 250,000 takes some hundredths of a second."""
        unpack, content, at = struct.Struct(_WHOLE).unpack_from, self.content, self.at
        try:
            for _ in repeat(None, count):
                at += unpack(content, at)[0] + 8
        except OverflowError:  # a place that no memory has
            raise struct.error("a text ends beyond the header") from None
        if at > len(content):
            raise struct.error("a list ends beyond the header")
        self.at = at

    def listed(self, count: int, kind: int) -> list[Any]:
        """The first entries of a list of `count` entries of one kind; the rest is skipped."""
        if kind == _TEXT:
            kept = [self.text() for _ in range(min(count, 1))]
            self.passed_texts(count - len(kept))
            return kept
        form = _NUMBERS[kind]
        size = struct.calcsize(form)
        if count * size > len(self.content) - self.at:
            raise struct.error("a list ends beyond the header")
        start, self.at = self.at, self.at + count * size
        return [struct.unpack_from(form, self.content, start + size * i)[0] for i in range(min(count, _KEPT))]


def read_header(path: Path) -> Header:
    """The header of a file. Raises SpecError in one line where it is none, is cut short or says too much."""
    what = "a GGUF file"
    for limit in (HEADER_BYTES // 8, HEADER_BYTES):  # most are short, those with large vocabularies 10 MB
        content, is_whole = read_start(path, limit, what)
        if content[:4] != MAGIC:
            raise SpecError(f"{named(path)}: begins with {shown(content[:4])}, not with 'GGUF'; give {what}")
        try:
            return _header(_Reader(content), path)
        except struct.error as cut:
            if is_whole:
                raise SpecError(
                    f"{named(path)}: its header is cut short ({cut}); give a whole GGUF file"
                ) from cut
    raise SpecError(f"{named(path)}: its header is longer than {HEADER_BYTES:,} bytes, the most that is read")


def _header(reader: _Reader, path: Path) -> Header:
    def refuse(problem: str) -> NoReturn:
        raise SpecError(f"{named(path)}: {problem}; give a whole GGUF file")

    reader.at = 4
    version, tensors, count = reader.number("<I"), reader.number(_WHOLE), reader.number(_WHOLE)
    if version not in _VERSIONS:
        refuse(f"GGUF version {version}; versions 2 and 3, little endian, are read")
    if max(tensors, count) > _MOST:
        refuse(f"{tensors:,} tensors and {count:,} keys, of each {_MOST:,} at most are read")
    keys: dict[str, Any] = {}
    lengths: dict[str, int] = {}
    for _ in range(count):
        key, kind = reader.text(), reader.number("<I")
        if key in keys:
            refuse(f"key {shown(key)} is given twice")
        if kind == _TEXT:
            keys[key] = reader.text()
        elif kind == _LIST:
            inner, length = reader.number("<I"), reader.number(_WHOLE)
            if length > _LONGEST or (inner != _TEXT and inner not in _NUMBERS):
                refuse(f"key {shown(key)}: a list of {length:,} entries of kind {inner}")
            keys[key], lengths[key] = reader.listed(length, inner), length
        elif kind in _NUMBERS:
            keys[key] = reader.number(_NUMBERS[kind])
        else:
            refuse(f"key {shown(key)}: a value of kind {kind}, which GGUF has not")
    return Header(keys, lengths, tuple(_tensor(reader, refuse) for _ in range(tensors)))


def _tensor(reader: _Reader, refuse: Any) -> Tensor:
    name, dimensions = reader.text(), reader.number("<I")
    if dimensions > 4:
        refuse(f"tensor {shown(name)}: {dimensions} dimensions")
    weights = 1
    sizes = [reader.number(_WHOLE) for _ in range(dimensions)]
    for size in sizes:
        weights *= size
    kind = reader.number("<I")
    reader.number(_WHOLE)  # where it lies
    if kind not in _TYPES:
        refuse(f"tensor {shown(name)}: type {kind}, which is not known")
    if not 0 < weights < 10**13:
        refuse(f"tensor {shown(name)}: {weights:.3g} weights")
    return Tensor(name, weights, _TYPES[kind], sum(size > 1 for size in sizes) > 1)
