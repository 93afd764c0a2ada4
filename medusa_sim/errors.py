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
from collections.abc import Iterable


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


def unknown_name(kind: str, given: str, allowed: Iterable[str]) -> str:
    """One line for a name that does not exist: the nearest one first, then every allowed name."""
    names = sorted(allowed)
    near = difflib.get_close_matches(given.lower(), names, n=1, cutoff=0.4)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"unknown {kind} {given!r}{hint} (known: {', '.join(names)})"
