"""Writes a fitted runtime where every command finds it by name: `profiles/runtimes/NAME.toml`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from medusa_sim.calibrate.engine_fit import FittedRuntime
from medusa_sim.errors import UsageError
from medusa_sim.specs.engine import Term
from medusa_sim.specs.runtime import FOLDER, runtime_aliases, runtime_names
from medusa_sim.writing import make_folder, write_text

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")


def check_runtime_name(name: str) -> None:
    """Refuse a name that is no file name, or that a shipped runtime has. Raises UsageError."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"--name {name!r}: letters, digits, '.', '_', '+' and '-' are allowed")
    taken = {*runtime_aliases(), *(known for known in runtime_names() if _is_shipped(known))}
    if name in taken:
        raise UsageError(f"--name {name}: a runtime of that name ships; choose another")


def _is_shipped(name: str) -> bool:
    from medusa_sim.data import find

    return find(FOLDER, f"{name}.toml") is None


def runtime_path(data_folder: Path, name: str) -> Path:
    """Where a runtime of the user's lies."""
    return data_folder / FOLDER / f"{name}.toml"


def write_runtime(data_folder: Path, fitted: FittedRuntime, inherits: str) -> Path:
    """The file that was written. Raises OutputError where it cannot be."""
    import tomlkit

    path = runtime_path(data_folder, fitted.runtime.name)
    make_folder(path.parent)
    document = tomlkit.document()
    document.add("inherits", inherits)
    document.add("title", fitted.runtime.title)
    engine = tomlkit.table()
    for name, term in fitted.terms.items():
        entry = tomlkit.inline_table()
        entry.update(_values(term))
        engine.add(name, entry)
    document.add("engine", engine)
    write_text(path, tomlkit.dumps(document))
    return path


def _values(term: Term) -> dict[str, Any]:
    """What is not a default of a term."""
    values: dict[str, Any] = {"value": term.value, "source": term.source}
    if term.band:
        values["band"] = term.band
    if term.valid:
        values["valid"] = term.valid
    if term.heldout_error is not None:
        values["heldout_error"] = term.heldout_error
    return values
