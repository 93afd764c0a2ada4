"""A fitted runtime as a file of the user's, where every command finds it: `profiles/runtimes/NAME.toml`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from medusa_sim.data import check_name, find
from medusa_sim.engines.runtime import FOLDER, runtime_aliases, runtime_names
from medusa_sim.engines.term import Term
from medusa_sim.errors import UsageError
from medusa_sim.lab.calibrate.engine_fit import FittedRuntime
from medusa_sim.lab.calibrate.hardware_file import not_default
from medusa_sim.writing import make_folder, write_text


def check_runtime_name(name: str) -> None:
    """Refuse a name that is no file name, or that a shipped runtime has. Raises UsageError."""
    check_name("--name", name)
    taken = {*runtime_aliases(), *(known for known in runtime_names() if _is_shipped(known))}
    if name in taken:
        raise UsageError(f"--name {name}: a runtime of that name ships; choose another")


def _is_shipped(name: str) -> bool:
    return find(FOLDER, f"{name}.toml") is None


def runtime_path(data_folder: Path, name: str) -> Path:
    """Where a runtime of the user's lies."""
    return data_folder / FOLDER / f"{name}.toml"


def _range_of(term: Term) -> dict[str, Any]:
    """`measured` as a file says it; nothing where the term has none."""
    return {} if term.measured is None else {"measured": msgspec.to_builtins(not_default(term.measured))}


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
        entry.update(msgspec.to_builtins(not_default(term)) | _range_of(term))
        engine.add(name, entry)
    document.add("engine", engine)
    write_text(path, tomlkit.dumps(document))
    return path
