"""Every failure that a user can cause or mend. Anything else is a bug and keeps its traceback.

MedusaSimError
├── UsageError      arguments that contradict each other or a grid that is empty (exit 2)
├── SpecError       a GPU, model, runtime, tree or acceptance file that is missing or wrong
├── DataError       a table of rows with missing columns, text in numbers, mixed dtypes
├── CoverageError   a question outside what was measured or fitted
├── OutputError     a file or folder that cannot be written
└── ThresholdError  a check ran and missed its threshold (exit 3)
"""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable

SHOWN_CHARACTERS = 60
_SHORT = reprlib.Repr()
_SHORT.maxlevel = 3
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = SHOWN_CHARACTERS


class MedusaSimError(Exception):
    """Base of every expected failure. The message is one line: what, given, allowed, next step."""

    exit_code = 1


class UsageError(MedusaSimError):
    """Arguments that cannot be used together, or that are outside what a command takes."""

    exit_code = 2


class SpecError(MedusaSimError):
    """A specification (GPU, model, runtime, tree, acceptance profile) is missing or wrong."""


class DataError(MedusaSimError):
    """A table of measured rows is malformed."""


class CoverageError(MedusaSimError):
    """A prediction was asked for where nothing was measured or fitted."""


class OutputError(MedusaSimError):
    """A result could not be written; nothing half-written is left behind."""


class ThresholdError(MedusaSimError):
    """A validation ran to its end and missed the threshold that was asked for."""

    exit_code = 3


def check_kind(name: str, value: object, wanted: str, allowed: tuple[type, ...]) -> None:
    """Refuse a value of another kind than is wanted; True is no number. Raises UsageError."""
    if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
        raise UsageError(f"{name} {shown(value)}: {wanted} is needed")


def shown(given: object) -> str:
    """A value as an error names it: its repr on one line, at most SHOWN_CHARACTERS long.

    >>> shown("a" * 1000) == "'" + "a" * 25 + "..." + "a" * 28 + "'"
    True
    """
    try:
        text = _SHORT.repr(given)
    except ValueError:  # an integer of more digits than Python prints
        text = f"an integer of {given.bit_length()} bits" if isinstance(given, int) else "a value"
    text = " ".join(text.split())
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 3] + "..."


def install(extra: str) -> str:
    """What adds an extra of the project, as the README says it: the package is on no index.

    >>> install("app")
    "run pip install '.[app]' in the project's folder"
    """
    return f"run pip install '.[{extra}]' in the project's folder"


MOST_MEANT = 8
"""Names that an error offers where each of them may be meant."""


def names_meant(given: str, allowed: Iterable[str]) -> list[str]:
    """Names that may be meant: those that begin with what is given, else the nearest, or its family.

    >>> names_meant("gpt-5", ["gpt-oss-20b", "gpt-oss-120b", "opt-125m"])
    ['gpt-oss-120b', 'gpt-oss-20b']
    """
    names = sorted(allowed)
    typed = given[:SHOWN_CHARACTERS].strip().lower()
    meant = [name for name in names if typed and name.lower().startswith(typed)]
    if not meant:
        meant = difflib.get_close_matches(typed, names, n=1, cutoff=0.4)
        family = typed[: len(typed) - len(typed.lstrip(_LETTERS))]
        if len(family) >= _FAMILY and not any(name.lower().startswith(family) for name in meant):
            meant = [name for name in names if name.lower().startswith(family)] or meant
    return meant[:MOST_MEANT]


_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_FAMILY = 3
"""Letters that a family's name has at least."""


def unknown_name(kind: str, given: str, allowed: Iterable[str]) -> str:
    """One line for a name that does not exist: those that begin with it, else the nearest, then all.

    >>> unknown_name("model", "llama-4", ["llama-4-scout", "llama-4-maverick", "llama-7b"]).split(" (")[0]
    "unknown model 'llama-4'; did you mean one of llama-4-maverick, llama-4-scout?"
    """
    names = sorted(allowed)
    meant = names_meant(given, names)
    near = f"one of {', '.join(meant)}" if len(meant) > 1 else "".join(map(repr, meant))
    hint = f"; did you mean {near}?" if near else ""
    return f"unknown {kind} {shown(given)}{hint} (known: {', '.join(names)})"
