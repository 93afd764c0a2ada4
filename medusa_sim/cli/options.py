"""Options that mean the same in every command."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from medusa_sim.cli.names import ACCEPTANCE, DRAFTER, GPU, MODEL, RUNTIME, Listed
from medusa_sim.cli.output import FORMATS, Output, ReportPlace
from medusa_sim.errors import UsageError
from medusa_sim.plan.defaults import (
    DEFAULT_DRAFTER,
    DEFAULT_GPU,
    MAX_DRAFTS,
    RUNS_CHAINS,
    RUNS_TREES,
)

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


class Threads(click.IntRange):
    """Threads or processes; more than a machine can start would end the command without a word."""

    def __init__(self, what: str = "threads") -> None:
        super().__init__(1, 1024)
        self.what = what

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number. Fails where it is far above the cores of this machine."""
        threads = int(super().convert(value, param, ctx))
        cores = os.cpu_count() or 1
        if threads > (most := max(64, 4 * cores)):
            self.fail(f"{threads} {self.what} on {cores} cores; at most {most} here", param, ctx)
        return threads


DTYPE = click.Choice(("fp16", "bf16", "fp32", "fp8", "fp8_block", "int8", "nvfp4"))
"""Of a model's linear layers."""


def _data_dir(ctx: click.Context, param: click.Parameter, value: Path | None) -> Path | None:
    """The folder; that it is not there yet is said, since then only shipped data is found."""
    del ctx, param
    if value is not None and not value.expanduser().is_dir():
        click.echo(f"--data-dir {value}: no such folder, so only shipped data is found", err=True)
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
        help="Your own specs and profiles, searched before the shipped ones "
        "[default: $MEDUSA_SIM_DATA_DIR, else the platform's user data folder].",
    )
    @functools.wraps(command)
    def wrapped(
        *args: Any, format_: str | None, output_path: Path | None, is_wide: bool, **kwargs: Any
    ) -> Any:
        return command(*args, output=Output.of(format_, output_path, is_wide=is_wide), **kwargs)

    return wrapped


DRAFTER_HELP = "What proposes the candidates: {names}."


def drafter_option(command: Command) -> Command:
    """--drafter for commands that are about one drafter; the command gets `drafter`."""
    return click.option(
        "--drafter", cls=Listed, type=DRAFTER, default=DEFAULT_DRAFTER, show_default=True, help=DRAFTER_HELP
    )(command)


def scenario_options(command: Command, drafter: Callable[[Command], Command] = drafter_option) -> Command:
    """What `plan.scenario.Scenario` takes beside GPU and model, under its names; `drafter` adds --drafter."""
    for option in reversed((_RUNTIME, drafter, *_SCENARIO_OPTIONS)):
        command = option(command)
    return latency_options(parallel_options(command))


_RUNTIME = click.option(
    "--runtime",
    type=RUNTIME,
    default=None,
    help=f"The engine, or how kernels launch [by the drafter: medusa {RUNS_TREES}, others {RUNS_CHAINS}].",
)
_DTYPES = (
    click.option("--dtype", type=DTYPE, default=None, help="Arithmetic of the linear layers [the model's]."),
    click.option(
        "--weight-dtype",
        type=click.Choice(("fp16", "bf16", "fp32", "fp8", "fp8_block", "int8", "nvfp4", "int4", "mxfp4")),
        default=None,
        help="Stored weights [as --dtype]; int4, mxfp4, and int8 under 16 bits, are weight-only.",
    ),
    click.option(
        "--kv-dtype", type=click.Choice(("fp16", "bf16", "fp32", "fp8")), default=None, help="KV cache."
    ),
)
_SCENARIO_OPTIONS = (
    click.option(
        "--acceptance",
        type=ACCEPTANCE,
        default=None,
        help="A profile's name, a TOML or CSV file, one rate for every draft (0.7), rates by position "
        "(0.78,0.60,0.42), or a mean length with its drafts (2.8@3) [medusa, eagle: the model's own profile, "
        "else a borrowed one].",
    ),
    click.option(
        "--heads",
        type=click.IntRange(1, 64),
        default=None,
        help="Trained Medusa heads; as many run as a tree is deep [all of the profile; a curve has 5].",
    ),
    click.option("--draft-model", type=MODEL, default=None, help="Model of --drafter draft-model and pard."),
    click.option(
        "--draft-runtime", type=RUNTIME, default=None, help="How the draft model launches [as --runtime]."
    ),
    click.option(
        "--draft-vocab",
        type=click.IntRange(1),
        default=None,
        help="Output tokens of an EAGLE layer's own head.",
    ),
    click.option(
        "--max-drafts",
        type=click.IntRange(1, 64),
        default=MAX_DRAFTS,
        show_default=True,
        help="Longest draft that is searched (num_speculative_tokens).",
    ),
    click.option(
        "--chain-only/--trees",
        default=None,
        help="Search chains only, or trees too [chains where the runtime has no tree attention].",
    ),
    click.option(
        "--match-rate",
        type=PositiveFloat(),
        default=None,
        help="Of --drafter ngram and suffix: share of the steps that find drafts [the profile's, else its "
        "first rate / 0.53].",
    ),
    click.option(
        "--workload",
        default=None,
        help="Category of MT-bench whose acceptance to take instead of the mean (writing, coding, ...).",
    ),
    click.option(
        "--lossless",
        is_flag=True,
        help="Only tokens that the model itself would emit: greedy instead of typical acceptance.",
    ),
    *_DTYPES,
    click.option(
        "--price",
        type=PositiveFloat(),
        default=None,
        help="Dollars per GPU-hour [the dated list price of `medusa-sim specs prices`, where there is one].",
    ),
)
"""What both `sweep` and `recommend` take."""


