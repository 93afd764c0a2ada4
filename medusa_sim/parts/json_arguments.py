"""Arguments of a scenario as JSON carries them to another process, and what they rest on there."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

from medusa_sim.data import user_data_dir
from medusa_sim.errors import UsageError
from medusa_sim.outside.limits import TABLE_BYTES
from medusa_sim.reading.files import read_bytes
from medusa_sim.scenario.scenario import Scenario

JsonArguments: TypeAlias = dict[str, Any]
"""Arguments by name: words, numbers, lists of these."""
Frozen: TypeAlias = tuple[tuple[str, Any], ...]
_SUFFIXES = (".json", ".toml", ".csv")
"""How files end that an argument may name, with or without a folder before them."""
_PLAIN = (str, int, float, bool, type(None))


def json_arguments(scenario: Scenario) -> JsonArguments:
    """The arguments of a scenario as JSON holds them. Raises UsageError for objects that it cannot hold."""
    return {name: plain(name, value) for name, value in scenario.changed.items()}


def plain(name: str, value: object) -> object:
    """An argument as JSON holds it: paths absolute, tuples as lists. Raises UsageError for other objects."""
    if isinstance(value, os.PathLike) or (isinstance(value, str) and _is_path(name, value)):
        return str(Path(value).expanduser().resolve())
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, tuple | list):
        return [plain(name, each) for each in value]
    raise UsageError(
        f"{name} was given as an object of Python; parts are made from names: pass its name instead"
    )


def _is_path(name: str, value: str) -> bool:
    """Whether text names a file or folder here: by its name alone `vicuna-7b` is a model, not a folder."""
    if name == "data_dir":
        return True
    return (os.sep in value or value.endswith(_SUFFIXES)) and Path(value).expanduser().exists()


def digests(every: Sequence[JsonArguments], **asked: object) -> dict[str, str]:
    """SHA-256 of every file that the rows depend on beside the shipped ones: with other content they differ.

    Files and models' folders that `every` and `asked` name, and the specifications in the user's data folder.
    """
    values = {value for each in (*every, asked) for value in each.values() if isinstance(value, str)}
    named = {path for path in map(Path, values) if path.is_absolute()}
    named |= {path / "config.json" for path in named}
    roots = {user_data_dir(each.get("data_dir")) for each in every}
    folders = [root / kind for root in roots for kind in ("hardware", "profiles")]
    named |= {path for folder in folders for path in folder.rglob("*") if path.suffix in _SUFFIXES}
    return {
        str(path): hashlib.sha256(read_bytes(path, TABLE_BYTES, "a file of the scenario")).hexdigest()
        for path in sorted(named)
        if path.is_file()
    }


def frozen(arguments: JsonArguments) -> Frozen:
    """The same as a key of caches."""
    return tuple(
        (name, tuple(value) if isinstance(value, list) else value)
        for name, value in sorted(arguments.items())
    )


@lru_cache(maxsize=64)
def scenario_of(arguments: Frozen) -> Scenario:
    """The scenario with these arguments, kept between parts."""
    return Scenario(**dict(arguments))
