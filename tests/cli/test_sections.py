"""Help pages in sections: every option once, the first ones first, no name that nothing has."""

import ast
import re
from pathlib import Path

import click
import pytest
from asking import commands
from click.testing import CliRunner

from medusa_sim.cli import cli
from medusa_sim.cli.modes import Moded
from medusa_sim.cli.options import FEWEST, FIRST, MOST_FIRST, Sectioned, sections
from medusa_sim.export import ENGINES
from medusa_sim.load.arguments import LOAD
from medusa_sim.plan.arguments import ARGUMENTS
from medusa_sim.plan.question import QUESTION
from medusa_sim.step.drafter import drafter_names

COMMANDS = {" ".join(words): command for words, command in commands()}


@pytest.mark.parametrize(
    ("earlier", "mode"),
    [
        ("validate --decoder f", "decoder"), ("validate --measured f", "rows"), ("validate f", "rows"),
        ("validate --tree-runs f", "trees"), ("validate --batch-curves=f", "curves"),
        ("measure --device nope", "operators"), ("measure --decoder-runs f --device nope", "runs"),
        ("measure --decoder-steps f --device nope", "steps"), ("calibrate --rows f", "rows"),
        ("calibrate --engine-bench f", "engine"),
    ],
)  # fmt: skip
def test_an_earlier_spelling_means_its_mode(earlier, mode):
    name, *args = earlier.split()
    command = cli.get_command(click.Context(cli), name)
    assert isinstance(command, Moded)
    assert command.meant(args) == mode
    one, other = (CliRunner().invoke(cli, line) for line in ([name, *args], [name, mode, *args]))
    assert (one.exit_code, str(one.exception)) == (other.exit_code, str(other.exception))


def _options(command: click.Command) -> list[str]:
    return [
        max(param.opts, key=len)
        for param in command.params
        if isinstance(param, click.Option) and not param.hidden
    ]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_page_lists_every_option_once(name):
    command = COMMANDS[name]
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
    command = COMMANDS["recommend"]
    asked = next(param for param in command.params if option in param.opts)
    text = " ".join(asked.get_help_record(click.Context(command)) or ())
    assert set(names) <= set(re.findall(r"[\w-]+", text))


def test_sections_name_options_that_exist_once():
    named = [name for names in sections().values() for name in names]
    assert len(named) == len(set(named))
    known = {option for command in COMMANDS.values() for option in _options(command)}
    assert set(named) <= known | {"--help"}
    assert set(FIRST) <= known


@pytest.mark.parametrize("known", [ARGUMENTS, LOAD, QUESTION])
def test_every_argument_stands_under_a_heading_of_the_help(known):
    assert {each.section for each in known.values()} - {""} <= set(sections())
    assert all(each.help.endswith((".", "]")) or "{names}" in each.help for each in known.values())


ROOT = Path(__file__).parents[2]
OTHER_PROGRAMS = (
    "acceptance/engine_counters.py", "calibrate/engine_bench.py", "export/", "measure/environment.py",
    "measure/spread.py", "plan/arguments.py", "specs/engine_facts.py",
)  # fmt: skip
OLD_SPELLINGS = ("cli/calibrate.py", "cli/measure.py", "cli/validate.py")


def _texts(path: Path) -> list[str]:
    """Every string of a module that is no docstring."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    constants = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in docs]
    return [node.value for node in constants if isinstance(node.value, str)]


def test_options_that_messages_name_exist():
    params = [param for command in COMMANDS.values() for param in command.params]
    known = {"--help", *(word for param in params for word in (*param.opts, *param.secondary_opts))}
    unknown = set()
    for path in (*ROOT.glob("medusa_sim/**/*.py"), *ROOT.glob("app/**/*.py")):
        place = str(path.relative_to(ROOT)).removeprefix("medusa_sim/")
        if not place.startswith((*OTHER_PROGRAMS, *OLD_SPELLINGS)):
            # `style="--name` is a name of CSS
            names = re.findall(r"(?<![\w\"-])--[a-z][a-z0-9]*(?:-[a-z0-9]+)*", "\n".join(_texts(path)))
            unknown |= {(place, name) for name in names if name not in known}
    assert unknown == set()
