"""What `measure --decoder-steps` and `--decoder-runs` do: the folder that `validate --decoder` reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from medusa_sim.cli.grids import BATCH, CANDIDATES, SEQ_LEN, GridType
from medusa_sim.cli.names import ACCEPTANCE
from medusa_sim.errors import UsageError

if TYPE_CHECKING:
    import torch

Command = Callable[..., Any]

_OPERATORS = ("budget", "resume", "allow_different", "out")
_STEPS = ("seq_len", "acceptance", "repeats")
_BOTH = ("batch", "candidates", "passes")
_RUNS = ("checkpoint",)
_UNUSED = {
    None: (*_STEPS, *_BOTH, *_RUNS),
    "decoder_steps": (*_OPERATORS, *_RUNS),
    "decoder_runs": (*_OPERATORS, *_STEPS, "models", "dtypes", "name", "device"),
}
"""Options that a kind of measurement has no use for."""


def decoder_options(command: Command) -> Command:
    """--decoder-steps and --decoder-runs, and what only they use; the command gets them as `decoder`."""
    options = (
        click.option(
            "--decoder-steps",
            type=click.Path(path_type=Path, file_okay=False),
            metavar="FOLDER",
            help="Measure whole steps of MODELS with random weights instead, for `validate --decoder`.",
        ),
        click.option(
            "--decoder-runs",
            type=click.Path(path_type=Path, file_okay=False),
            metavar="FOLDER",
            help="Measure whole generations of trained checkpoints instead, for `validate --decoder`.",
        ),
        click.option("--batch", type=GridType(BATCH), default="1..8", help="Batches [default: 1..8]."),
        click.option(
            "--candidates",
            type=GridType(CANDIDATES),
            default="4,8,16..48:16,64..128:32",
            help="Tokens of a verification step [default: 4,8,16..48:16,64..128:32].",
        ),
        click.option(
            "--seq-len", type=GridType(SEQ_LEN), default="1024", help="Tokens before a step [default: 1024]."
        ),
        click.option(
            "--acceptance",
            type=ACCEPTANCE,
            default="medusa1-vicuna-7b",
            help="Profile of heads, whose best trees the steps verify [default: medusa1-vicuna-7b].",
        ),
        click.option(
            "--repeats", type=click.IntRange(min=1), default=10, help="Timed steps of a cell [default: 10]."
        ),
        click.option(
            "--passes", type=click.IntRange(min=1), default=2, help="Passes over the grid [default: 2]."
        ),
        click.option(
            "--checkpoint",
            type=click.Path(path_type=Path),
            multiple=True,
            help="Checkpoint of --decoder-runs with Medusa heads and an acceptance profile of its name; "
            "may be given again.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def refuse_unused(kind: str | None) -> None:
    """Raise UsageError for an option of the running command that was given and would be ignored."""
    ctx = click.get_current_context()
    if ctx.params["decoder_steps"] is not None and ctx.params["decoder_runs"] is not None:
        raise UsageError("--decoder-steps and --decoder-runs are two measurements; ask for one")
    for parameter in ctx.command.params:
        name = parameter.name or ""
        if name in _UNUSED[kind] and ctx.get_parameter_source(name) is not ParameterSource.DEFAULT:
            what = f"--{kind.replace('_', '-')}" if kind else "operators (neither --decoder-steps nor -runs)"
            raise UsageError(f"{parameter.opts[0]} has no meaning for {what}; leave it out")


def measure_steps(folder: Path, device: torch.device, dtype: str, given: dict[str, Any]) -> None:
    """Measure steps into the folder. given: the command's parameters."""
    from medusa_sim.measure.decoder_steps import StepGrid, measure_decoder_steps

    if len(given["seq_len"]) > 1:
        raise UsageError(
            f"--seq-len {','.join(map(str, given['seq_len']))}: one length is measured at a time"
        )
    grid = StepGrid(
        batches=given["batch"],
        candidates=given["candidates"],
        seq_len=given["seq_len"][0],
        acceptance=given["acceptance"],
        repeats=given["repeats"],
        passes=given["passes"],
    )
    meta = measure_decoder_steps(
        folder,
        given["models"],
        grid,
        device=device,
        dtype=dtype,
        name=given["name"],
        tell=_say,
    )
    _say_next(folder, meta.environment.name)


def measure_runs(folder: Path, given: dict[str, Any]) -> None:
    """Measure generations into the folder. given: the command's parameters."""
    from medusa_sim.measure.decoder_runs import RunGrid, measure_decoder_runs

    if not given["checkpoint"]:
        raise UsageError("--decoder-runs needs --checkpoint: a folder with Medusa heads")
    grid = RunGrid(batches=given["batch"], candidates=given["candidates"], passes=given["passes"])
    measure_decoder_runs(folder, given["checkpoint"], grid, tell=_say)
    _say_next(folder, "NAME")


def _say(line: str) -> None:
    click.echo(line, err=True)


def _say_next(folder: Path, gpu: str) -> None:
    _say(f"next: medusa-sim validate --gpu {gpu} --kernels torch --decoder {folder}")
