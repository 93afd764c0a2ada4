"""Options that mean the same in every command: decorators, as `click.option` is one.

    @take.command("medusa-sim recommend --gpu a100-80gb-pcie --model vicuna-7b")
    @take.scenario("names", "scope")
    @click.option("--ab", is_flag=True, help="Commands that check the answer on the engine.")
    @take.output
    def recommend(*, names: dict[str, Any], ab: bool, output: Output) -> None:

Declared arguments reach a command as one parameter: a dictionary (`arguments`, `scenario`) or the record that
declares them (`record`). Help pages of commands with many options list those that matter first, the others by
what they are about.
"""

from __future__ import annotations

import functools
import importlib.util
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from medusa_sim.cli import examples, say
from medusa_sim.cli.help_page import Sectioned
from medusa_sim.cli.output import FORMATS, Output, ReportPlace
from medusa_sim.cli.values import NAMES, RUNTIME, Finite, NameType, Whole
from medusa_sim.errors import UsageError, install
from medusa_sim.scenario.arguments import ARGUMENTS
from medusa_sim.scenario.declare import (
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
from medusa_sim.scenario.defaults import ALONE, DEFAULT_SEQ_LEN

if TYPE_CHECKING:
    from medusa_sim.acceptance.engine_counters import AcceptanceCounts
    from medusa_sim.scenario.scenario import Scenario

Function = Callable[..., None]
Decorator = Callable[[Function], Function]
FILE = click.Path(path_type=Path)
FILES: dict[str, Any] = {"nargs": -1, "type": FILE, "metavar": "[FILE]..."}
"""Of an argument."""


class OneOf(click.Choice[str]):
    """One of an argument's few names, or of others that menus leave out, in any case."""

    def __init__(self, argument: Argument) -> None:
        super().__init__(argument.choices)
        self.argument = argument

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The known name. Fails for any other, naming those of the runtime, which is read first."""
        if isinstance(value, str) and value not in self.choices:
            if (name := self.argument.named(value)) is not None:
                return name
            self.fail(self.argument.unknown(value, ctx and ctx.params.get("runtime")), param, ctx)
        return super().convert(value, param, ctx)


class PositiveFloat(Finite):
    """A finite number above 0."""

    def __init__(self) -> None:
        super().__init__(min=0.0, min_open=True)


def is_given(option: str) -> bool:
    """Whether an option of the running command was typed."""
    source = click.get_current_context().get_parameter_source(option)
    return source is not click.core.ParameterSource.DEFAULT


def command(
    *shown: str, name: str | None = None, into: click.Group | None = None
) -> Callable[[Function], click.Command]:
    """Click's command, its help page in sections. shown: examples on that page. into: the group it is of."""
    more = {"epilog": examples(*shown)} if shown else {}
    make = click.command if into is None else into.command
    return make(name, cls=Sectioned, **more)


class ArgumentOption(click.Option):
    """The option of a declared argument; `{names}` in its help is what its type knows, read when shown."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Option and help."""
        record = super().get_help_record(ctx)
        if record is None or not isinstance(self.type, NameType) or "{names}" not in record[1]:
            return record
        *names, last = self.type.known(None)
        return record[0], record[1].replace("{names}", f"{', '.join(names)} or {last}")


def option_of(argument: Argument, **changes: Any) -> Decorator:
    """The option of a declared argument; changes: as of `click.option`."""
    typed: dict[str, Any] = {"help": argument.help, "default": argument.default, "metavar": argument.metavar}
    if argument.type is FLAG:
        typed["is_flag"] = True
    elif argument.many:
        typed |= {"type": _type(argument), "multiple": True}
    else:
        typed |= {"type": _type(argument), "show_default": argument.default is not None}
    if argument.names == "runtime":
        typed["is_eager"] = True  # what others may be depends on it
    if argument.required:
        del typed["default"]
        typed["required"] = True
    return click.option(argument.option, argument.name, cls=ArgumentOption, **typed | changes)


def _type(argument: Argument) -> Any:
    """The type that click reads an argument as."""
    if argument.names or argument.choices:
        return NAMES[argument.names] if argument.names else OneOf(argument)
    if argument.type is WHOLE:
        least, most = (None if end is None else int(end) for end in (argument.least, argument.most))
        return Whole(least, most)
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
    return Finite(least if above is None else above, most, min_open=above is not None)


def gathered(
    parameter: str, options: Mapping[str, Decorator], made: Callable[[dict[str, Any]], Any]
) -> Decorator:
    """Several options that reach a command as one parameter; made: of their values by name."""

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def call(**values: Any) -> None:
            given = {name: values.pop(name) for name in options}
            function(**{parameter: made(given)}, **values)

        taken: Function = call
        for option in reversed(tuple(options.values())):  # decorators apply from the last
            taken = option(taken)
        return taken

    return decorate


def arguments(
    parameter: str,
    known: Mapping[str, Argument],
    *names: str,
    changes: Mapping[str, dict[str, Any]] | None = None,
) -> Decorator:
    """Declared arguments (all, or those named) in their order, as a dictionary; changes: by argument."""
    chosen = {name: each for name, each in known.items() if not names or name in names}
    options = {name: option_of(each, **(changes or {}).get(name, {})) for name, each in chosen.items()}
    return gathered(parameter, options, dict)


def record(parameter: str, record_type: Callable[..., Any], **changes: dict[str, Any]) -> Decorator:
    """The arguments of a record, as the record; changes: of click, by argument."""
    options = {name: option_of(each, **changes.get(name, {})) for name, each in declared(record_type).items()}
    return gathered(parameter, options, lambda values: record_type(**values))


def scenario(
    parameter: str,
    *without: str,
    lists: Mapping[str, Any] | None = None,
    lists_say: str = " Or a list a,b.",
) -> Decorator:
    """Options of a scenario as one dictionary, some left out; lists: types of those that take many."""
    changes = {
        name: {"type": value_type, "help": f"{ARGUMENTS[name].help}{lists_say}"}
        for name, value_type in (lists or {}).items()
    }
    return arguments(
        parameter, ARGUMENTS, *(name for name in ARGUMENTS if name not in without), changes=changes
    )


def scenarios(given: Mapping[str, Any]) -> tuple[Scenario, ...]:
    """The scenarios of arguments, with lists crossed, the first list outermost."""
    from medusa_sim.scenario.scenario import Scenario

    many = [name for name, value in given.items() if isinstance(value, tuple)]
    crossed = product(*(given[name] for name in many))
    return tuple(Scenario(**{**given, **dict(zip(many, each, strict=True))}) for each in crossed)


lengths = click.option(
    "--seq",
    "seq_len",
    default=(),
    type=NAMES["seq_len"],
    help=f"Tokens of context of each request [prompt and half the output, else {DEFAULT_SEQ_LEN}].",
)
"""--seq of a grid; empty where it was not typed: the length of the request."""
output = gathered(
    "output",
    {
        "format_": click.option(
            "--format",
            "format_",
            type=click.Choice(FORMATS),
            help="Form of the result [from the suffix of -o, else table].",
        ),
        "output_path": click.option(
            "-o",
            "--output",
            "output_path",
            type=FILE,
            help="Write the result to this file, not to stdout.",
        ),
        "is_wide": click.option(
            "--wide",
            "is_wide",
            is_flag=True,
            help="Every column of a table [as many as fit the terminal].",
        ),
        "is_verbose": click.option(
            "--verbose",
            "is_verbose",
            is_flag=True,
            help="Every fact and every warning of an answer for people.",
        ),
    },
    lambda given: Output.of(
        given["format_"], given["output_path"], is_wide=given["is_wide"], is_verbose=given["is_verbose"]
    ),
)
"""--format, -o/--output, --wide and --verbose, as an `Output`."""
data_dir = option_of(ARGUMENTS["data_dir"])
overwrite = option_of(declared(ReportPlace)["overwrite"])
row_runtime = click.option(
    "--runtime",
    default=ALONE,
    show_default=True,
    type=RUNTIME,
    help="Launch-overhead model (kernel: none).",
)
row_cache = click.option(
    "--cache",
    default="cold",
    show_default=True,
    type=click.Choice(("cold", "as-measured")),
    help="cold: operands come from HBM, as in a step. as-measured: they may lie in L2.",
)
plot = click.option("--plot", type=FILE, help="Also draw it: FILE.png, .svg or .pdf.")


def rows(parameter: str) -> Decorator:
    """--gpu, --latency and its companions: with --runtime and --cache how rows of operators are predicted."""
    return arguments(parameter, ARGUMENTS, "gpu", "latency", "fallback", "kernels")


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
        "With a URL: seconds to count for; 0 takes all since the server started.",
        option="--wait", least=0, most=86_400,
    )  # fmt: skip
    timeout_s: float = argument(
        5.0, NUMBER, "Seconds that the server may take to answer.", option="--timeout", least=0.1, most=600
    )

    def read(self, source: str) -> list[AcceptanceCounts]:
        """Counts of a source: a file, or a server asked once or twice."""
        from medusa_sim.acceptance.engine_records import read_counts
        from medusa_sim.acceptance.metrics_page import counts_between, fetched, scrape

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
