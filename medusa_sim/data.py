"""Where specifications and profiles are found.

Two roots, in this order: the user's data (what `measure` and `calibrate` write), then the data that
ships with the package. The shipped data lies in `medusa_sim/_data` of a wheel and at the top of a
checkout (also of an editable install).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TypeAlias

from medusa_sim.errors import SpecError, UsageError, check_kind, shown

DataDir: TypeAlias = "str | os.PathLike[str] | None"

DATA_DIR_VARIABLE = "MEDUSA_SIM_DATA_DIR"
"""Environment variable that replaces the platform's user data folder."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,199}")
_PACKAGE = Path(__file__).resolve().parent


def user_data_dir(data_dir: str | os.PathLike[str] | None = None) -> Path:
    """Folder of the user's own data: `data_dir`, else $MEDUSA_SIM_DATA_DIR, else the platform's folder.

    It need not exist: `measure` and `calibrate` create it. Raises SpecError where it is a file.
    """
    chosen = data_dir if data_dir is not None else os.environ.get(DATA_DIR_VARIABLE) or None
    if chosen is None:
        import platformdirs

        return Path(platformdirs.user_data_dir("medusa-sim", appauthor=False))
    check_kind("data_dir", chosen, "the path of a folder", (str, os.PathLike))
    folder = Path(chosen).expanduser()
    if folder.exists() and not folder.is_dir():
        origin = "--data-dir" if data_dir is not None else f"${DATA_DIR_VARIABLE}"
        raise SpecError(f"{origin} {str(folder)!r} is a file; give a folder, which is created when needed")
    return folder


@cache
def shipped_dir() -> Path:
    """Folder that holds `hardware/` and `profiles/` as they were shipped."""
    wheel = _PACKAGE / "_data"
    root = wheel if wheel.is_dir() else _PACKAGE.parent
    if not (root / "hardware").is_dir():
        raise SpecError(
            f"no hardware folder in {root}: the installation is incomplete; install medusa-sim again"
        )
    return root


def data_roots(data_dir: str | os.PathLike[str] | None = None) -> tuple[Path, ...]:
    """Roots to search, the user's first."""
    return (user_data_dir(data_dir), shipped_dir())


def check_name(option: str, name: str) -> None:
    """Refuse a name that no file of the data may have, before one is written. Raises UsageError."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{option} {shown(name)}: letters, digits, '.', '_', '+' and '-' are allowed, a letter or digit "
            "first, 200 at most"
        )


def find(kind: str, name: str, data_dir: str | os.PathLike[str] | None = None) -> Path | None:
    """First file or folder `kind/name` in the roots, or None. `kind` may hold slashes, `name` may not.

    None too for a name that could lead out of the folder, or that no file may have.

    >>> find("hardware", "a40.toml").name
    'a40.toml'
    """
    check_kind("name", name, "text", (str,))
    if not _NAME.fullmatch(name):
        return None
    for root in data_roots(data_dir):
        path = root / kind / name
        if path.exists():
            return path
    return None


def stems(
    kind: str, suffixes: Iterable[str], data_dir: str | os.PathLike[str] | None = None
) -> tuple[str, ...]:
    """Sorted names (without suffix) of the files in folder `kind` of every root."""
    wanted = tuple(suffixes)
    names = {
        name.removesuffix(suffix)
        for root in data_roots(data_dir)
        if (root / kind).is_dir()
        for name in os.listdir(root / kind)  # noqa: PTH208  # every GPU is looked up so: no Path for each
        for suffix in wanted
        if name.endswith(suffix) and not name.startswith(".")
    }
    return tuple(sorted(names))
