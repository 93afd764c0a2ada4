"""What can be cut into parts, and scenarios by their arguments, as JSON carries them to another process."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from medusa_sim.data import user_data_dir
from medusa_sim.errors import UsageError
from medusa_sim.plan.scenario import Scenario
from medusa_sim.reading import TABLE_BYTES, read_bytes

if TYPE_CHECKING:
    import pyarrow as pa


Description: TypeAlias = dict[str, Any]
"""JSON that says everything a result depends on: `kind` names the work, `version` the package."""


class Work(Protocol):
    """Rows in numbered parts. Equal descriptions give equal parts, on any machine and in any order."""

    @property
    def description(self) -> Description:
        """From which `registry.work_of` makes the same work again."""
        ...

    @property
    def parts(self) -> int:
        """How many there are."""
        ...

    def computed(self, number: int) -> int:
        """Rows that are computed for a part, of which it may keep fewer: what progress counts."""
        ...

    def tables(self, number: int) -> Iterator[pa.Table]:
        """The rows of a part in chunks that fit in memory; all parts have the same columns."""
        ...


Case: TypeAlias = dict[str, Any]
"""Arguments by name: words, numbers, lists of these."""
Frozen: TypeAlias = tuple[tuple[str, Any], ...]
_SUFFIXES = (".json", ".toml", ".csv")
"""Of files that an argument may name, with or without a folder before them."""
_PLAIN = (str, int, float, bool, type(None))


def case_of(scenario: Scenario) -> Case:
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
    raise UsageError(f"{name} was given as an object of Python; parts are made from names: give its name")


def _is_path(name: str, value: str) -> bool:
    """Whether text names a file or folder here: by its name alone `vicuna-7b` is a model, not a folder."""
    if name == "data_dir":
        return True
    return (os.sep in value or value.endswith(_SUFFIXES)) and Path(value).expanduser().exists()


def digests(cases: Sequence[Case], **asked: object) -> dict[str, str]:
    """SHA-256 of every file that the rows depend on beside the shipped ones: with other content they differ.

    Files and models' folders that cases and `asked` name, and the specifications in the user's data folder.
    """
    values = {value for each in (*cases, asked) for value in each.values() if isinstance(value, str)}
    named = {path for path in map(Path, values) if path.is_absolute()}
    named |= {path / "config.json" for path in named}
    roots = {user_data_dir(case.get("data_dir")) for case in cases}
    folders = [root / kind for root in roots for kind in ("hardware", "profiles")]
    named |= {path for folder in folders for path in folder.rglob("*") if path.suffix in _SUFFIXES}
    return {
        str(path): hashlib.sha256(read_bytes(path, TABLE_BYTES, "a file of the scenario")).hexdigest()
        for path in sorted(named)
        if path.is_file()
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
