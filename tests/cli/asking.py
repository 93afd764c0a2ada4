"""The command line in this process, asked for a result, a table, a document or a refusal."""

import io
import json
from collections.abc import Iterator
from typing import Any

import click
import pandas as pd
from click.testing import CliRunner, Result

from medusa_sim.cli import cli

HEADS = "head,rank,accuracy,labels\n" + "".join(
    f"{head},{rank},{0.5 / (1 + head) / (1 + rank) ** 2},1000\n" for head in range(4) for rank in range(4)
)
"""Accuracies of four heads at four ranks."""


def commands(
    command: click.Command = cli, words: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command without commands of its own, with the words that lead to it."""
    if not isinstance(command, click.Group):
        yield words, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from commands(found, (*words, name))


def run(*words: object) -> Result:
    """What a command prints, and its exit code; an exception that is a bug is raised."""
    return CliRunner().invoke(cli, list(map(str, words)), prog_name="medusa-sim", catch_exceptions=False)


def answered(*words: object) -> Result:
    """A command that succeeds."""
    result = run(*words)
    assert result.exit_code == 0, result.stderr
    return result


def frame(*words: object) -> pd.DataFrame:
    """The rows of a command."""
    return pd.read_csv(io.StringIO(answered(*words, "--format", "csv").stdout))


def document(*words: object) -> Any:
    """What a command says in JSON."""
    return json.loads(answered(*words, "--format", "json").stdout)


def refused(told: str, *words: object, code: int) -> None:
    """A command that ends in one line, with nothing printed before it."""
    result = run(*words)
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1, result.stderr
    assert told in result.stderr
