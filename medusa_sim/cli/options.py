"""Options that mean the same in every command.

Help pages of commands with many options list those that matter first, the others by what they are about.
"""

from __future__ import annotations

import functools
import importlib.util
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from medusa_sim.cli import say
from medusa_sim.cli.output import FORMATS, Output, ReportPlace
from medusa_sim.cli.values import NAMES, RUNTIME, NameType
from medusa_sim.errors import UsageError
from medusa_sim.plan.arguments import (
    ARGUMENTS,
    FLAG,
    FOLDER,
    NUMBER,
    PATH,
    WHOLE,
    Argument,
    Declared,
    argument,
    declared,
)

if TYPE_CHECKING:
    from medusa_sim.acceptance.engine_counters import AcceptanceCounts
    from medusa_sim.plan.scenario import Scenario


Command = Callable[..., Any]


class PositiveFloat(click.FloatRange):
    """A finite number above 0; click's own range lets nan pass."""

    def __init__(self) -> None:
        super().__init__(min=0.0, min_open=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number. Fails for nan and infinity as for what is out of range."""
        number = click.FLOAT.convert(value, param, ctx)
        if not 0.0 < number < math.inf:
            self.fail(f"{value} is not a finite number above 0", param, ctx)
        return number


def _data_dir(ctx: click.Context, param: click.Parameter, value: Path | None) -> Path | None:
    """The folder; that it is not there yet is said, since then only shipped data is found."""
    del ctx, param
    if value is not None and not value.expanduser().is_dir():
        say(f"--data-dir {value}: no such folder, so only shipped data is found")
    return value


def is_given(option: str) -> bool:
    """Whether an option of the running command was typed."""
    source = click.get_current_context().get_parameter_source(option)
    return source is not click.core.ParameterSource.DEFAULT


def output_options(command: Command) -> Command:
    """--format, -o/--output, --wide and --data-dir; the command gets `output` (an Output) and `data_dir`."""

    @click.option(
        "--format",
        "format_",
        type=click.Choice(FORMATS),
        default=None,
        help="Form of the result [default: from the suffix of -o, else table]. JSON has full precision.",
    )
    @click.option(
        "-o",
        "--output",
        "output_path",
        type=click.Path(path_type=Path),
        default=None,
        help="Write the result to this file instead of stdout (parquet needs one).",
    )
    @click.option(
        "--wide",
        "is_wide",
        is_flag=True,
        help="Every column of a table [default: as many as fit 120 characters].",
    )
    @click.option(
        "--data-dir",
        type=click.Path(path_type=Path, file_okay=False),
        default=None,
        callback=_data_dir,
        help=ARGUMENTS["data_dir"].help,
    )
    @functools.wraps(command)
    def wrapped(
        *args: Any, format_: str | None, output_path: Path | None, is_wide: bool, **kwargs: Any
    ) -> Any:
        return command(*args, output=Output.of(format_, output_path, is_wide=is_wide), **kwargs)

    return wrapped


class ArgumentOption(click.Option):
    """The option of a declared argument; `{names}` in its help is what its type knows, read when shown."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Option and help."""
        record = super().get_help_record(ctx)
        if record is None or not isinstance(self.type, NameType) or "{names}" not in record[1]:
            return record
        *names, last = self.type.known(None)
        return record[0], record[1].replace("{names}", f"{', '.join(names)} or {last}")


def _type(argument: Argument) -> Any:
    """What click reads an argument as."""
    if argument.names or argument.choices:
        return NAMES[argument.names] if argument.names else click.Choice(argument.choices)
    if argument.type is WHOLE:
        least, most = (None if end is None else int(end) for end in (argument.least, argument.most))
        return click.IntRange(least, most)
    if argument.type is NUMBER:
        return _number(argument)
    if argument.type in (PATH, FOLDER):
        return click.Path(path_type=Path, file_okay=argument.type is PATH)
    return str


def _number(argument: Argument) -> click.ParamType[float]:
    """A number's range."""
    least, above, most = argument.least, argument.above, argument.most
    if (above, most) == (0, None):
        return PositiveFloat()
    if least is above is most is None:
        return click.FLOAT
    return click.FloatRange(least if above is None else above, most, min_open=above is not None)


def option(argument: Argument, **changes: Any) -> Callable[[Command], Command]:
    """The option of an argument, which the command gets by the argument's name; changes: as of click."""
    flag = argument.type is FLAG
    typed: dict[str, Any] = {"help": argument.help, "default": argument.default, "metavar": argument.metavar}
    if flag:
        typed["is_flag"] = True
    elif argument.many:
        typed |= {"type": _type(argument), "multiple": True}
    else:
        typed |= {"type": _type(argument), "show_default": argument.default is not None}
    if argument.required:
        del typed["default"]
        typed["required"] = True
    return click.option(argument.option, argument.name, cls=ArgumentOption, **typed | changes)


def options(
    known: Mapping[str, Argument], *names: str, changes: Mapping[str, dict[str, Any]] | None = None
) -> Callable[[Command], Command]:
    """Options of declared arguments (all, or those named), in their order; changes: by argument."""

    def decorate(command: Command) -> Command:
        for each in reversed(list(known.values())):
            if not names or each.name in names:
                command = option(each, **(changes or {}).get(each.name, {}))(command)
        return command

    return decorate


def asked(
    record: Callable[..., Any], into: str = "asked", without: tuple[str, ...] = (), **changes: dict[str, Any]
) -> Callable[[Command], Command]:
    """Options of a record's arguments; the command gets the record as `into`.

    without: arguments that keep their defaults. changes: of click, by argument.
    """
    known = {name: each for name, each in declared(record).items() if name not in without}

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def wrapped(*args: Any, **given: Any) -> Any:
            return command(*args, **{into: record(**{name: given.pop(name) for name in known})}, **given)

        return options(known, changes=changes)(wrapped)

    return decorate


def scenario_options(
    *without: str, lists: Mapping[str, Any] | None = None, lists_say: str = " Or a list a,b."
) -> Callable[[Command], Command]:
    """What a scenario takes, beside --data-dir and what is left out; lists: types of those that take many."""
    names = [name for name in ARGUMENTS if name not in (*without, "data_dir")]
    changes = {
        name: {"type": of, "help": f"{ARGUMENTS[name].help}{lists_say}"} for name, of in (lists or {}).items()
    }
    added = options(ARGUMENTS, *names, changes=changes)
    return lambda command: added(_PIPELINE(command))


def scenarios(names: dict[str, Any], *without: str) -> tuple[Scenario, ...]:
    """Takes the arguments of scenarios out of a command's options; lists are crossed, the first outermost."""
    from medusa_sim.plan.scenario import Scenario

    given = {name: names.pop(name) for name in ARGUMENTS if name in names and name not in without}
    many = [name for name, value in given.items() if isinstance(value, tuple)]
    crossed = product(*(given[name] for name in many))
    return tuple(Scenario(**{**given, **dict(zip(many, each, strict=True))}) for each in crossed)


def _no_pipeline(ctx: click.Context, param: click.Parameter, value: int) -> None:
    """Refuse more than one stage in a sentence of its own."""
    del ctx, param
    if value != 1:
        raise UsageError(
            f"--pp {value}: pipeline parallelism is not modelled; give --tp with the GPUs of one stage"
        )


_PIPELINE = click.option(
    "--pp", type=click.IntRange(1), default=1, callback=_no_pipeline, expose_value=False, hidden=True
)


def overwrite_option(command: Command) -> Command:
    """--overwrite; the command gets `overwrite`."""
    return option(declared(ReportPlace)["overwrite"])(command)


def row_options(command: Command) -> Command:
    """--gpu, --runtime, --latency and its companions, --cache: how rows of operators are predicted."""
    command = click.option(
        "--cache",
        type=click.Choice(("cold", "as-measured")),
        default="cold",
        show_default=True,
        help="cold: operands come from HBM, as in a step. as-measured: they may lie in L2.",
    )(command)
    command = click.option(
        "--runtime",
        type=RUNTIME,
        default="kernel",
        show_default=True,
        help="Launch-overhead model (kernel: none).",
    )(command)
    return options(ARGUMENTS, "gpu", "latency", "fallback", "kernels")(command)


def require_decoder_extra(*more: str) -> None:
    """Raises UsageError, one line, where torch or a companion is not installed."""
    needed = ("torch", "safetensors", "tokenizers", *more)
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"this command needs {', '.join(missing)}; install the extra: pip install 'medusa-sim[decoder]'"
        )


