"""Options that mean the same in every command."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from medusa_sim.cli.names import GPU, RUNTIME
from medusa_sim.cli.output import FORMATS, Output

Command = Callable[..., Any]

DEFAULT_GPU = "a100-80gb-pcie"
DEFAULT_MODEL = "vicuna-7b"


class PositiveFloat(click.FloatRange):
    """A finite number above 0; click's own range lets nan pass."""

    def __init__(self) -> None:
        super().__init__(min=0.0, min_open=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number. Fails for nan and infinity as for what is out of range."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number above 0", param, ctx)
        return number


DTYPE = click.Choice(("fp16", "bf16", "fp32", "fp8", "int8"))
"""Of a model's linear layers."""
DEFAULT_SEQ_LEN = "1024"
DEFAULT_CANDIDATES = "1,16..112:16"


def _data_dir(ctx: click.Context, param: click.Parameter, value: Path | None) -> Path | None:
    """The folder; that it is not there yet is said, since then only shipped data is found."""
    del ctx, param
    if value is not None and not value.expanduser().is_dir():
        click.echo(f"--data-dir {value}: no such folder, so only shipped data is found", err=True)
    return value


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


def gpu_option(command: Command) -> Command:
    """--gpu for commands that are about one GPU; the command gets `gpu`."""
    return click.option(
        "--gpu", type=GPU, default=DEFAULT_GPU, show_default=True, help="GPU (`medusa-sim specs` lists them)."
    )(command)


def latency_options(command: Command) -> Command:
    """--latency, --outside and --kernels; the command gets `latency`, `outside` and `kernels`."""
    command = click.option(
        "--kernels",
        default=None,
        help="Kernel set [default: torch for fp16, sglang for bf16 and fp8, paper with --runtime paper].",
    )(command)
    command = click.option(
        "--outside",
        type=click.Choice(("refuse", "calibrated")),
        default="refuse",
        show_default=True,
        help="With --latency measured: what to do with shapes that were not measured.",
    )(command)
    return click.option(
        "--latency",
        type=click.Choice(("calibrated", "roofline", "measured")),
        default="calibrated",
        show_default=True,
        help="roofline: the datasheet's limits. calibrated: fitted kernels. measured: a profile's rows.",
    )(command)


def _residual_note(ctx: click.Context, param: click.Parameter, value: str) -> str:
    del ctx, param
    if value == "on":
        click.echo("no kernel set holds a learned residual: on and off predict the same", err=True)
    return value


def row_options(command: Command) -> Command:
    """--gpu, --runtime, --latency and its companions, --cache: how rows of operators are predicted."""
    command = click.option(
        "--learned-residual",
        type=click.Choice(("off", "on")),
        default="off",
        show_default=True,
        expose_value=False,
        callback=_residual_note,
        help="Corrections learned on top of the fitted parameters. No kernel set holds any.",
    )(command)
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
        help="What a launch adds; kernel adds nothing.",
    )(command)
    return gpu_option(command)
