"""`medusa-sim measure`: operators, steps and generations on this device, for `calibrate` and `validate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click

from medusa_sim.cli import examples, say
from medusa_sim.cli import options as take
from medusa_sim.cli.progress import progress
from medusa_sim.cli.values import Threads
from medusa_sim.errors import UsageError
from medusa_sim.lab.decoder.arguments import Dtype
from medusa_sim.lab.measure.arguments import MeasureOptions, RunGrid, StepGrid

if TYPE_CHECKING:
    import torch


_DEFAULT_DTYPE = {"cpu": "fp32", "cuda": "fp16"}
_FOLDER = click.argument("folder", type=click.Path(path_type=Path, file_okay=False), metavar="FOLDER")
_EXAMPLES = (
    "medusa-sim measure operators --device cuda --models llama-7b,llama-13b,llama-3-8b --budget 600",
    "medusa-sim measure operators --models my/config.json --dtype fp32 --budget 300 --resume",
    "medusa-sim measure steps out/steps --device cuda --models llama-7b --batch 1,4,16",
)


def chosen_device(asked: MeasureOptions) -> tuple[torch.device, tuple[str, ...]]:
    """The device and the dtypes asked for, torch's threads set. Raises UsageError where one is not there."""
    take.require_decoder_extra()
    import torch

    from medusa_sim.lab.measure.environment import torch_device

    if asked.threads is not None:
        torch.set_num_threads(asked.threads)
    device = torch_device(asked.device)
    given = asked.dtype or _DEFAULT_DTYPE[device.type]
    parts = tuple(dict.fromkeys(part.strip() for part in given.split(",")))
    known = get_args(Dtype)
    if unknown := [dtype for dtype in parts if dtype not in known]:
        raise UsageError(
            f"--dtype {given!r}: {unknown[0]!r} cannot be measured (allowed: {', '.join(known)})"
        )
    return device, parts


@click.group(epilog=examples(*_EXAMPLES))
def measure() -> None:
    """Times of operators, steps or generations on this device, written with their environment."""


@take.command(name="steps", into=measure)
@_FOLDER
@take.record("grid", StepGrid)
@take.record("asked", MeasureOptions)
@click.option(
    "--with-operators",
    is_flag=True,
    help="On a CPU: the operators too, in turns with steps and a reference kernel, for a shared machine.",
)
def measure_steps(*, folder: Path, grid: StepGrid, asked: MeasureOptions, with_operators: bool) -> None:
    """Times of whole steps of models with random weights, for `validate decoder`."""
    way = "with" if with_operators else "without"
    for name in ("repeats", "passes") if with_operators else ("budget", "out"):
        if take.is_given(name):
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"{option} has no meaning {way} --with-operators; leave it out")
    device, dtypes = chosen_device(asked)
    if len(dtypes) > 1:
        raise UsageError(f"--dtype {asked.dtype}: steps are measured in one dtype at a time")
    where = (folder, asked, grid, device, dtypes[0])
    if with_operators:
        from medusa_sim.lab.measure.together import measure_together

        meta = measure_together(*where, tell=say)
    else:
        from medusa_sim.lab.measure.decoder_steps import measure_decoder_steps

        meta = measure_decoder_steps(*where, tell=say)
    _say_next(folder, meta.environment.name)


@take.command(name="runs", into=measure)
@_FOLDER
@take.record("asked", RunGrid)
@click.option("--threads", type=Threads(), help="CPU threads [default: torch's].")
def measure_runs(*, folder: Path, asked: RunGrid, threads: int | None) -> None:
    """Times of whole generations of trained checkpoints, for `validate decoder`."""
    take.require_decoder_extra()
    import torch

    from medusa_sim.lab.measure.decoder_runs import measure_decoder_runs

    if threads is not None:
        torch.set_num_threads(threads)
    measure_decoder_runs(folder, asked, tell=say)
    _say_next(folder, "NAME")


def _say_next(folder: Path, gpu: str) -> None:
    say(f"next: medusa-sim validate decoder {folder} --gpu {gpu} --kernels torch")


@take.command(*_EXAMPLES, name="operators", into=measure)
@take.record("asked", MeasureOptions)
@click.option(
    "--resume", is_flag=True, help="Go on with a folder that holds rows; noisy ones are measured again."
)
@click.option(
    "--allow-different", is_flag=True, help="Also where its rows are of another device, torch or clocks."
)
def _operators(*, asked: MeasureOptions, resume: bool, allow_different: bool) -> None:
    """Times of the operators of models on this device, for `calibrate rows`.

    Linear layers (m 1 to 4096, fused and separate projections, LM head), fused attention under a tree mask
    (contexts 128 to 8192, batches 1 to 64), unfused products, elementwise kernels and the launch floor, as
    rows beside their environment. A device without a hardware file gets one, so that its name is a --gpu.
    Needs torch.
    """
    device, dtypes = chosen_device(asked)  # before what imports torch
    from medusa_sim.lab.measure.operator_run import measure_operators

    measure_operators(
        asked, device, dtypes, resume=resume, allow_different=allow_different,
        tell=say, progress=progress("shapes"),
    )  # fmt: skip
