"""Hostile names through the doors of the command line: folders, cells, records; every form of result."""

import csv
import io
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner
from hostile import NAMES
from models.test_patterns import LLAMA
from test_escaping import MARKDOWN, _Tags

from medusa_sim.cli import cli

SHOWN = [name for name in NAMES.values() if name.isprintable()]
FOLDERS = [" ".join(SHOWN[i::3]).replace("/", "\N{DIVISION SLASH}")[:200] for i in range(3)]
"""Three names of folders that hold all that can be shown."""
CHAIN = (
    "--gpu",
    "a40",
    "--drafter",
    "eagle",
    "--acceptance",
    "0.7,0.6,0.5",
    "--batch",
    "1,2",
    "--seq",
    "512",
)


def asked(*args: str) -> str:
    result = CliRunner().invoke(cli, args, prog_name="medusa-sim")
    assert result.exit_code == 0, result.stderr[-2_000:]
    for text in (result.stdout, result.stderr):
        assert all(line.isprintable() for line in text.replace("\t", "").split("\n"))
    return result.stdout


@pytest.fixture(params=FOLDERS, ids=["first", "second", "third"])
def model(request, tmp_path, monkeypatch) -> str:
    """The path of a config in a folder of that name, below the one that commands run in."""
    monkeypatch.chdir(tmp_path)
    folder = Path(request.param)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    return f"./{folder}/config.json"


def kinds(markdown: str) -> set[str]:
    """What stands in lines of Markdown beside plain text."""
    found = {part.type for token in MARKDOWN.parse(markdown) for part in token.children or ()}
    return found - {"text", "text_special", "softbreak"}


@pytest.mark.slow
def test_a_report_of_a_folder_with_a_hostile_name(model, tmp_path):
    asked("recommend", "--model", model, *CHAIN, "--report", "named")
    shutil.copytree(Path(model).parent, "plain")
    asked("recommend", "--model", "plain/config.json", *CHAIN, "--report", "other")
    tags = []
    for folder in ("named", "other"):
        parser = _Tags()
        parser.feed((tmp_path / folder / "report.html").read_text())
        # a longer name has more lines in the titles of pictures
        tags.append([tag for tag in parser.tags if tag not in ("code", "text")])
    assert tags[0] == tags[1]
    named, other = (kinds(Path(folder, "report.md").read_text()) for folder in ("named", "other"))
    assert named <= other | {"code_inline"}
    assert all(re.fullmatch(r"[a-zA-Z0-9._+-]{1,120}", path.name) for path in Path("named").iterdir())


def test_tables_of_a_folder_with_a_hostile_name(model):
    rows = ("sweep", "--model", model, *CHAIN, "--candidates", "1,2")
    assert kinds(asked(*rows, "--format", "md")) <= {"strong_open", "strong_close"}
    cells = csv.reader(io.StringIO(asked(*rows, "--format", "csv"), newline=""))
    assert not [cell for line in cells for cell in line if cell[:1] in "=@" and cell]
    name = Path(model).parent.name
    assert {row["model"] for row in json.loads(asked(*rows, "--format", "json"))["rows"]} == {name}
    said = asked("specs", model)
    assert "".join(name.split()) in "".join(said.split())  # lines end where the terminal does


def test_scripts_of_a_folder_with_a_hostile_name_run_nothing_of_it(model, tmp_path):
    """Run where `touch` alone is found: nothing is touched."""
    recommend = ("recommend", "--model", model, *CHAIN, "--export")
    compare = ("compare", "--model", model, "--gpu", "a40", "--gpus", "1", "--drafter", "eagle",
               "--acceptance", "0.7,0.6", "--batch", "1", "--engine", "vllm")  # fmt: skip
    doors = (
        asked(*recommend, "vllm", "--draft-path", NAMES["shell"], "--ab"),
        asked(*recommend, "sglang", "--draft-path", NAMES["quotes"]),
        asked(*recommend, "tensorrt-llm", "--drafter", "eagle3", "--draft-path", NAMES["comment"]),
        asked(*compare, "--draft-path", NAMES["shell"]),
    )
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "touch").symlink_to(shutil.which("touch") or "/bin/touch")
    before = sorted(os.listdir(tmp_path))  # noqa: PTH208
    for script in doors:
        # what is no command line is an answer for people: each line alone is tried
        for text in (script, *script.splitlines()):
            given = {"input": text, "cwd": tmp_path, "env": {"PATH": str(tools)}}
            subprocess.run(["/bin/sh"], capture_output=True, text=True, check=False, **given)
    assert before == [name for name in sorted(os.listdir(tmp_path)) if "serve.yaml" not in name]  # noqa: PTH208


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_cells_and_columns_of_rows_reach_every_form_as_text(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Path("rows.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["op", "m", "n", "k", "dtype", "note", name],
                                    ["up_proj", "64", "64", "64", "fp16", name, "x"]])  # fmt: skip
    command = ("time", "--gpu", "a40", "--ops", "rows.csv")
    result = CliRunner().invoke(cli, [*command, "--format", "csv"])
    assert result.exit_code == 0, result.stderr
    table = list(csv.reader(io.StringIO(result.stdout, newline="")))
    assert not [cell for line in table for cell in line if cell and cell[0] in "=@\t\r"]
    assert kinds(asked(*command, "--format", "md")) <= {"strong_open", "strong_close"}
    asked(*command, "--format", "table")


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_a_record_that_names_its_engine_and_model(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    histogram = {"acceptance_histogram": {"0": 40, "1": 60}, "num_spec_tokens": 1}
    record = {"model": name, "engine": name, **histogram}
    Path("record.json").write_text(json.dumps(record))
    command = ["acceptance", "from-engine", "record.json", "-o", "own.toml"]
    asked(*command)
    asked("acceptance", "show", "own.toml")
    result = CliRunner().invoke(cli, [*command, "--of", "another"])
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1].startswith("Error: ")
    assert result.stderr.rstrip("\n").replace("\n", "").isprintable()


@pytest.mark.parametrize("name", ["terminal", "directions", "comment", "heading"])
def test_a_profile_with_a_title_that_a_terminal_obeys_is_refused(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = json.dumps(NAMES[name])
    Path("own.toml").write_text(
        f'schema = 1\nkind = "curve"\ntitle = {text}\nsource = "x"\npoints = [[1, 1.0], [4, 2.0]]\n'
    )
    result = CliRunner().invoke(cli, ["acceptance", "show", "own.toml"])
    assert result.exit_code == 1
    assert "text on one line" in result.stderr