def _no_pipeline(ctx: click.Context, param: click.Parameter, value: int) -> None:
    """Refuse more than one stage in a sentence of its own."""
    del ctx, param
    if value != 1:
        raise UsageError(
            f"--pp {value}: pipeline parallelism is not modelled; give --tp with the GPUs of one stage"
        )


def parallel_options(command: Command) -> Command:
    """--ep, --dp-attention and a refusal of --pp; `--tp` is a list in some commands (`tp_option`)."""
    for option in reversed(_PARALLEL_OPTIONS):
        command = option(command)
    return command


def dtype_options(command: Command) -> Command:
    """--dtype, --weight-dtype and --kv-dtype; the command gets these."""
    for option in reversed(_DTYPES):
        command = option(command)
    return command


def tp_option(command: Command) -> Command:
    """--tp for commands that are about one scenario; the command gets `tp`."""
    return click.option("--tp", type=click.IntRange(1), default=1, show_default=True, help=TP_HELP)(command)


def report_option(command: Command) -> Command:
    """--report DIR and --overwrite; the command gets `report` (a ReportPlace), checked at once."""

    @click.option(
        "--report",
        "report_dir",
        type=click.Path(path_type=Path),
        default=None,
        help="Also write report.html and report.md with plots into this folder.",
    )
    @overwrite_option
    @functools.wraps(command)
    def wrapped(*args: Any, report_dir: Path | None, overwrite: bool, **kwargs: Any) -> Any:
        return command(*args, report=ReportPlace.of(report_dir, overwrite=overwrite), **kwargs)

    return wrapped


def overwrite_option(command: Command) -> Command:
    """--overwrite; the command gets `overwrite`."""
    return click.option(
        "--overwrite", is_flag=True, help="Replace files that are there and are not this command's own."
    )(command)


ep_option = click.option(
    "--ep",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Groups of these GPUs among which whole experts are split; 1 splits every expert over all.",
)
"""--ep; the command gets `ep`."""
TP_HELP = "GPUs that share the model (tensor parallelism)."
_PARALLEL_OPTIONS = (
    ep_option,
    click.option(
        "--dp-attention",
        is_flag=True,
        help="Attention of other sequences on every GPU, as SGLang's --enable-dp-attention.",
    ),
    click.option(
        "--overlap",
        type=click.Choice(("chain", "tree", "independent", "disjoint")),
        default=None,
        help="How far candidates of one sequence share experts [chain, or tree where trees are run].",
    ),
    click.option(
        "--pp",
        type=click.IntRange(1),
        default=1,
        callback=_no_pipeline,
        expose_value=False,
        hidden=True,
    ),
)
SCENARIO_NAMES = (
    "runtime", "drafter", "acceptance", "heads", "draft_model", "draft_runtime", "draft_vocab", "max_drafts",
    "chain_only", "match_rate", "workload", "lossless", "dtype", "weight_dtype", "kv_dtype", "latency",
    "kernels", "fallback", "price", "ep", "dp_attention", "overlap", "data_dir",
)  # fmt: skip
"""Arguments of a scenario that both `sweep` and `recommend` take as options."""


def gpu_option(command: Command) -> Command:
    """--gpu for commands that are about one GPU; the command gets `gpu`."""
    return click.option(
        "--gpu", type=GPU, default=DEFAULT_GPU, show_default=True, help="GPU (`medusa-sim specs` lists them)."
    )(command)


def latency_options(command: Command) -> Command:
    """--latency, --fallback and --kernels; the command gets `latency`, `fallback` and `kernels`."""
    command = click.option(
        "--kernels",
        default=None,
        help="Kernel set [default: torch for fp16, sglang for bf16 and fp8, paper with --runtime paper].",
    )(command)
    command = click.option(
        "--fallback",
        type=click.Choice(("refuse", "calibrated")),
        default="refuse",
        show_default=True,
        help="With --latency measured, for shapes that were not measured: refuse, or predict as calibrated.",
    )(command)
    return click.option(
        "--latency",
        type=click.Choice(("calibrated", "roofline", "measured")),
        default="calibrated",
        show_default=True,
        help="roofline: the datasheet's limits. calibrated: fitted kernels. measured: a profile's rows.",
    )(command)


def row_options(command: Command) -> Command:
    """--gpu, --runtime, --latency and its companions, --cache: how rows of operators are predicted."""
    command = click.option(
        "--cache",
        type=click.Choice(("cold", "as-measured")),
        default="cold",
        show_default=True,
        help="cold: operands come from HBM, as in a step. as-measured: they may lie in L2.",
    )(command)
    command = latency_options(command)
    command = click.option(
        "--runtime",
        type=RUNTIME,
        default="kernel",
        show_default=True,
        help="Launch-overhead model (kernel: none).",
    )(command)
    return gpu_option(command)
