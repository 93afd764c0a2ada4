"""The command line in this process, asked for a result, a table, a document or a refusal."""

import io
import json
from typing import Any

import pandas as pd
from click.testing import CliRunner, Result

from medusa_sim.cli import cli


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
