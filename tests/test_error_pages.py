"""Pages of errors: every table under a command that exists, every command with the place of its rows."""

import re
from pathlib import Path

import accuracy
import pytest
import readme_errors
from common import page_commands, pages
from common.measured_pairs import WHEEL

ROOT = Path(__file__).resolve().parents[1]
WHOLE = [page for page in page_commands.PAGES if "validation" in page]
"""Pages that are tables of errors from top to end."""
COMMANDS = page_commands.pages_by_command()


def test_readme_says_what_the_pages_say():
    written = pages.read_section(readme_errors.README, "errors")
    assert written == pages.as_section(readme_errors.errors_section()), (
        "run `python benchmarks/readme_errors.py`"
    )


def test_a_line_follows_its_table(monkeypatch, tmp_path):
    for name in ("validation.md", "validation-engines.md", "accuracy.md"):
        text = (readme_errors.DOCS / name).read_text(encoding="utf-8")
        (tmp_path / name).write_text(re.sub(r"(\| every model, held out \| \d+ \|) [\d.]+", r"\1 77.7", text))
    monkeypatch.setattr(readme_errors, "DOCS", tmp_path)
    (load,) = (line for line in readme_errors.lines() if "Poisson" in line[0])
    assert load[2].endswith("-77.7 %")
    (tmp_path / "validation.md").write_text("no tables\n")
    with pytest.raises(ValueError, match="no table with the columns"):
        readme_errors.lines()


@pytest.mark.parametrize(("cells", "told"), [
    (["4.2 (+0.7; +20.5)"], "4.2 %"), (["10 %", "9.5 %", "31 %"], "9.5-31 %"), (["5 %", "5 %"], "5 %"),
])  # fmt: skip
def test_a_span_is_of_means(cells, told):
    assert readme_errors.span(cells) == told


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_exists_and_its_rows_have_a_place(command):
    assert all(page_commands.sources_of(command))
    for path in re.findall(r"(?:benchmarks|tests)/[\w/]+\.(?:py|sh)", command):
        assert (ROOT / path).is_file()
    if command.startswith("make "):
        assert f"\n{command.removeprefix('make ')}:" in (ROOT / "Makefile").read_text(encoding="utf-8")


def tables_without_command(text: str) -> list[str]:
    """First lines of tables that no command of their section stands over."""
    found, is_told, inside = [], False, False
    for line in text.splitlines():
        if line.startswith("<!-- end "):
            is_told = False
        if re.search(r"<!-- [\w-]+: |`(?:python |make |medusa-sim |benchmarks/|[A-Z]+=)", line):
            is_told = True
        if line.startswith("|") and not inside and not is_told:
            found.append(line)
        inside = line.startswith("|")
    return found


@pytest.mark.parametrize("page", WHOLE)
def test_every_table_of_errors_stands_under_its_command(page):
    assert tables_without_command((ROOT / page).read_text(encoding="utf-8")) == []


def test_a_table_alone_is_noticed():
    section = "<!-- a: python x -->\n\n| a |\n| --- |\n<!-- end a -->\n\n| b |\n"
    assert tables_without_command(section) == ["| b |"]


@pytest.mark.parametrize("kind", accuracy.BY)
def test_every_kind_of_errors_has_a_command_that_prints_it(kind):
    page = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
    assert accuracy.command_of(kind) in page
    assert any(kind in kinds for kinds in accuracy.SCRIPTS.values())


def test_files_that_a_script_reads_are_found():
    assert page_commands.files_of("power_fit") >= {"engines/power_mlenergy", "engines/plain_decode_mlenergy"}
    assert page_commands.files_of("readme_errors") == frozenset()
    assert WHEEL in page_commands.sources_of("python benchmarks/operator_rows.py")
    with pytest.raises(KeyError):
        page_commands.sources_of("medusa-sim validate nothing")
