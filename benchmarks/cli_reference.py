"""Every help page as one Markdown document: `python benchmarks/cli_reference.py > docs/cli.md`."""

from __future__ import annotations

from collections.abc import Iterator

import click

from medusa_sim.cli import cli

_WIDTH = 100


def reference() -> str:
    """The text of docs/cli.md, which a test compares with the file."""
    head = "# Command line\n\nWritten by `make docs` from the help pages.\n"
    return "\n".join([head, *_pages("medusa-sim", cli, None)])


def _pages(name: str, command: click.Command, parent: click.Context | None) -> Iterator[str]:
    """The page of a command, then those of the commands in it."""
    context = click.Context(
        command, parent=parent, info_name=name, terminal_width=_WIDTH, max_content_width=_WIDTH
    )
    yield f"## {context.command_path}\n\n```text\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            found = command.get_command(context, inner)
            if found is not None:
                yield from _pages(inner, found, context)


if __name__ == "__main__":
    click.echo(reference(), nl=False)