@dataclass(frozen=True, kw_only=True)
class Counters(Declared):
    """How what an engine counted is read."""

    before: Path | None = argument(
        None, PATH, "The /metrics page from before the run, where the one after it is a file."
    )
    wait_s: float = argument(
        0.0, NUMBER,
        "With a URL: seconds between two looks; 0 takes what was counted since the server started.",
        option="--wait", least=0, most=86_400,
    )  # fmt: skip
    timeout_s: float = argument(
        5.0, NUMBER, "Seconds that the server may take to answer.", option="--timeout", least=0.1, most=600
    )

    def read(self, source: str) -> list[AcceptanceCounts]:
        """What a source counted: a file, or a server asked once or twice."""
        from medusa_sim.acceptance.engine_records import counts_between, fetched, read_counts, scrape

        if "://" not in source:
            return read_counts(Path(source), self.before)
        if self.before is not None:
            raise UsageError("--before is for files; with a URL say --wait SECONDS")
        first = scrape(fetched(source, self.timeout_s), source)
        if self.wait_s == 0.0:
            return counts_between(None, first, source)
        say(f"counting for {self.wait_s:g} s")
        time.sleep(self.wait_s)
        return counts_between(first, scrape(fetched(source, self.timeout_s), source), source)


FIRST = (
    "--gpu", "--model", "--drafter", "--acceptance", "--batch", "--rate", "--seq", "--policy", "--prompt",
    "--checkpoint", "--method", "--save",
)  # fmt: skip
"""What most questions begin with; the first six that a command has lead its page."""
MOST_FIRST = 6
_BESIDE: dict[str, tuple[str, ...]] = {
    "Engine and GPUs": ("--engine", "--cache", "--device", "--threads"),
    "Drafts and acceptance": ("--candidates", "--drafts"),
    "Number formats": (),
    "Requests": (),
    "The server": (),
    "What is asked for": (
        "--tokens-per-s-per-user", "--target-rate", "--measure", "--search", "--under-load",
    ),
    "Launch settings": ("--export", "--engine-version", "--draft-path", "--ab"),
    "Grids of any size": ("--out", "--shard", "--workers", "--scheduler"),
    "Output": (
        "--format", "--output", "--wide", "--all-rows", "--by-count", "--timeline", "--report", "--plot",
        "--overwrite", "--data-dir", "--help",
    ),
}  # fmt: skip
"""Sections in their order, with options that are no declared arguments."""
FEWEST = 15
"""Options from which a page has sections."""


