"""The house: imports only point up the list, heavy libraries are imported where they are used."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from house import END, HOUSE, MOST_LOOSE, START, house_text

PACKAGE = Path(__file__).resolve().parents[1] / "medusa_sim"

RANK = {name: rank for rank, room in enumerate(HOUSE) for name in room.names}
RANK["__main__"] = len(HOUSE)  # the door: python -m medusa_sim
ORDER = {room.names[0]: room.modules for room in HOUSE if room.modules}
HEAVY = {
    "dask", "distributed", "jinja2", "pandas", "scipy", "matplotlib", "pyarrow", "tomlkit", "rich", "torch",
    "transformers", "streamlit",
}  # fmt: skip
TORCH = {"torch", "transformers", "safetensors", "peft", "tokenizers"}
TORCH_ROOMS = {"lab/decoder", "lab/measure"}


def modules() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if "_data" not in path.parts)


def layer(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def may_use_torch(path: Path) -> bool:
    return "/".join(path.relative_to(PACKAGE).parts[:2]) in TORCH_ROOMS


@cache
def imported(path: Path) -> tuple[str, ...]:
    """Dotted names of everything that a file imports, wherever in it."""
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "medusa_sim":
            found += [f"medusa_sim.{name.name}" for name in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.append(node.module)
    return tuple(found)


def imported_at_once(path: Path) -> Iterator[str]:
    """First parts of what importing a file imports: its top level, TYPE_CHECKING blocks left out."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            yield from (name.name.split(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.split(".")[0]


def test_imports_point_up():
    wrong = []
    for path in modules():
        own = layer(path)
        if own == "__init__":
            assert set(imported_at_once(path)) == {"__future__", "typing"}
            continue
        assert own in RANK, f"give {own!r} its place in benchmarks/house.py"
        for parts in (name.split(".") for name in imported(path)):
            is_ours = parts[0] == "medusa_sim" and len(parts) > 1 and not parts[1].startswith("__")
            if is_ours and RANK[parts[1]] > RANK[own]:
                wrong.append(f"{path.relative_to(PACKAGE)} must not import {'.'.join(parts)}")
    assert not wrong


@pytest.mark.parametrize("room", ORDER)
def test_modules_of_a_room_import_from_those_before_them(room):
    place = {name: rank for rank, name in enumerate(ORDER[room])}
    found = {path.relative_to(PACKAGE / room).parts[0].removesuffix(".py") for path in modules()
             if layer(path) == room}  # fmt: skip
    assert found - {"__init__"} == set(place), "list every module of the room in benchmarks/house.py"
    for path in modules():
        if layer(path) != room or path.name == "__init__.py":
            continue
        own = path.relative_to(PACKAGE / room).parts[0].removesuffix(".py")
        for name in imported(path):
            parts = name.split(".")
            if parts[:2] == ["medusa_sim", room] and len(parts) > 2 and parts[2] != own:
                assert place[parts[2]] < place[own], f"{room}/{own} must not import {name}"


def test_no_two_modules_import_each_other_and_few_lie_loose():
    names = {".".join(("medusa_sim", *path.relative_to(PACKAGE).with_suffix("").parts)): path
             for path in modules()}  # fmt: skip
    found = {name: set(imported(path)) & set(names) for name, path in names.items()}
    circles = [(one, other) for one, others in found.items() for other in others if one in found[other]]
    assert not circles
    assert len(list(PACKAGE.glob("*.py"))) <= MOST_LOOSE


def test_the_rules_show_this_house():
    readme = (PACKAGE.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
    shown = readme[readme.index(START) : readme.index(END) + len(END)]
    assert shown == house_text(), "run `make docs`"


def test_acceptance_does_not_know_the_cost():
    cost = {
        f"medusa_sim.{name}"
        for name in ("operators", "latency", "step", "serving", "scenario", "grid", "plan")
    }
    of = {path: imported(path) for path in modules() if layer(path) == "acceptance"}
    assert not {
        path: name for path, names in of.items() for name in names if ".".join(name.split(".")[:2]) in cost
    }


def test_heavy_libraries_are_imported_where_they_are_used():
    kept = {path: HEAVY - (TORCH if may_use_torch(path) else set()) for path in modules()}
    found = {path: set(imported_at_once(path)) & heavy for path, heavy in kept.items()}
    assert not {path: names for path, names in found.items() if names}


def test_torch_stays_in_the_decoder():
    others = [path for path in modules() if layer(path) != "cli" and not may_use_torch(path)]
    found = {path: {name.split(".")[0] for name in imported(path)} & TORCH for path in others}
    assert not {path: names for path, names in found.items() if names}


def modules_after(*args: str) -> set[str]:
    """What a command leaves in sys.modules."""
    code = (
        "import sys\n"
        "from medusa_sim.cli import cli\n"
        f"try:\n    cli.main({list(args)!r})\n"
        "except SystemExit as end:\n    assert end.code in (None, 0, 3), end.code\n"  # 3: a check missed
        "print('LOADED', *sorted(sys.modules))\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return set(result.stdout.rpartition("LOADED")[2].split())


def loaded_after(*args: str) -> set[str]:
    """First parts of the names of the modules that a command leaves in sys.modules."""
    return {name.split(".")[0] for name in modules_after(*args)}


def test_help_imports_next_to_nothing():
    assert not loaded_after("--help") & (HEAVY | TORCH | {"numpy", "msgspec", "platformdirs"})
    code = (
        "import contextlib, io, sys\n"
        "from medusa_sim.cli import cli\n"
        "with contextlib.redirect_stdout(io.StringIO()):\n"
        "    for name in cli.list_commands(None):\n"
        "        try:\n            cli.main([name, '--help'])\n"
        "        except SystemExit as end:\n            assert not end.code, name\n"
        "print(*sorted(sys.modules))\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in result.stdout.split()}
    assert not loaded & (HEAVY | TORCH | {"numpy", "msgspec"})


WITHOUT = TORCH | {"streamlit", "pandas", "scipy", "matplotlib", "tomlkit"}


@pytest.mark.parametrize(
    "words",
    [
        ("recommend",),
        ("load", "--requests", "4", "--rate", "1"),
        ("check", "--gpu", "h100-sxm", "--model", "llama-3.1-8b", "--drafter", "eagle3", "--batch", "8",
         "--seq", "600", "--measured-tpot-ms", "5.1", "--accepted-by-position", "0.70,0.42,0.21"),
        ("specs", "h100-sxm"),
    ],
    ids=lambda words: words[0],
)  # fmt: skip
def test_the_simulator_loads_nothing_of_the_laboratory(words):
    assert not {name for name in modules_after(*words) if name.startswith("medusa_sim.lab")}


def test_a_sweep_loads_no_module_that_it_does_not_need():
    loaded = modules_after("sweep", "--batch", "1..64")
    assert not {name.split(".")[0] for name in loaded} & WITHOUT
    assert "numpy" in loaded  # this check sees what is loaded
    assert not {name for name in loaded if name.startswith("medusa_sim.lab")}
    loaded = {name for name in loaded if name.startswith("medusa_sim.")}
    unused = {f"medusa_sim.{name}" for name in ("models.hf_config", "load", "export", "setups")}
    assert not loaded & unused  # a named model reads no config; who sweeps asks for no load and no export
