"""Strict reading of specification files: every number says where it comes from.

A number is a TOML table `{ value, source, note? }`. A key that is missing, unknown, of the wrong
type, outside its range or without a source is a SpecError of one line that names file and key.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NoReturn, TypeAlias

import msgspec

from medusa_sim.errors import SpecError, shown

JsonTable: TypeAlias = Mapping[str, object]


class Sourced(msgspec.Struct, frozen=True, kw_only=True):
    """A number, the document it was read in, and a remark on how."""

    value: float
    source: str
    note: str = ""


def conversion_error(where: str, error: msgspec.ValidationError, root: str) -> SpecError:
    """SpecError naming the key for a msgspec message such as 'Expected `float`, got `str` - at `$.fit`'."""
    message, _, at = str(error).partition(" - at ")
    key = root + at.strip().strip("`").removeprefix("$")
    return SpecError(
        f"{where}: {key}: {message}; correct it, or write the table anew with `medusa-sim calibrate`"
    )


class Table:
    """A table that is read key by key; `finish` refuses what nobody asked for."""

    def __init__(self, where: str, data: object, key: str = "") -> None:
        self.where = where
        self.key = key
        if not isinstance(data, dict):
            raise SpecError(f"{where}: {key} = {shown(data)}: a table is needed")
        self._data: dict[str, object] = data
        self._asked: set[str] = set()

    def fail(self, key: str, problem: str) -> NoReturn:
        """Raise SpecError: file, dotted key, problem."""
        raise SpecError(f"{self.where}: {self.dotted(key)}: {problem}")

    def dotted(self, key: str) -> str:
        """The key as seen from the top of the file."""
        return f"{self.key}.{key}" if self.key and key else self.key or key

    def __contains__(self, key: str) -> bool:
        return key in self._data

    def __iter__(self) -> Iterator[str]:
        """Keys in the order of the file."""
        return iter(self._data)

    def raw(self, key: str, needed: str) -> object:
        """Value of a key that must exist; `needed` says what should stand there."""
        self._asked.add(key)
        if key not in self._data:
            self.fail(key, f"missing; {needed} is needed")
        return self._data[key]

    def table(self, key: str) -> Table:
        """A sub-table that must exist."""
        return Table(self.where, self.raw(key, "a table"), self.dotted(key))

    def text(self, key: str, *, pattern: str = "", what: str = "text") -> str:
        """A non-blank string that matches `pattern`."""
        value = self.raw(key, what)
        if not isinstance(value, str) or not value.strip() or "\n" in value:
            self.fail(key, f"given {shown(value)}; allowed: {what} on one line, not empty")
        if pattern and not re.fullmatch(pattern, value):
            self.fail(key, f"given {shown(value)}; allowed: {what}")
        return value

    def choice(self, key: str, allowed: Iterable[str]) -> str:
        """One of a few words."""
        words = tuple(allowed)
        value = self.raw(key, " or ".join(words))
        if not isinstance(value, str) or value not in words:
            self.fail(key, f"given {shown(value)}; allowed: {', '.join(words)}")
        return value

    def flag(self, key: str) -> bool:
        """A truth value: true or false."""
        value = self.raw(key, "true or false")
        if not isinstance(value, bool):
            self.fail(key, f"given {shown(value)}; allowed: true or false")
        return value

    def integer(self, key: str, low: int, high: int) -> int:
        """A bare whole number (its source stands elsewhere in the table)."""
        return int(self._checked(key, self.raw(key, "a whole number"), low, high, whole=True))

    def plain_number(self, key: str, low: float, high: float) -> float:
        """A bare number (its source stands elsewhere in the table)."""
        return float(self._checked(key, self.raw(key, "a number"), low, high))

    def number(self, key: str, low: float, high: float, unit: str, *, whole: bool = False) -> Sourced:
        """A sourced number: table `[key]` with `value` (low to high), `source` and perhaps `note`."""
        given = self.raw(key, f"a table with value ({unit}) and source")
        if not isinstance(given, dict):
            self.fail(key, f"given {shown(given)}; allowed: a table with value ({unit}) and source")
        entry = Table(self.where, given, self.dotted(key))
        value = entry._checked(
            "value", entry.raw("value", f"a number ({unit})"), low, high, unit=unit, whole=whole
        )
        if "source" not in entry:
            entry.fail("source", "missing; every number names the document it was read in")
        source = entry.text("source", what="the document that gives the number")
        note = entry.text("note", what="a remark") if "note" in entry else ""
        entry.finish()
        return Sourced(value=value, source=source, note=note)

    def _checked(
        self, key: str, value: object, low: float, high: float, *, unit: str = "", whole: bool = False
    ) -> float:
        kind = "a whole number" if whole else "a number"
        allowed = f"allowed: {kind} from {low:g} to {high:g}" + (f" {unit}" if unit else "")
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self.fail(key, f"given {shown(value)}; {allowed}")
        if not math.isfinite(value) or not low <= value <= high or (whole and value != int(value)):
            self.fail(key, f"given {shown(value)}; {allowed}")
        return value

    def finish(self) -> None:
        """Raise SpecError for the first key that was not asked for."""
        for key in self._data:
            if key not in self._asked:
                known = ", ".join(sorted(self._asked))
                self.fail(key, f"unknown key; allowed here: {known}")
