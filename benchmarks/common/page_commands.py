"""Commands that print the figures of the pages of errors, and where the rows are that each reads.

A command stands on a page in backticks or over a section (`<!-- NAME: COMMAND -->`). What a script reads is
found in its text and in that of the scripts that it imports: names of files of measured rows.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from common.measured_pairs import SOURCES, WHEEL, source_of
from common.script import ROOT

PAGES = ("README.md", "docs/accuracy.md", "docs/validation.md", "docs/validation-engines.md", "docs/local.md")
CLONE = "clone"
_OURS = "clone; measured on your machine"
OTHERS = {
    "make evidence": WHEEL,
    "make accuracy": "by file, above",
    "make validate": _OURS,
    "make validate-engine": _OURS,
    "make validate-local": _OURS,
    "medusa-sim validate decoder": CLONE,
    "medusa-sim validate served": "your own file",
    "medusa-sim reproduce": f"{CLONE}: tables of the papers, and figures read off",
    "python -m pytest tests/acceptance/test_acceptance_published.py": source_of(
        "acceptance/spechub_runs_7b.csv"
    ),
    "python -m pytest tests/latency/test_latent.py": source_of("engines/verify_attention_kernels.csv"),
    "python -m pytest tests/lab/validate/test_engines_published.py": source_of(
        "engines/vllm028_forward_steps.csv"
    ),
}
"""Commands that are no script, by how they begin, and where their rows are."""
_PRINTS = (*OTHERS, "python -m pytest", "medusa-sim validate")
"""How such a command begins, listed or not."""
_COMMAND = re.compile(r"<!-- [\w-]+: ([^\n]*?) -->|`([^`\n]+)`|^(python benchmarks/.*|medusa-sim .*)$", re.M)
_SCRIPT = re.compile(r"(?:python |=\S+ )benchmarks/(\w+)\.(?:py|sh)")
_FILE = re.compile(r"(?:measured|moe_tp|kernels_2026|engines|serving|acceptance|local|traces)/\w*")


def commands_of(page: str) -> list[str]:
    """Commands of a page that print figures, each once, without what follows the script."""
    text = (ROOT / page).read_text(encoding="utf-8").replace("\\`", "`")
    found = []
    for match in _COMMAND.finditer(re.sub(r"(?<=[^\n])\n(?=[^\n|])", " ", text)):
        told = (match[1] or match[2] or match[3]).strip()
        if script := _SCRIPT.search(told):
            found.append(script[0].partition(" ")[2] if told[0].isupper() else script[0])
        elif told.startswith(_PRINTS):
            known = [name for name in OTHERS if f"{told} ".startswith(f"{name} ")]
            found.append(known[0] if known else told)
    return list(dict.fromkeys(found))


@cache
def files_of(script: str) -> frozenset[str]:
    """Beginnings of names of files of rows that a script and the scripts it imports name."""
    path = _path(script)
    assert path is not None, script
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= {match[0] for match in [_FILE.match(node.value)] if match}
        elif isinstance(node, ast.Call):
            called = getattr(node.func, "id", "")
            names = [str(each.value) for each in node.args[:1] if isinstance(each, ast.Constant)]
            if called == "measured_rows":
                found |= {f"engines/{name}" for name in names}
            elif called == "measured":
                found |= {f"{name}/" for name in names if "/" not in name}
        elif isinstance(node, ast.ImportFrom | ast.Import):
            found |= {file for name in _imported(node) for file in files_of(name)}
    return frozenset(found)


_TABLES = {"measured_pairs", "evidence_rule", "evidence_rows", "accuracy", "study"}
"""Scripts that name files which they do not read for others."""


def _path(name: str) -> Path | None:
    """A script, or a module that scripts share; None of other modules."""
    folder = ROOT / "benchmarks"
    places = (folder / f"{name}.py", folder / "common" / f"{name}.py")
    return next((path for path in places if path.is_file()), None)


def _imported(node: ast.ImportFrom | ast.Import) -> Iterator[str]:
    names = [each.name for each in node.names]
    if isinstance(node, ast.ImportFrom) and node.module != "common":
        names = [(node.module or "").removeprefix("common.")]
    yield from (name for name in names if _path(name) is not None and name not in _TABLES)


def sources_of(command: str) -> tuple[str, ...]:
    """Where the rows of a command are. Raises KeyError for one of which nothing is known."""
    script = re.search(r"benchmarks/(\w+)\.(py|sh)", command)
    if script is None or script[2] == "sh":
        return (_OURS if script else OTHERS[command],)
    if script[1] == "accuracy":
        return (OTHERS["make accuracy"],)
    found: list[str] = []
    for file in sorted(files_of(script[1])):
        # of a folder, or a name that is filled in, any file may be read
        is_open = file.endswith("/")
        every = [source for begins, source in SOURCES.items() if begins.startswith(file)]
        found += every if is_open else [source_of(file)]
    return tuple(dict.fromkeys(found)) or (CLONE,)


def pages_by_command() -> dict[str, list[str]]:
    """Pages on which each command stands."""
    found: dict[str, list[str]] = {}
    for page in PAGES:
        for command in commands_of(page):
            found.setdefault(command, []).append(Path(page).stem)
    return dict(sorted(found.items()))
