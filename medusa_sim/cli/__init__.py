"""Command line: parse, call, render, exit code. No formula lives here.

stdout is data, stderr is everything else. Exit 0: ok. 1: an expected failure, one line. 2: wrong
usage. 3: a check ran and missed its threshold. 130: interrupted.

The group finds each command in its own module, and turns failures into one line. A command `foo` is the
object `foo` of module `medusa_sim.cli.foo`; nothing else needs to know of it.
"""

from __future__ import annotations

import errno
import functools
import importlib.util
import io
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

import click

from medusa_sim.errors import MedusaSimError, UsageError, names_meant, shown
from medusa_sim.outside.escaping import for_terminal, printable

COMMANDS = {
    "recommend": "Whether speculation pays, and with how many drafts or which tree.",
    "compare": "Which GPUs, split, precision, engine, drafter and drafts for a target.",
    "card": "The answer as a picture to send.",
    "load": "Requests over time: latency, goodput, policies of speculation.",
    "sweep": "Speedup over GPUs, models, batches, lengths and counts.",
    "check": "A running engine against its prediction: fine, or which part is off.",
    "roofline": "A model's operators on the roofline of a GPU.",
    "time": "The predicted time of every row of a file of operators.",
    "tree": "Candidate trees: the best of a size, pictures, other formats.",
    "acceptance": "Tokens per step: profiles, predictions, measurements.",
    "measure": "Times of the operators of models on this device.",
    "calibrate": "Fit kernels of a GPU, or an engine, to measured rows.",
    "validate": "Errors of predictions against measured rows.",
    "train": "Train a checkpoint that `decode` runs.",
    "decode": "Continue prompts with a real model, with and without drafts.",
    "reproduce": "The papers' tables and figures, predicted and published.",
    "specs": "GPUs, models, runtimes, profiles, prices: every number's source.",
    "app": "All of it in a browser.",
}
"""Line of --help for each command, in this order; a name without a module is not listed."""

INTERRUPTED = 130
BROKEN_PIPE = 141
LONGEST_ERROR = 1_000
"""Characters of an error line; a longer one (a value of kilobytes) loses its middle."""
_NO_OUTPUT = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF)
_OF_A_SCENARIO = ("recommend", "sweep")
"""Commands whose options describe a scenario."""


def say(line: str) -> None:
    """A line for people, on stderr: stdout is data."""
    click.echo(for_terminal(line), err=True)


def warn(lines: Iterable[str]) -> None:
    """Print warnings on stderr, a line each, alike in every command."""
    from medusa_sim.report.screen import warning_text

    for line in lines:
        say(warning_text(line))


def examples(*commands: str) -> str:
    """Text for the end of a help page: commands to copy."""
    return "\b\nExamples:\n" + "\n".join(f"  {command}" for command in commands)


class LazyGroup(click.Group):
    """Imports a command's module when the command is used, so that --help stays fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of the commands that exist, in the order of COMMANDS."""
        del ctx
        return [name for name in COMMANDS if importlib.util.find_spec(_module(name)) is not None]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, or None."""
        if cmd_name not in self.list_commands(ctx):
            return None
        command = getattr(importlib.import_module(_module(cmd_name)), cmd_name)
        assert isinstance(command, click.Command)  # noqa: S101  # a module that breaks the rule is a bug
        command.short_help = COMMANDS.get(cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands, as click writes it, without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name]) for name in self.list_commands(ctx)])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve as click does; an unknown command is refused with the nearest one and the whole list."""
        names = self.list_commands(ctx)
        if args and args[0] not in names and not args[0].startswith("-"):
            near = names_meant(args[0], names)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            ctx.fail(f"unknown command {shown(args[0])}{hint} (commands: {', '.join(names)})")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; exit quietly if stdout is a broken pipe."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            _forget_stdout()
            ctx.exit(BROKEN_PIPE)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Parse and run. What a user can fix is one line on stderr; a bug keeps its traceback."""
        from medusa_sim.reading.files import new_command

        new_command()
        given = tuple(sys.argv[1:] if args is None else args)
        extra.setdefault("obj", given)
        run: Callable[[], Any] = functools.partial(
            super().main, given, prog_name, complete_var, False, **extra
        )
        if not standalone_mode:
            return run()
        try:
            code = run()
            sys.stdout.flush()
        except click.exceptions.NoArgsIsHelpError as asked:
            asked.show()
            sys.exit(asked.exit_code)
        except click.ClickException as error:
            context = error.ctx if isinstance(error, click.UsageError) else None
            seen = "" if context is None else f" (see `{context.command_path} --help`)"
            _fail(f"{error.format_message()}{seen}", error.exit_code)
        except MedusaSimError as error:
            _fail(str(error), error.exit_code)
        except click.Abort:
            sys.exit(INTERRUPTED)
        except BrokenPipeError:
            _forget_stdout()
            sys.exit(BROKEN_PIPE)
        except OSError as error:
            if error.filename is not None:  # a file that the user named, or one below a folder of theirs
                name = shown(os.fsdecode(error.filename))
                _fail(f"{name}: {error.strerror}; check the path and its permissions", 1)
            if error.errno not in _NO_OUTPUT:
                raise
            _forget_stdout()
            _fail(f"the output cannot be written ({error.strerror}); free some room or choose -o FILE", 1)
        sys.exit(code if isinstance(code, int) else 0)


def _forget_stdout() -> None:
    """Point stdout at nothing, or Python complains again when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _module(command: str) -> str:
    return f"medusa_sim.cli.{command}"


