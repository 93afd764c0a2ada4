"""TOML as this package writes it, read four times as fast as by the standard library's parser.

A hardware file has up to 10,000 lines, and every command reads one or more. What `calibrate` writes, and
most of what is written by hand, is a part of TOML that is JSON but for its keys: whole comment lines, tables,
numbers, flat lists and inline tables, on one line or a row a line. One pattern checks that a text is nothing
else, its tokens are spelled as JSON, and the C parser does the rest. Any other text is None here and goes
to tomllib, which also words every error.
"""

from __future__ import annotations

import json
import re
from typing import Any

_KEY = r"[A-Za-z0-9_-]++"
_TEXT = r'"[^"\\\x00-\x1f\x7f]*+"'
_LITERAL = r"'[^'\x00-\x1f\x7f]*+'"
_NUMBER = r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:e[+-]?[0-9]++)?+"
_SCALAR = rf"(?:{_TEXT}|{_LITERAL}|{_NUMBER}|true|false)"
_LINE = rf"(?:{_SCALAR}|[\[{{](?:{_SCALAR}|{_KEY} = |, |[\[\]{{}} ])*+)"
"""A value on one line. That it is whole, and the only one of its line, shows when it is read as JSON."""
_ENTRY = rf"\n{_KEY} = "
_VALUE = rf"(?:\[\n(?: ++{_LINE},\n)++\]|{_LINE})"
_PART = rf"(?:{_KEY}|{_TEXT})"
_HEADER = rf"\n\[(?:{_PART}(?:\.{_PART})*+|\[{_KEY}\])\]"
_COMMENT = r" *+#[^\x00-\x08\x0a-\x1f\x7f]*+"
_PLAIN = re.compile(rf"(?:(?:{_HEADER}|{_ENTRY}{_VALUE}|\n)(?:{_COMMENT})?+)*+")
_TOKEN = re.compile(rf"({_TEXT}|{_LITERAL}|{_COMMENT}|{_HEADER}|{_ENTRY}|{_KEY} = |,\n\])")
_NAME = ""
"""Key under which a table's header lies while its entries are read; no entry of such a text is named so."""


class _AsJson(dict[str, str]):
    """Each token's JSON, found once: few of them differ."""

    def __missing__(self, word: str) -> str:
        self[word] = found = _as_json(word)
        return found


def plain_toml(text: str) -> dict[str, Any] | None:
    """The tables of a text, as `tomllib.loads` gives them; None where the text is of no such form."""
    text = f"\n{text}"
    if (whole := _PLAIN.match(text)) is None or whole.end() < len(text):
        return None
    pieces = _TOKEN.split(text)
    pieces[1::2] = map(_AsJson().__getitem__, pieces[1::2])
    try:
        found = json.loads(f'[{{"{_NAME}":""{"".join(pieces)}}}]', object_pairs_hook=_once)
    except ValueError:  # a key given twice, an integer of more than 4,300 digits, an open bracket
        return None
    if sum(map(len, found)) - len(found) != len(re.findall(_ENTRY, text)):  # a = [1], b = 2 on one line
        return None
    return _nested([(table.pop(_NAME), table) for table in found])


def _as_json(word: str) -> str:
    if word[0] == '"':
        return word
    if word[0] == "'":
        return json.dumps(word[1:-1])
    if word.lstrip(" ")[0] == "#":
        return ""
    if word == ",\n]":
        return "]"
    if word.startswith("\n["):
        return f'}},{{"{_NAME}":{json.dumps(word[2:-1])}'
    key = f'"{word.strip()[:-2]}":'
    return f",{key}" if word[0] == "\n" else key


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError("a key is given twice")
    return table


def _nested(found: list[tuple[str, dict[str, Any]]]) -> dict[str, Any] | None:
    """The tables inside each other by their headers; None where two say the same."""
    root: dict[str, Any] = {}
    tables: dict[tuple[str, ...], dict[str, Any]] = {(): root}
    lists: dict[str, list[dict[str, Any]]] = {}
    seen = set()
    for header, entries in found:
        if header.startswith("["):
            name = header[1:-1]
            if name in root and name not in lists:
                return None
            root.setdefault(name, lists.setdefault(name, [])).append(entries)
            continue
        path = _path(header)
        if path in seen or not _opened(tables, path):
            return None
        seen.add(path)
        if not tables[path].keys().isdisjoint(entries):
            return None
        tables[path].update(entries)
    return root


def _path(header: str) -> tuple[str, ...]:
    if '"' not in header:
        return tuple(header.split(".")) if header else ()
    return tuple(part.strip('"') for part in re.findall(_PART, header))


def _opened(tables: dict[tuple[str, ...], dict[str, Any]], path: tuple[str, ...]) -> bool:
    """Makes the table of a path and those around it; False where an entry or a list has such a name."""
    if path in tables:
        return True
    *around, name = path
    outer = tuple(around)
    if not _opened(tables, outer) or name in tables[outer]:
        return False
    tables[outer][name] = tables[path] = {}
    return True
