"""Scripts beside the package import names that exist: most of them run too long to be run by a test."""

import ast
import importlib
import importlib.util
import re
import runpy
import sys
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
def test_imports_of_a_script(script):
    pytest.importorskip("torch")
    missing = [f"{module}.{name}" for module, name in imported_names(script) if not exists(module, name)]
    assert missing == []


NEED_ROWS = [
    script for script in SCRIPTS if re.search(r"(?<!def )\bmeasured(_rows)?\(", script.read_text("utf-8"))
]
WORDS = {
    "kernels.py": ["left-out", "heads"],
    "guards.py": ["--question=load, Azure's hour, 3"],
    "kernel_rows.py": None,
    "engine_rows.py": None,
    "study.py": None,
}


@pytest.mark.parametrize("script", NEED_ROWS, ids=lambda path: path.name)
def test_a_script_without_its_rows_ends_in_one_line(script, tmp_path, monkeypatch):
    words = WORDS.get(script.name, [])
    if words is None:
        return
    if script.name == "acceptance.py":
        pytest.importorskip("torch")
    monkeypatch.setenv("MEDUSA_SIM_DATA", str(tmp_path / "nothing"))
    monkeypatch.syspath_prepend(str(script.parent))
    monkeypatch.setattr(sys, "argv", [str(script), *words])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(script), run_name="__main__")
    told = str(ended.value)
    assert "\n" not in told
    assert str(tmp_path / "nothing") in told
    assert "MEDUSA_SIM_DATA" in told


def test_scripts_are_found():
    assert {"validate_engine.py", "accuracy.py"} <= {script.name for script in SCRIPTS}
