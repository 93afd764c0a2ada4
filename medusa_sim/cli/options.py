"""Options that mean the same in every command, and how a command is made from its signature.

    @command("medusa-sim time --ops rows.csv")
    def time(*, ops: Path = opt("Rows.", None, FILE, required=True), output: Output = OUTPUT) -> None:

Each parameter's default says which options it is made from: one (`opt`, `flag`, `arg`), the arguments of a
record (`record`), or some declared ones as a dictionary (`arguments`, `scenario`).

Help pages of commands with many options list those that matter first, the others by what they are about.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from medusa_sim.cli import examples, say
from medusa_sim.cli.output import FORMATS, Output, ReportPlace
from medusa_sim.cli.values import NAMES, RUNTIME, NameType
from medusa_sim.errors import UsageError, install
from medusa_sim.plan import DEFAULT_SEQ_LEN
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

FILE = click.Path(path_type=Path)
FILES = {"nargs": -1, "type": FILE, "metavar": "[FILE]..."}
"""Of an argument."""


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


def is_given(option: str) -> bool:
    """Whether an option of the running command was typed."""
    source = click.get_current_context().get_parameter_source(option)
    return source is not click.core.ParameterSource.DEFAULT


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


@dataclass(frozen=True)
class Taken:
    """What a parameter of a command is made from: the options of its name, and its value of all values."""

    options: Callable[[str], list[click.Parameter]]
    value: Callable[[dict[str, Any], str], Any] = dict.__getitem__


def command(
    *shown: str, name: str | None = None, into: click.Group | None = None, **more: Any
) -> Callable[[Callable[..., None]], click.Command]:
    """The command of a function whose every parameter has a `Taken` as its default.

    shown: examples on its help page. more: of click's.
    """
    told = {"epilog": examples(*shown), **more} if shown else more

    def of(function: Callable[..., None]) -> click.Command:
        taken = {each.name: each.default for each in inspect.signature(function).parameters.values()}

        def call(**values: Any) -> None:
            function(**{name: each.value(values, name) for name, each in taken.items()})

        made = Sectioned(
            name or function.__name__,
            callback=call,
            params=[option for name, each in taken.items() for option in each.options(name)],
            help=inspect.getdoc(function),
            **told,
        )
        if into is not None:
            into.add_command(made)
        return made

    return of


def opt(help_: str, default: Any = None, type_: Any = None, *words: str, **more: Any) -> Any:
    """One option; words: how it is typed, where not as the parameter is called. more: of click's."""
    told = {"default": default, "show_default": True} if default is not None else {}
    return Taken(
        lambda name: [click.Option([*(words or [_typed(name)]), name], help=help_, type=type_, **told | more)]
    )


def flag(help_: str, *words: str) -> Any:
    """An option without a value."""
    return opt(help_, False, None, *words, is_flag=True, show_default=False)


def arg(**settings: Any) -> Any:
    """An argument that stands without a name; settings: of click's."""
    return Taken(lambda name: [click.Argument([name], **settings)])


