"""A line of the shell -> the options of its command, by name, without running it."""

from __future__ import annotations

import shlex
from typing import Any

import click

from medusa_sim.cli import cli
from medusa_sim.errors import UsageError

COMMANDS = ("recommend", "sweep")
"""Commands whose options describe a scenario."""
_LISTS = {"gpus": "gpu", "models": "model"}


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
    for many, one in _LISTS.items():
        if many in names:
            values = names.pop(many)
            if len(values) > 1:
                raise UsageError(f"command names {len(values)} of {one}; a scenario has one")
            names[one] = values[0]
    return names