def _fail(message: str, exit_code: int) -> NoReturn:
    """One line of what can be printed on stderr, then the exit code."""
    line = " ".join(message.split())
    if len(line) > LONGEST_ERROR:
        line = f"{line[: LONGEST_ERROR // 2]} ... {line[-LONGEST_ERROR // 3 :]}"
    say(f"Error: {printable(line)}")
    sys.exit(exit_code)


__all__ = ["cli", "main"]


@click.group(
    cls=LazyGroup,
    context_settings={"max_content_width": 120},
    epilog=examples(
        "medusa-sim recommend --gpu h100-sxm --model llama-3.1-8b --drafter eagle3 --batch 1..64",
        "medusa-sim compare --gpu h100-sxm,b200 --model llama-3.1-8b --tokens-per-s-per-user 50",
        "medusa-sim app",
    ),
)
@click.version_option(package_name="medusa-sim", prog_name="medusa-sim")
def cli() -> None:
    """Does speculative decoding pay on your GPU, model, engine and traffic, with how many drafts, and what
    does it gain?
    """


def main() -> None:
    """Entry point of the `medusa-sim` script."""
    # As Ctrl-C does it: half-written files are taken away before the process ends.
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores it
            signal.signal(number, lambda number, frame: sys.exit(128 + number))
    prepare_streams()
    # Figures are drawn into files; a notebook's backend is not installed everywhere.
    os.environ["MPLBACKEND"] = "agg"
    cli.main(prog_name="medusa-sim")


def prepare_streams() -> None:
    """Let stdout and stderr take any text, and stand for them where the shell closed them.

    Otherwise the first file that is opened would become standard output.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            # Writing to a stdout that is open for reading fails, and the failure is told where it matters.
            while (handle := os.open(os.devnull, os.O_WRONLY if name == "stderr" else os.O_RDONLY)) < number:
                pass
            if handle != number:
                os.close(handle)
            setattr(sys, name, os.fdopen(number, "w" if number else "r", encoding="utf-8", closefd=False))
        elif number and isinstance(stream := getattr(sys, name), io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def parsed(line: str) -> dict[str, Any]:
    """The options of `[medusa-sim] recommend|sweep ...` by name, defaults included; nothing is run.

    Raises UsageError for another command, an option that it does not take, or a list of GPUs or models.
    """
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise UsageError(f"command {line[:100]!r}: {error}") from error
    if words[:1] == ["medusa-sim"]:
        words = words[1:]
    if not words or words[0] not in _OF_A_SCENARIO:
        raise UsageError(
            f"command {line[:100]!r}: one of {', '.join(_OF_A_SCENARIO)} and its options is needed"
        )
    if "--help" in words:
        raise UsageError(f"command {line[:100]!r}: --help describes no scenario")
    try:
        group = cli.make_context("medusa-sim", words)
        command = cli.get_command(group, words[0])
        assert command is not None  # noqa: S101  # both commands exist
        names = dict(command.make_context(words[0], words[1:], parent=group).params)
    except click.ClickException as error:
        raise UsageError(error.format_message()) from error
    from medusa_sim.scenario.arguments import ARGUMENTS

    for name, value in names.items():
        if name in ARGUMENTS and isinstance(value, tuple):
            if len(value) > 1:
                raise UsageError(f"command names {len(value)} of {name}; a scenario has one")
            names[name] = value[0]
    return names
