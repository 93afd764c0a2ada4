"""Scripts beside the package import names that exist: most of them run too long to be run by a test."""

from __future__ import annotations

import ast
import importlib
import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = sorted((ROOT / "benchmarks").rglob("*.py"))


def imported_names(script: Path) -> list[tuple[str, str]]:
    """(module, name) of every `from medusa_sim... import name`, inside functions too."""
    return [
        (node.module, alias.name)
        for node in ast.walk(ast.parse(script.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "medusa_sim"
        for alias in node.names
    ]


def exists(module: str, name: str) -> bool:
    """Whether a module has the name, or is a package with a module of that name."""
    if hasattr(importlib.import_module(module), name):
        return True
    return importlib.util.find_spec(f"{module}.{name}") is not None


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT / "benchmarks")))
def test_imports_of_a_script(script: Path) -> None:
    pytest.importorskip("torch")
    missing = [f"{module}.{name}" for module, name in imported_names(script) if not exists(module, name)]
    assert missing == []


def test_scripts_are_found() -> None:
    assert {"validate_engine.py", "accuracy.py"} <= {script.name for script in SCRIPTS}
