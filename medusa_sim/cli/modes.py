"""A command whose modes are subcommands; the earlier spelling, in which an option chose, still runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from medusa_sim.cli import say

_EARLIER = "medusa_sim.cli.modes"


class Moded(click.Group):
    """Modes of a command: `validate decoder FOLDER` is what `validate --decoder FOLDER` was.

    earlier: options of the earlier spelling and the mode that each chose; one that the mode does not have
    stood before its files.
    """

    def __init__(self, name: str, earlier: Mapping[str, str], *modes: click.Command, **more: Any) -> None:
        super().__init__(name, {mode.name or "": mode for mode in modes}, **more)
        self.earlier = earlier

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The modes in the order of their declaration."""
        del ctx
        return list(self.commands)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does; without a mode the one that the options choose."""
        if args and args[0] == "--help":
            return super().parse_args(ctx, args)
        named = bool(args) and args[0] in self.commands
        mode = args[0] if named else self.meant(args)
        if not named:
            ctx.meta[_EARLIER] = mode
        return super().parse_args(ctx, [mode, *self._as_now(mode, args[named:])])

    def _as_now(self, mode: str, args: Sequence[str]) -> Iterator[str]:
        """Words of an earlier spelling without the option that stood before the files of this mode."""
        has = {option for param in self.commands[mode].params for option in param.opts}
        for word in args:
            option, equals, value = word.partition("=")
            if self.earlier.get(option) != mode or option in has:
                yield word
            elif equals:
                yield value

    def invoke(self, ctx: click.Context) -> Any:
        """Run the mode; where it was not named, say in one line after it how it is called."""
        value = super().invoke(ctx)
        if name := ctx.meta.get(_EARLIER):
            say(f"this mode is called `{ctx.command_path} {name}` now")
        return value

    def meant(self, args: Sequence[str]) -> str:
        """The mode of an earlier spelling: the first where nothing chooses."""
        given = (word.partition("=")[0] for word in args)
        return next((self.earlier[word] for word in given if word in self.earlier), next(iter(self.commands)))
