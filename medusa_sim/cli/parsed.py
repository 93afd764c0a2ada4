"""A line of the shell -> the options of its command, by name, without running it."""

from __future__ import annotations

import shlex
from typing import Any

import click

from medusa_sim.cli import cli
from medusa_sim.errors import UsageError
from medusa_sim.plan.arguments import ARGUMENTS

COMMANDS = ("recommend", "sweep")
"""Commands whose options describe a scenario."""


def parsed(line: str) -> dict[str, Any]:
    """The options of `[medusa-sim] recommend|sweep ...`, defaults included.

    Raises UsageError for another command, an option that it does not take, or a list of GPUs or models.
    """
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise UsageError(f"command {line[:100]!r}: {error}") from error
    if words[:1] == ["medusa-sim"]:
        words = words[1:]
    if not words or words[0] not in COMMANDS:
        raise UsageError(f"command {line[:100]!r}: one of {', '.join(COMMANDS)} and its options is needed")
    if "--help" in words:
        raise UsageError(f"command {line[:100]!r}: --help describes no scenario")
    try:
        group = cli.make_context("medusa-sim", words)
        command = cli.get_command(group, words[0])
        assert command is not None  # noqa: S101  # both commands exist
        names = dict(command.make_context(words[0], words[1:], parent=group).params)
    except click.ClickException as error:
        raise UsageError(error.format_message()) from error
    for name, value in names.items():
        if name in ARGUMENTS and isinstance(value, tuple):
            if len(value) > 1:
                raise UsageError(f"command names {len(value)} of {name}; a scenario has one")
            names[name] = value[0]
    return names
