"""Every help page as one Markdown document: `python benchmarks/cli_reference.py > docs/cli.md`."""

from __future__ import annotations

import click

from medusa_sim.cli import cli

_WIDTH = 100


def reference() -> str:
    """The text of docs/cli.md, which a test compares with the file."""
    top = click.Context(cli, info_name="medusa-sim", terminal_width=_WIDTH, max_content_width=_WIDTH)
    parts = ["# Command line\n\nWritten by `make docs` from the help pages.\n", _page("medusa-sim", cli, top)]
    for name in cli.list_commands(top):
        command = cli.get_command(top, name)
        if command is None:
            continue
        context = click.Context(
            command, parent=top, info_name=name, terminal_width=_WIDTH, max_content_width=_WIDTH
        )
        parts.append(_page(f"medusa-sim {name}", command, context))
        if isinstance(command, click.Group):
            parts += _nested(command, context)
    return "\n".join(parts)


def _nested(group: click.Group, context: click.Context) -> list[str]:
    """Pages of the commands of a command."""
    parts = []
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is not None:
            inner = click.Context(
                command, parent=context, info_name=name, terminal_width=_WIDTH, max_content_width=_WIDTH
            )
            parts.append(_page(inner.command_path, command, inner))
    return parts


def _page(title: str, command: click.Command, context: click.Context) -> str:
    return f"## {title}\n\n```text\n{command.get_help(context)}\n```\n"


if __name__ == "__main__":
    click.echo(reference(), nl=False)
