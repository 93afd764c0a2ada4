"""A command with several modes as subcommands; the earlier spelling, in which an option chose, still runs."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from medusa_sim.cli.options import Sectioned
from medusa_sim.errors import UsageError

_EARLIER = "medusa_sim.cli.modes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """One way of using a command."""

    says: str
    """What it does, in one line."""
    files: str = ""
    """The parameter that its arguments fill: an option of many files, or of one folder."""
    own: tuple[str, ...] = ()
    """Parameters of this mode; those of no mode are of all."""
    chosen_by: tuple[str, ...] = ()
    """Options that choose it in the earlier spelling; the first mode is meant where there is none."""
    metavar: str = "FILE..."


class Moded(click.Group):
    """The modes of a command: `validate decoder FOLDER` is what `validate --decoder FOLDER` was."""

    def __init__(self, whole: click.Command, modes: Mapping[str, Mode]) -> None:
        commands = {name: _command(whole, name, modes) for name in modes}
        super().__init__(
            whole.name, commands, help=whole.help, short_help=whole.short_help, epilog=whole.epilog
        )
        self.modes = modes

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The modes in the order of their declaration."""
        del ctx
        return list(self.modes)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does; without a mode the one that the options choose."""
        if args and (args[0] in self.commands or args[0] == "--help"):
            return super().parse_args(ctx, args)
        ctx.meta[_EARLIER] = name = self.meant(args)
        return super().parse_args(ctx, [name, *args])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the mode; where it was not named, say in one line after it how it is called."""
        value = super().invoke(ctx)
        if name := ctx.meta.get(_EARLIER):
            click.echo(f"this mode is called `{ctx.command_path} {name}` now", err=True)
        return value

    def meant(self, args: Sequence[str]) -> str:
        """The mode of an earlier spelling."""
        given = {word.partition("=")[0] for word in args}
        chosen = (name for name, mode in self.modes.items() if given & set(mode.chosen_by))
        return next(chosen, next(iter(self.modes)))


def _command(whole: click.Command, name: str, modes: Mapping[str, Mode]) -> click.Command:
    """One mode: the whole command with the options of other modes hidden, and arguments for its files."""
    mode = modes[name]
    others = {each for other in modes.values() for each in (*other.own, other.files)} - set(mode.own)
    params: list[click.Parameter] = []
    for param in whole.params:
        shown = copy.copy(param)
        if isinstance(shown, click.Option):
            shown.hidden = shown.hidden or shown.name in others or shown.name == mode.files
            params.append(shown)
    has_more = any(isinstance(param, click.Argument) for param in whole.params)
    if mode.files or has_more:
        words = click.Argument(
            ["more"], nargs=-1, type=click.Path(path_type=Path), metavar=f"[{mode.metavar}]"
        )
        params.append(words)

    def run(**given: Any) -> Any:
        files = given.pop("more", ())
        if files and mode.files and isinstance(given[mode.files], tuple):
            given[mode.files], files = (*given[mode.files], *files), ()
        elif files and mode.files and given[mode.files] is None:
            given[mode.files], *files = files
        if has_more:
            given["more"] = tuple(files)
        elif files:
            raise UsageError(f"{files[0]}: one {mode.metavar} is enough")
        assert whole.callback is not None  # noqa: S101  # every command has one
        return whole.callback(**given)

    return Sectioned(name, callback=run, params=params, help=mode.says, epilog=whole.epilog)
