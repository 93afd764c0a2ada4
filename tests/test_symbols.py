"""Symbols are Python: files of data name no module, class or function."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TABLES = [
    path
    for top in ("medusa_sim", "profiles", "hardware")
    for path in sorted((ROOT / top).rglob("*.toml"))
    if "_data" not in path.parts
]
SYMBOL = re.compile(r"[a-z_]+(\.[a-z_]+)*:[A-Za-z_]+")
"""`module:name`."""
MODULES = {path.stem for path in (ROOT / "medusa_sim").rglob("*.py")}


def texts(value: object) -> Iterator[str]:
    """Every text in a file of data."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from texts(each)


@pytest.mark.parametrize("path", TABLES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_file_of_data_names_python(path):
    every = texts(tomllib.loads(path.read_text(encoding="utf-8")))
    named = [
        text for text in every
        if SYMBOL.fullmatch(text) and text.partition(":")[0].rpartition(".")[2] in MODULES
    ]  # fmt: skip
    assert not named


LAZY = ("__init__.py", "cli/__init__.py")
"""The Python face and the commands, by name."""


def test_no_other_module_finds_one_by_a_text():
    package = ROOT / "medusa_sim"
    found = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if re.search(r"getattr\(\s*(importlib\.)?import_module\(", path.read_text(encoding="utf-8"))
    }
    assert found <= set(LAZY)