def _typed(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def declared_option(argument: Argument, **changes: Any) -> click.Option:
    """The option of a declared argument; changes: as of click."""
    typed: dict[str, Any] = {"help": argument.help, "default": argument.default, "metavar": argument.metavar}
    if argument.type is FLAG:
        typed["is_flag"] = True
    elif argument.many:
        typed |= {"type": _type(argument), "multiple": True}
    else:
        typed |= {"type": _type(argument), "show_default": argument.default is not None}
    if argument.required:
        del typed["default"]
        typed["required"] = True
    return ArgumentOption([argument.option, argument.name], **typed | changes)


def arguments(
    known: Mapping[str, Argument], *names: str, changes: Mapping[str, dict[str, Any]] | None = None
) -> Any:
    """Declared arguments (all, or those named) in their order, as a dictionary; changes: by argument."""
    chosen = [each for name, each in known.items() if not names or name in names]
    return Taken(
        lambda _: [declared_option(each, **(changes or {}).get(each.name, {})) for each in chosen],
        lambda values, _: {each.name: values[each.name] for each in chosen},
    )


def record(of: Callable[..., Any], **changes: dict[str, Any]) -> Any:
    """The arguments of a record, as the record; changes: of click, by argument."""
    taken = arguments(declared(of), changes=changes)
    return Taken(taken.options, lambda values, name: of(**taken.value(values, name)))


def _data_dir(ctx: click.Context, param: click.Parameter, value: Path | None) -> Path | None:
    """The folder; that it is not there yet is said, since then only shipped data is found."""
    del ctx, param
    if value is not None and not value.expanduser().is_dir():
        say(f"--data-dir {value}: no such folder, so only shipped data is found")
    return value


LENGTHS: Any = Taken(
    opt(
        "Committed tokens of each sequence before the step [prompt and half the output, else "
        f"{DEFAULT_SEQ_LEN}].",
        None, NAMES["seq_len"], "--seq",
    ).options,
    lambda values, name: values[name] or (),
)  # fmt: skip
"""--seq of a grid; none where it was not typed: the length of the request."""
_OUTPUT = {
    "format_": opt(
        "Form of the result [default: from the suffix of -o, else table]. JSON has full precision.",
        None, click.Choice(FORMATS), "--format",
    ),
    "output_path": opt(
        "Write the result to this file instead of stdout (parquet needs one).", None, FILE, "-o", "--output"
    ),
    "is_wide": flag("Every column of a table [default: as many as fit 120 characters].", "--wide"),
    "data_dir": opt(
        ARGUMENTS["data_dir"].help, None, click.Path(path_type=Path, file_okay=False), callback=_data_dir
    ),
}  # fmt: skip
OUTPUT: Any = Taken(
    lambda _: [option for name, each in _OUTPUT.items() for option in each.options(name)],
    lambda values, _: Output.of(values["format_"], values["output_path"], is_wide=values["is_wide"]),
)
"""--format, -o/--output, --wide and --data-dir, as an `Output`."""
DATA_DIR: Any = Taken(lambda _: [])
"""The value of --data-dir, an option of OUTPUT."""


def scenario(
    *without: str, lists: Mapping[str, Any] | None = None, lists_say: str = " Or a list a,b."
) -> Any:
    """What a scenario takes but what is left out, as a dictionary; lists: types of those that take many.

    --data-dir is an option of OUTPUT.
    """
    names = [name for name in ARGUMENTS if name not in (*without, "data_dir")]
    changes = {
        name: {"type": of, "help": f"{ARGUMENTS[name].help}{lists_say}"} for name, of in (lists or {}).items()
    }
    taken = arguments(ARGUMENTS, *names, changes=changes)
    return Taken(
        lambda name: [*taken.options(name), *_PIPELINE.options("pp")],
        lambda values, name: {**taken.value(values, name), "data_dir": values["data_dir"]},
    )


def scenarios(given: Mapping[str, Any]) -> tuple[Scenario, ...]:
    """The scenarios of arguments of which some are lists, which are crossed, the first outermost."""
    from medusa_sim.plan.scenario import Scenario

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


_PIPELINE = opt("", 1, click.IntRange(1), callback=_no_pipeline, expose_value=False, hidden=True)
OVERWRITE: Any = Taken(lambda _: [declared_option(declared(ReportPlace)["overwrite"])])
ROWS = arguments(ARGUMENTS, "gpu", "latency", "fallback", "kernels")
"""--gpu, --latency and its companions: with --runtime and --cache how rows of operators are predicted."""
ROW_RUNTIME = opt("Launch-overhead model (kernel: none).", "kernel", RUNTIME)
ROW_CACHE = opt(
    "cold: operands come from HBM, as in a step. as-measured: they may lie in L2.", "cold",
    click.Choice(("cold", "as-measured")),
)  # fmt: skip
PLOT = opt("Also draw it: FILE.png, .svg or .pdf.", None, FILE)


def require_decoder_extra(*more: str) -> None:
    """Raises UsageError, one line, where torch or a companion is not installed."""
    needed = ("torch", "safetensors", "tokenizers", *more)
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"this command needs {', '.join(missing)}, which {'are' if missing[1:] else 'is'} not installed; "
            f"{install('decoder')}"
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