@functools.cache
def sections() -> dict[str, tuple[str, ...]]:
    """Sections and their options, in the order in which a help page lists them."""
    from medusa_sim.load.arguments import LOAD  # only a help page needs every declared argument
    from medusa_sim.plan.question import QUESTION

    declared = {
        each.option.partition("/")[0]: each.section
        for known in (ARGUMENTS, QUESTION, LOAD)
        for each in known.values()
    }
    return {
        title: (
            *(name for name, section in declared.items() if section == title and name not in beside),
            *beside,
        )
        for title, beside in _BESIDE.items()
    }


class Sectioned(click.Command):
    """A command whose help page lists its options in sections."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The options: the six that matter, those of this command alone, then every section."""
        listed = {name: record for param in self.get_params(ctx) if (record := param.get_help_record(ctx))
                  for name in [max(param.opts, key=len)]}  # fmt: skip
        if len(listed) < FEWEST:
            super().format_options(ctx, formatter)
            return
        first = [name for name in FIRST if name in listed][:MOST_FIRST]
        known = {name for names in sections().values() for name in names}
        own = [name for name in listed if name not in (*first, *known)]
        for title, names in {"First": first, "Of this command": own, **sections()}.items():
            if here := [name for name in names if name in listed and (name not in first or title == "First")]:
                with formatter.section(title):
                    formatter.write_dl([listed[name] for name in here])
