"""The README tells the truth: its commands run, every command has a line, its links lead somewhere."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from medusa_sim.cli import cli

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SLOW = {"train", "decode"}


def readme_commands() -> list[str]:
    """Lines `medusa-sim ...` of the README's shell blocks."""
    blocks = re.findall(r"```sh\n(.*?)```", README, flags=re.DOTALL)
    lines = [line.removeprefix("$ ").strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.startswith("medusa-sim ")]


def test_the_readme_shows_commands() -> None:
    assert len(readme_commands()) >= 8


@pytest.mark.parametrize("line", readme_commands())
def test_readme_commands_run(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    args = shlex.split(line, comments=True)[1:]
    if args[0] in SLOW:
        pytest.skip("takes minutes; the decoder's own tests run it")
    for name in ("profiles", "docs"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli, args)
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("name", cli.list_commands(click.Context(cli)))
def test_every_command_has_a_readme_line(name: str) -> None:
    assert f"`{name}`" in README


def test_the_command_reference_is_current() -> None:
    from medusa_sim.cli.reference import reference

    written = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert written == reference(), "run `make docs`"


def test_make_targets_of_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"make ([a-z-]+)", README):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


@pytest.mark.parametrize(
    "page", [path.relative_to(ROOT) for path in (ROOT / "README.md", *ROOT.glob("docs/*.md"))]
)
def test_links_lead_somewhere(page: Path) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        if not target.startswith(("http", "mailto")):
            assert (ROOT / page.parent / target).exists(), target


def test_no_page_names_a_machine_path() -> None:
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md")):
        assert not re.findall(r"/(?:work|home|root|tmp)/", path.read_text(encoding="utf-8")), path


def test_the_validation_page_is_current() -> None:
    """What benchmarks/validation.py writes from the files that are part of the project."""
    spec = importlib.util.spec_from_file_location("validation_page", ROOT / "benchmarks" / "validation.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (ROOT / "docs" / "validation.md").read_text(encoding="utf-8") == module.page(), "run `make docs`"
