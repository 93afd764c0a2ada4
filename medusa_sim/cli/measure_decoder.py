"""`measure steps` and `measure runs`: the folder that `validate decoder` reads."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import click

from medusa_sim.cli.options import Sectioned, asked, is_given, require_decoder_extra
from medusa_sim.cli.values import Threads
from medusa_sim.errors import UsageError
from medusa_sim.measure.arguments import Device, RunGrid, StepGrid

if TYPE_CHECKING:
    import torch

DTYPES = ("fp32", "bf16", "fp16")
_DEFAULT_DTYPE = {"cpu": "fp32", "cuda": "fp16"}
_FOLDER = click.argument("folder", type=click.Path(path_type=Path, file_okay=False), metavar="FOLDER")


def chosen_device(asked: Device) -> tuple[torch.device, tuple[str, ...]]:
    """The device and the dtypes asked for, torch's threads set. Raises UsageError where one is not there."""
    require_decoder_extra()
    import torch

    from medusa_sim.measure.environment import torch_device

    if asked.threads is not None:
        torch.set_num_threads(asked.threads)
    device = torch_device(asked.device)
    given = asked.dtype or _DEFAULT_DTYPE[device.type]
    found = tuple(dict.fromkeys(part.strip() for part in given.split(",")))
    if unknown := [dtype for dtype in found if dtype not in DTYPES]:
        raise UsageError(
            f"--dtype {given!r}: {unknown[0]!r} cannot be measured (allowed: {', '.join(DTYPES)})"
        )
    return device, found


@click.command("steps", cls=Sectioned)
@_FOLDER
@asked(StepGrid, into="grid")
@asked(Device)
@click.option(
    "--with-operators",
    is_flag=True,
    help="On a CPU: also the operators, alternating with the steps and a reference kernel, so that a shared "
    "machine can be measured.",
)
def measure_steps(folder: Path, grid: StepGrid, asked: Device, *, with_operators: bool) -> None:
    """Times of whole steps of models with random weights, for `validate decoder`."""
    way = "with" if with_operators else "without"
    for name in ("repeats", "passes", "tree_attention") if with_operators else ("budget", "out"):
        if is_given(name):
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"{option} has no meaning {way} --with-operators; leave it out")
    device, dtypes = chosen_device(asked)
    if len(dtypes) > 1:
        raise UsageError(f"--dtype {asked.dtype}: steps are measured in one dtype at a time")
    if with_operators:
        _measure_both(folder, grid, asked, device, dtypes[0])
        return
    from medusa_sim.measure.decoder_steps import measure_decoder_steps

    meta = measure_decoder_steps(folder, asked, grid, device, dtypes[0], tell=_say)
    _say_next(folder, meta.environment.name)


@click.command("runs", cls=Sectioned)
@_FOLDER
@asked(RunGrid)
@click.option("--threads", type=Threads(), default=None, help="CPU threads [default: torch's].")
def measure_runs(folder: Path, asked: RunGrid, threads: int | None) -> None:
    """Times of whole generations of trained checkpoints, for `validate decoder`."""
    require_decoder_extra()
    import torch

    from medusa_sim.measure.decoder_runs import measure_decoder_runs

    if threads is not None:
        torch.set_num_threads(threads)
    measure_decoder_runs(folder, asked, tell=_say)
    _say_next(folder, "NAME")


def _measure_both(folder: Path, grid: StepGrid, asked: Device, device: torch.device, dtype: str) -> None:
    """Measure steps into the folder, and operators beside them."""
    import dataclasses

    import msgspec

    from medusa_sim.calibrate.fit import LEAST_ROWS
    from medusa_sim.data import user_data_dir
    from medusa_sim.latency.measured import OPERATOR_PROFILES
    from medusa_sim.measure import hardware
    from medusa_sim.measure.decoder_steps import decoder_config
    from medusa_sim.measure.environment import environment, model_as_told
    from medusa_sim.measure.record import begin, write_meta
    from medusa_sim.measure.shapes import case_of, cases, fill_up
    from medusa_sim.measure.together import Together, require_cpu
    from medusa_sim.specs.gpu import load_gpu
    from medusa_sim.specs.measurement import SCHEMA, Meta
    from medusa_sim.specs.models import load_model
    from medusa_sim.validate.operators import step_operators
    from medusa_sim.validate.steps import speedups_differ

    require_cpu(device)
    if len(asked.models) > 1:
        raise UsageError(
            "--with-operators measures one model; a model is a device of its own on a CPU (--name)"
        )
    (path,) = asked.models
    label, config = decoder_config(path)
    model = dataclasses.replace(
        load_model(path), dtype=dtype, weight_dtype=dtype, kv_dtype=dtype, activation_dtype=dtype
    )
    seen = environment(device, asked.name)
    home = user_data_dir(asked.data_dir)
    rows = asked.out or home / OPERATOR_PROFILES / seen.name
    rates = hardware.rates(device, seen, (dtype,))
    meta = Meta(
        schema=SCHEMA,
        title=f"Operators of {model_as_told(path)} on {seen.device}",
        method="CPU time of runs of calls, in turns with steps, divided by the time of a kernel beside each",
        models=(model_as_told(path),),
        dtypes=(dtype,),
        environment=seen,
        rates=rates,
    )
    record, meta = begin(rows, meta, resume=False)
    write_meta(rows, meta)
    depths = {1: 0} | {count: tree.depth for count, (tree, _) in grid.trees().items()}
    hardware.write_hardware(home, seen, rates)
    cells = [(batch, count, depth) for batch in grid.batches for count, depth in depths.items()]
    needed = [
        case_of(model, operator, 0)
        for operator in step_operators(model, load_gpu(seen.name, home), cells, grid.seq_len)
    ]
    first, more = fill_up(needed, cases([model], (dtype,)), LEAST_ROWS)
    run = Together(
        folder=folder,
        label=label,
        config=config,
        grid=grid,
        cases=first,
        more=more,
        record=record,
        dtype=dtype,
        seen=seen,
        copy_bytes_per_s=rates.copy_bytes_per_s,
        disagreement=speedups_differ,
        tell=_say,
    )
    try:
        run.run(asked.budget or math.inf)
    finally:
        if run.turns.found:
            best = run.best
            reached = hardware.with_rows(rates, best.flops_per_s, best.bytes_per_s)
            beside = {"attention": run.attention, "reference": run.reference}
            write_meta(rows, msgspec.structs.replace(meta, rates=reached, **beside))
            hardware.write_hardware(home, seen, reached)
    _say(f"{record.rows} operators in {rows}")
    _say_next(folder, seen.name)


def _say(line: str) -> None:
    click.echo(line, err=True)


def _say_next(folder: Path, gpu: str) -> None:
    _say(f"next: medusa-sim validate decoder {folder} --gpu {gpu} --kernels torch")
