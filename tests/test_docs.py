"""The README tells the truth: its commands run, every command has a line, its links lead somewhere."""

import ast
import importlib
import importlib.util
import re
import runpy
import shlex
import sys
from pathlib import Path

import click
import pytest
import refresh_docs
import validation
from click.testing import CliRunner
from common import pages

from medusa_sim.cli import cli

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = {
    name: (ROOT / name).read_text(encoding="utf-8")
    for name in ("README.md", "docs/guide.md", "docs/hybrids.md", "docs/load.md", "docs/which-setup.md")
}
"""Pages whose shell blocks are run; a text block behind one is what it prints."""
SLOW = {"train", "decode"}


def shown_commands() -> list[tuple[str, str | None]]:
    """Lines `medusa-sim ...` of the shell blocks, the last of a block with the output shown behind it."""
    inside = r"(?:(?!```).)*"
    pairs: list[tuple[str, str | None]] = []
    for page in PAGES.values():
        for found in re.finditer(
            rf"```sh\n({inside})```(?:\n\n```text\n({inside})```)?", page, flags=re.DOTALL
        ):
            lines = [line.strip() for line in found[1].splitlines() if line.startswith("medusa-sim ")]
            pairs += [(line, None) for line in lines[:-1]] + [(lines[-1], found[2])]
    return pairs


def test_the_pages_show_commands():
    assert len(shown_commands()) >= 12


@pytest.mark.parametrize(("line", "output"), shown_commands())
def test_shown_commands_run(line, output, tmp_path, monkeypatch):
    args = shlex.split(line, comments=True)[1:]
    if args[0] in SLOW:
        pytest.skip("takes minutes; the decoder's own tests run it")
    for name in ("profiles", "docs"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli, args)
    assert result.exit_code == 0, result.output
    assert output is None or refresh_docs.beginning_of(result.stdout, output) == output, "run `make docs`"


@pytest.mark.parametrize("name", cli.list_commands(click.Context(cli)))
def test_every_command_has_a_readme_line(name):
    assert f"`{name}`" in README


def test_the_command_reference_is_current():
    from refresh_docs import reference

    written = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert written == reference(), "run `make docs`"


def test_make_targets_of_the_readme_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"make ([a-z-]+)", "".join(PAGES.values())):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def test_no_page_names_a_machine_path():
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md")):
        assert not re.findall(r"/(?:work|home|root|tmp)/", path.read_text(encoding="utf-8")), path


def test_sections_of_the_validation_pages_are_current():
    """Tables that benchmarks/validation.py writes from the files that are part of the project."""
    for page, name, tables in (
        ("validation.md", "steps", validation.decoder_tables()),
        ("validation.md", "published", validation.published_tables()),
    ):
        written = re.findall(r"(?m)(?:^\|.*\n)+", pages.read_section(page, name))
        assert written == list(tables), "run `make docs`"


@pytest.mark.parametrize("page", sorted(path.name for path in ROOT.glob("docs/validation*.md")))
def test_sections_that_scripts_write_have_an_end(page):
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    begun = re.findall(r"(?m)^<!-- ([a-z-]+): ", text)
    assert begun
    assert begun == re.findall(r"(?m)^<!-- end ([a-z-]+) -->", text)
    assert all(pages.read_section(page, name).startswith(("## ", "|")) for name in begun)


_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")


def test_the_loop_of_an_engine_runs_and_its_page_shows_what_it_prints():
    """Numbers may be a little older than the terms of engines: 5 %, and 0.02 of an error."""
    written = (ROOT / "docs" / "engine-loop.md").read_text(encoding="utf-8")
    now = refresh_docs.loop_page()
    assert _NUMBER.sub("#", now) == _NUMBER.sub("#", written), "run `make docs`"
    for new, old in zip(_NUMBER.findall(now), _NUMBER.findall(written), strict=True):
        assert float(new) == pytest.approx(float(old), rel=0.05, abs=0.02), "run `make docs`"
    assert written.count("```sh") >= 4


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


UNTYPED = [script for script in SCRIPTS if script.parent.name == "engine"]
"""What mypy leaves out: scripts in the environment of an engine."""


@pytest.mark.parametrize("script", UNTYPED, ids=lambda path: path.name)
def test_imports_of_a_script(script):
    missing = [f"{module}.{name}" for module, name in imported_names(script) if not exists(module, name)]
    assert missing == []


BY_MODULES = {"hierarchy.py"}
"""Scripts whose modules read rows for them."""
NEED_ROWS = [
    script
    for script in SCRIPTS
    if script.parent.name == "benchmarks"
    and (re.search(r"(?<!def )\bmeasured(_rows)?\(", script.read_text("utf-8")) or script.name in BY_MODULES)
]
WORDS = {
    "kernels.py": ["left-out", "ranks"],
    "guards.py": ["--question=load, Azure's hour, 3"],
    "evidence_rule.py": None,
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
