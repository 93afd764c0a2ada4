"""Scenarios by their arguments, as JSON carries them to another process."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

from medusa_sim.errors import UsageError
from medusa_sim.plan.scenario import Scenario
from medusa_sim.reading import TABLE_BYTES, read_bytes

Case: TypeAlias = dict[str, Any]
"""Arguments by name: words, numbers, lists of these."""
Frozen: TypeAlias = tuple[tuple[str, Any], ...]
_PLAIN = (str, int, float, bool, type(None))


def case_of(scenario: Scenario) -> Case:
    """The arguments of a scenario as JSON holds them. Raises UsageError for objects that it cannot hold."""
    return {name: plain(name, value) for name, value in scenario.changed.items()}


def plain(name: str, value: object) -> object:
    """An argument as JSON holds it: paths absolute, tuples as lists. Raises UsageError for other objects."""
    if isinstance(value, os.PathLike):
        return str(Path(value).expanduser().resolve())
    if isinstance(value, str) and name != "data_dir" and os.sep in value and Path(value).exists():
        return str(Path(value).resolve())
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, tuple | list):
        return [plain(name, each) for each in value]
    raise UsageError(f"{name} was given as an object of Python; parts are made from names: give its name")


def digests(cases: Sequence[Case]) -> dict[str, str]:
    """SHA-256 of every file that a case names: with other content it would be another sweep."""
    values = {value for case in cases for value in case.values() if isinstance(value, str)}
    paths = sorted(path for path in map(Path, values) if path.is_absolute() and path.is_file())
    return {
        str(path): hashlib.sha256(read_bytes(path, TABLE_BYTES, "a file of the scenario")).hexdigest()
        for path in paths
    }


def frozen(case: Case) -> Frozen:
    """A case as a key of caches."""
    return tuple(
        (name, tuple(value) if isinstance(value, list) else value) for name, value in sorted(case.items())
    )


@lru_cache(maxsize=64)
def scenario_of(case: Frozen) -> Scenario:
    """The scenario of a case, kept between parts."""
    return Scenario(**dict(case))
