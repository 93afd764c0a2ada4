"""TOML, JSON and lines of text: documents, read whole and checked before anything is made of them.

At most DEEPEST deep, each key once, every number finite.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from medusa_sim.errors import MedusaSimError, SpecError, shown
from medusa_sim.outside.limits import DEEPEST, LINE_CHARACTERS, SPEC_BYTES
from medusa_sim.reading.files import named, read_text

_LINE = re.compile(r"[^\r\n]+")


def read_toml(
    path: Path, what: str = "a TOML file", error: type[MedusaSimError] = SpecError
) -> dict[str, Any]:
    """Tables of a TOML file. Raises `error` for a syntax error, a key given twice, or tables too deep."""
    return toml_of(read_text(path, SPEC_BYTES, what, error), path, what, error)


def toml_of(
    text: str, where: Path | str, what: str, error: type[MedusaSimError] = SpecError
) -> dict[str, Any]:
    """Tables of TOML text, with the checks of `read_toml`; `where` names it in messages."""
    import tomli  # compiled: a hardware file of 300 kB in half of tomllib's time

    content: dict[str, Any] = parsed(where, what, error, tomli.loads, text)
    return content


def read_json(
    path: Path,
    limit_bytes: int,
    what: str,
    error: type[MedusaSimError] = SpecError,
    *,
    finite: bool = True,
) -> Any:
    """Content of a JSON file. Raises `error` also for a key given twice, NaN and Infinity.

    finite: False reads the latter two as null: publishers of models write them where no size depends on it,
    SGLang's benchmark as the request rate of a closed loop.
    """
    return json_of(read_text(path, limit_bytes, what, error), path, what, error, finite=finite)


def json_of(
    text: str,
    where: Path | str,
    what: str,
    error: type[MedusaSimError] = SpecError,
    *,
    finite: bool = True,
) -> Any:
    """Content of JSON text, with the checks of `read_json`; `where` names it in messages."""
    return parsed(where, what, error, _JSON if finite else _JSON_WITH_NAN, text)


def json_documents(
    text: str,
    where: Path | str,
    what: str,
    error: type[MedusaSimError] = SpecError,
    *,
    finite: bool = True,
) -> list[Any]:
    """The JSON document in `text`, or one a line (JSON lines); checked and refused as `json_of` does."""
    try:
        return [json_of(text, where, what, error, finite=finite)]
    except error:
        lines = lines_of(text)
        if next(lines, None) is None or next(lines, None) is None:
            raise
    return [json_of(line, where, what, error, finite=finite) for line in lines_of(text)]


def _each_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    table: dict[str, object] = {}
    for key, value in pairs:
        if key in table:
            raise ValueError(f"{shown(key)} is given twice; keep one")
        table[key] = value
    return table


def _not_finite(word: str) -> None:
    raise ValueError(f"holds {word}, which is no JSON number; write a finite number")


_JSON = json.JSONDecoder(object_pairs_hook=_each_once, parse_constant=_not_finite).decode
_JSON_WITH_NAN = json.JSONDecoder(object_pairs_hook=_each_once, parse_constant=lambda _: None).decode


def lines_of(text: str) -> Iterator[str]:
    """Lines of a text that hold more than blanks, one after another."""
    return (line for match in _LINE.finditer(text) if not (line := match[0]).isspace())


def short_lines_of(text: str) -> Iterator[str]:
    """Lines of a log or page; those of more than LINE_CHARACTERS hold no counter."""
    return (line for line in lines_of(text) if len(line) <= LINE_CHARACTERS)


def parsed(
    where: Path | str, what: str, error: type[MedusaSimError], parse: Callable[[str], Any], text: str
) -> Any:
    """What `parse` makes of a text: at most DEEPEST deep, numbers finite. Raises `error` in one line."""
    try:
        content = parse(text)
    except RecursionError:
        raise error(f"{named(where)}: lists or tables are nested too deep; give {what}") from None
    except ValueError as wrong:  # JSONDecodeError, TOMLDecodeError, integers of more than 4,300 digits
        if not text.strip():
            raise error(f"{named(where)}: is empty; give {what}") from None
        reason = " ".join(str(wrong).split())
        raise error(f"{named(where)}: cannot be parsed: {reason[:200]}; give {what}") from wrong
    level = [content]
    for _ in range(DEEPEST):
        below: list[Any] = []
        for entry in level:
            if isinstance(entry, dict):
                below += entry.values()
            elif isinstance(entry, list):
                below += entry
            elif isinstance(entry, float) and not math.isfinite(entry):
                key = next(_not_finite_at(content), "")
                raise error(f"{named(where)}:{key}: given nan or infinity; allowed: a finite number")
        if not below:
            return content
        level = below
    raise error(f"{named(where)}: lists or tables are nested more than {DEEPEST} deep; give {what}")


def _not_finite_at(content: object, key: str = " ") -> Iterator[str]:
    """Dotted keys of each nan or infinity."""
    if isinstance(content, float) and not math.isfinite(content):
        yield key
    if isinstance(content, dict):
        for name, child in content.items():
            yield from _not_finite_at(child, f"{key}.{name}".replace(" .", " "))
    if isinstance(content, list):
        for index, child in enumerate(content):
            yield from _not_finite_at(child, f"{key}[{index}]")
