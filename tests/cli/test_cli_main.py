"""The frame of the command line: help in sections, exit codes, quiet interruption, progress."""

import ast
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import click
import pyarrow as pa
import pytest
from asking import commands
from click.testing import CliRunner

from medusa_sim.cli import COMMANDS, LazyGroup, cli, progress
from medusa_sim.cli.help_page import FEWEST, FIRST, MOST_FIRST, Sectioned, sections
from medusa_sim.cli.values import Threads
from medusa_sim.export import ENGINES
from medusa_sim.load.arguments import LOAD
from medusa_sim.scenario.arguments import ARGUMENTS
from medusa_sim.scenario.question import QUESTION
from medusa_sim.step.drafter import drafter_names


def _existing() -> list[str]:
    return cli.list_commands(click.Context(cli))


def run(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from medusa_sim.cli import main; main()", *args],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )


def test_the_package_runs_as_a_module():
    module = subprocess.run(
        [sys.executable, "-m", "medusa_sim", "specs", "a41"], capture_output=True, text=True, check=False
    )
    assert module.returncode == 1
    assert module.stderr == run("specs", "a41").stderr


def test_help_lists_every_command_and_the_version_is_shown():
    result = CliRunner().invoke(cli, ["--help"])
    assert result.exit_code == 0
    for name in _existing():
        assert f"  {name} " in result.stdout
    assert {"sweep", "time", "roofline", "calibrate", "validate", "reproduce", "specs"} <= set(_existing())
    assert set(_existing()) <= set(COMMANDS)
    from medusa_sim import __version__

    assert __version__ in CliRunner().invoke(cli, ["--version"]).stdout
    result = CliRunner().invoke(cli, [])
    assert result.exit_code == 2
    assert "Commands:" in result.output


@pytest.mark.parametrize("name", _existing())
def test_every_command_explains_itself_with_two_examples(name):
    result = CliRunner().invoke(cli, [name, "--help"], prog_name="medusa-sim")
    assert result.exit_code == 0
    assert result.stdout.count(f"medusa-sim {name}") >= 3  # the usage line and two examples


def test_bugs_keep_their_traceback_and_interruption_is_quiet(monkeypatch):
    @click.command
    def broken() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(LazyGroup, "list_commands", lambda self, ctx: ["broken"])
    monkeypatch.setattr(LazyGroup, "get_command", lambda self, ctx, name: broken)
    result = CliRunner().invoke(cli, ["broken"])
    assert isinstance(result.exception, ZeroDivisionError)

    @click.command
    def long() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(LazyGroup, "list_commands", lambda self, ctx: ["long"])
    monkeypatch.setattr(LazyGroup, "get_command", lambda self, ctx, name: long)
    result = CliRunner().invoke(cli, ["long"])
    assert result.exit_code == 130
    assert "Traceback" not in result.output


def test_a_closed_pipe_is_quiet():
    code = (
        "import subprocess, sys\n"
        "p = subprocess.Popen([sys.executable, '-c', 'from medusa_sim.cli import main; main()',"
        " 'sweep', '--latency', 'roofline', '--batch', '1..512:1', '--format', 'csv'],\n"
        "  stdout=subprocess.PIPE, stderr=subprocess.PIPE)\n"
        "p.stdout.readline(); p.stdout.close()\n"
        "err = p.stderr.read().decode(); p.wait()\n"
        "print(p.returncode, 'Traceback' in err, 'Broken' in err)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["141", "False", "False"]


def test_names_complete_in_the_shell():
    environment = {"_MEDUSA_SIM_COMPLETE": "bash_complete", "COMP_CWORD": "3"}
    gpus = run(COMP_WORDS="medusa-sim sweep --gpu h100,a4", **environment).stdout
    assert "h100,a40" in gpus
    models = run(COMP_WORDS="medusa-sim sweep --model vicuna", **environment).stdout
    assert "vicuna-7b" in models


@pytest.mark.parametrize(
    ("given", "told"), [("1024", "at most"), ("99999", "to 1024"), ("0", "from 1"), ("x", "whole numbers")]
)
def test_more_threads_than_a_machine_can_start_are_refused(given, told, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    with pytest.raises(click.BadParameter, match=told):
        Threads().convert(given, None, None)
    assert Threads().convert("64", None, None) == 64


TABLES = [pa.table({"batch": [1, 2, 3]}), pa.table({"batch": [4]})]


def test_tables_pass_through_in_silence(capsys):
    assert list(progress.count_rows(TABLES, 4, "rows")) == TABLES
    assert capsys.readouterr() == ("", "")


def test_away_from_a_terminal_a_line_now_and_again(capsys, monkeypatch):
    monkeypatch.setattr(progress, "QUIET_S", 0.0)
    monkeypatch.setattr(progress, "_LINE_EVERY_S", 0.0)
    with progress.progress("shapes") as advance:
        advance(1, 4, 90.0)
        advance(4, 4, None)
    assert capsys.readouterr().err.splitlines() == ["1 of 4 shapes, 1:30 left", "4 of 4 shapes, 0:00 left"]


def test_a_terminal_sees_a_bar_once_it_takes_longer():
    code = (
        "import medusa_sim.cli.progress as p\np.QUIET_S = 0.0\n"
        "with p.progress('shapes') as advance:\n    advance(3, 4, 61.0)\n"
    )
    main, other = pty.openpty()
    done = subprocess.run([sys.executable, "-c", code], stderr=other, stdout=subprocess.PIPE, check=True)
    os.close(other)
    drawn = os.read(main, 65536).decode()
    os.close(main)
    assert "3 of 4 shapes" in drawn
    assert "1:01 left" in drawn
    assert done.stdout == b""


PAGES = {" ".join(words): command for words, command in commands()}


def _options(command: click.Command) -> list[str]:
    return [
        max(param.opts, key=len)
        for param in command.params
        if isinstance(param, click.Option) and not param.hidden
    ]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_lists_every_option_once(name):
    command = PAGES[name]
    options = _options(command)
    assert isinstance(command, Sectioned) or len(options) < FEWEST
    text = command.get_help(click.Context(command, info_name=name))
    listed = [line.split("/")[0].split() for line in text.splitlines() if line.startswith("  -")]
    names = [next(word for word in words if word.startswith("--")).rstrip(",") for words in listed]
    assert sorted(names) == sorted([*options, "--help"])
    if isinstance(command, Sectioned) and len(options) + 1 >= FEWEST:  # --help too
        first = [option for option in FIRST if option in options][:MOST_FIRST]
        assert names[: len(first)] == first


@pytest.mark.parametrize(("option", "names"), [("--drafter", drafter_names()), ("--export", ENGINES)])
def test_help_names_all_that_an_option_takes(option, names):
    command = PAGES["recommend"]
    asked = next(param for param in command.params if option in param.opts)
    text = " ".join(asked.get_help_record(click.Context(command)) or ())
    assert set(names) <= set(re.findall(r"[\w-]+", text))


def test_sections_name_options_that_exist_once():
    named = [name for names in sections().values() for name in names]
    assert len(named) == len(set(named))
    known = {option for command in PAGES.values() for option in _options(command)}
    assert set(named) <= known | {"--help"}
    assert set(FIRST) <= known


@pytest.mark.parametrize("known", [ARGUMENTS, LOAD, QUESTION])
def test_every_argument_stands_under_a_heading_of_the_help(known):
    assert {each.section for each in known.values()} - {""} <= set(sections())
    assert all(each.help.endswith((".", "]")) or "{names}" in each.help for each in known.values())


ROOT = Path(__file__).parents[2]
OTHER_PROGRAMS = (
    "acceptance/engine_counters.py", "engine_runs/load_generators.py", "export/",
    "lab/measure/clocks.py", "lab/measure/environment.py", "lab/measure/spread.py", "load/arguments.py",
    "scenario/arguments.py", "doubts/room.py", "doubts/of_answer.py", "models/state_rules.py",
    "app/views/own.py",
)  # fmt: skip
OF_ENGINES = {"--n-cpu-moe", "--num-draft-tokens", "--prefill-decode-interval"}
"""Options of llama.cpp, MLX and SGLang, in modules that name this project's, too."""
OLD_SPELLINGS = ("cli/calibrate.py", "cli/measure.py", "cli/validate.py")


def _texts(path: Path) -> list[str]:
    """Every string of a module that is no docstring."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    constants = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in docs]
    return [node.value for node in constants if isinstance(node.value, str)]


def test_options_that_messages_name_exist():
    params = [param for command in PAGES.values() for param in command.params]
    known = {
        "--help",
        *OF_ENGINES,
        *(word for param in params for word in (*param.opts, *param.secondary_opts)),
    }
    unknown = set()
    for path in (*ROOT.glob("medusa_sim/**/*.py"), *ROOT.glob("app/**/*.py")):
        place = str(path.relative_to(ROOT)).removeprefix("medusa_sim/")
        if not place.startswith((*OTHER_PROGRAMS, *OLD_SPELLINGS)):
            # `style="--name` is a name of CSS
            names = re.findall(r"(?<![\w\"-])--[a-z][a-z0-9]*(?:-[a-z0-9]+)*", "\n".join(_texts(path)))
            unknown |= {(place, name) for name in names if name not in known}
    assert unknown == set()
