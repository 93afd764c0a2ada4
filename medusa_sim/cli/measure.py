"""`medusa-sim measure`: operators, steps and generations on this device, for `calibrate` and `validate`."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from medusa_sim.cli import examples, say
from medusa_sim.cli import options as take
from medusa_sim.cli.progress import progress
from medusa_sim.cli.values import Threads
from medusa_sim.errors import DataError, UsageError
from medusa_sim.lab.measure.arguments import Device, RunGrid, StepGrid

if TYPE_CHECKING:
    import torch

    from medusa_sim.lab.measure.session import Outcome
    from medusa_sim.specs.measurement import Environment


DTYPES = ("fp32", "bf16", "fp16")
_DEFAULT_DTYPE = {"cpu": "fp32", "cuda": "fp16"}
_FOLDER = click.argument("folder", type=click.Path(path_type=Path, file_okay=False), metavar="FOLDER")


def chosen_device(asked: Device) -> tuple[torch.device, tuple[str, ...]]:
    """The device and the dtypes asked for, torch's threads set. Raises UsageError where one is not there."""
    take.require_decoder_extra()
    import torch

    from medusa_sim.lab.measure.environment import torch_device

    if asked.threads is not None:
        torch.set_num_threads(asked.threads)
    device = torch_device(asked.device)
    given = asked.dtype or _DEFAULT_DTYPE[device.type]
    parts = tuple(dict.fromkeys(part.strip() for part in given.split(",")))
    if unknown := [dtype for dtype in parts if dtype not in DTYPES]:
        raise UsageError(
            f"--dtype {given!r}: {unknown[0]!r} cannot be measured (allowed: {', '.join(DTYPES)})"
        )
    return device, parts


_EXAMPLES = (
    "medusa-sim measure operators --device cuda --models llama-7b,llama-13b,llama-3-8b --budget 600",
    "medusa-sim measure operators --models my/config.json --dtype fp32 --budget 300 --resume",
    "medusa-sim measure steps out/steps --device cuda --models llama-7b --batch 1,4,16",
)


@click.group(epilog=examples(*_EXAMPLES))
def measure() -> None:
    """Times of operators, steps or generations on this device, written with their environment."""


@take.command(name="steps", into=measure)
@_FOLDER
@take.record("grid", StepGrid)
@take.record("asked", Device)
@click.option(
    "--with-operators",
    is_flag=True,
    help="On a CPU: the operators too, in turns with steps and a reference kernel, for a shared machine.",
)
def measure_steps(*, folder: Path, grid: StepGrid, asked: Device, with_operators: bool) -> None:
    """Times of whole steps of models with random weights, for `validate decoder`."""
    way = "with" if with_operators else "without"
    for name in ("repeats", "passes", "tree_attention") if with_operators else ("budget", "out"):
        if take.is_given(name):
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"{option} has no meaning {way} --with-operators; leave it out")
    device, dtypes = chosen_device(asked)
    if len(dtypes) > 1:
        raise UsageError(f"--dtype {asked.dtype}: steps are measured in one dtype at a time")
    if with_operators:
        _measure_both(folder, grid, asked, device, dtypes[0])
        return
    from medusa_sim.lab.measure.decoder_steps import measure_decoder_steps

    meta = measure_decoder_steps(folder, asked, grid, device, dtypes[0], tell=say)
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


def _measure_both(folder: Path, grid: StepGrid, asked: Device, device: torch.device, dtype: str) -> None:
    """Measure steps into the folder, and operators with them."""
    import dataclasses

    import msgspec

    from medusa_sim.data import user_data_dir
    from medusa_sim.lab.calibrate.kind_rows import LEAST_ROWS
    from medusa_sim.lab.measure import hardware
    from medusa_sim.lab.measure.environment import environment, model_label
    from medusa_sim.lab.measure.record import begin, write_meta
    from medusa_sim.lab.measure.shapes import case_of, cases, fill_up
    from medusa_sim.lab.measure.subject import random_subject
    from medusa_sim.lab.measure.together import Together, require_cpu
    from medusa_sim.lab.validate.step_operators import step_operators
    from medusa_sim.lab.validate.step_scores import speedups_differ
    from medusa_sim.latency.measured import OPERATOR_PROFILES
    from medusa_sim.specs.gpu import load_gpu
    from medusa_sim.specs.measurement import SCHEMA, Meta
    from medusa_sim.specs.models import load_model

    require_cpu(device)
    if len(asked.models) > 1:
        raise UsageError(
            "--with-operators measures one model; a model is a device of its own on a CPU (--name)"
        )
    (path,) = asked.models
    subject = random_subject(path, dtype, grid, device, packed=asked.packed)
    model = dataclasses.replace(
        load_model(path), dtype=dtype, weight_dtype=dtype, kv_dtype=dtype, activation_dtype=dtype
    )
    seen = environment(device, asked.name)
    home = user_data_dir(asked.data_dir)
    rows = asked.out or home / OPERATOR_PROFILES / seen.name
    rates = hardware.rates(device, seen, (dtype,))
    meta = Meta(
        schema=SCHEMA,
        title=f"Operators of {model_label(path)} on {seen.device}",
        method="CPU time of runs of calls, in turns with steps, divided by the time of a kernel beside each",
        models=(model_label(path),),
        dtypes=(dtype,),
        environment=seen,
        rates=rates,
        packed=asked.packed,
    )
    record, meta = begin(rows, meta, resume=False)
    write_meta(rows, meta)
    hardware.write_hardware(home, seen, rates)
    cells = [
        (batch, count, tree.depth) for batch in grid.batches for count, (tree, _) in subject.trees.items()
    ]
    needed = [
        case_of(model, operator, 0)
        for operator in step_operators(model, load_gpu(seen.name, home), cells, grid.seq_len)
    ]
    first, more = fill_up(needed, cases([model], (dtype,)), LEAST_ROWS)
    run = Together(
        folder=folder,
        subject=subject,
        cases=first,
        more=more,
        record=record,
        seen=seen,
        copy_bytes_per_s=rates.copy_bytes_per_s,
        disagreement=speedups_differ,
        packed=asked.packed,
        tell=say,
    )
    try:
        run.run(asked.budget or math.inf)
    finally:
        if run.turns.found:
            best = run.best
            reached = hardware.with_rows(rates, best.flops_per_s, best.bytes_per_s)
            beside = {"attention": subject.attention, "reference": run.reference}
            write_meta(rows, msgspec.structs.replace(meta, rates=reached, **beside))
            hardware.write_hardware(home, seen, reached)
    say(f"{record.rows} operators in {rows}")
    _say_next(folder, seen.name)


def _say_next(folder: Path, gpu: str) -> None:
    say(f"next: medusa-sim validate decoder {folder} --gpu {gpu} --kernels torch")


_METHODS = {
    "cpu": "wall time of runs of calls; weights and K/V rotate as a step of the model reads them",
    "cuda": "CUDA events around a replayed graph; weights and K/V rotate as a step of the model reads them",
}


@take.command(*_EXAMPLES, name="operators", into=measure)
@take.record("asked", Device)
@click.option(
    "--resume", is_flag=True, help="Go on with a folder that holds rows; noisy ones are measured again."
)
@click.option(
    "--allow-different", is_flag=True, help="Also where its rows are of another device, torch or clocks."
)
def _operators(*, asked: Device, resume: bool, allow_different: bool) -> None:
    """Times of the operators of models on this device, for `calibrate rows`.

    Linear layers (m 1 to 4096, fused and separate projections, LM head), fused attention under a tree mask
    (contexts 128 to 8192, batches 1 to 64), unfused products, elementwise kernels and the launch floor, as
    rows beside their environment. A device without a hardware file gets one, so that its name is a --gpu.
    Needs torch.
    """
    target, chosen = chosen_device(asked)  # before what imports torch
    import msgspec

    from medusa_sim.data import user_data_dir
    from medusa_sim.lab.measure import hardware
    from medusa_sim.lab.measure.bench import bench_of
    from medusa_sim.lab.measure.clocks import raise_clocks, watch_clocks
    from medusa_sim.lab.measure.environment import environment, model_label
    from medusa_sim.lab.measure.kernels import DTYPES as DTYPE_OF
    from medusa_sim.lab.measure.kernels import Pool, attention_kernels
    from medusa_sim.lab.measure.record import begin, write_meta
    from medusa_sim.lab.measure.session import measure_cases
    from medusa_sim.lab.measure.shapes import cases
    from medusa_sim.lab.measure.spread import spread_warning
    from medusa_sim.latency.measured import OPERATOR_PROFILES
    from medusa_sim.specs.measurement import SCHEMA, Meta
    from medusa_sim.specs.models import load_model

    started = time.monotonic()
    raise_clocks(target)
    models_given = [load_model(model) for model in asked.models]
    wanted = cases(models_given, chosen)
    seen = environment(target, asked.name)
    home = user_data_dir(asked.data_dir)
    folder = asked.out or home / OPERATOR_PROFILES / seen.name
    _tell_environment(seen, len(wanted), folder)
    rates = hardware.rates(target, seen, chosen)
    labels = tuple(model_label(model) for model in asked.models)
    meta = Meta(
        schema=SCHEMA,
        title=f"Operators of {', '.join(labels)} on {seen.device}",
        method=_METHODS[seen.kind],
        models=labels,
        dtypes=chosen,
        environment=seen,
        rates=rates,
        packed=asked.packed,
        attention=attention_kernels(
            target,
            DTYPE_OF[chosen[0]],
            *(getattr(models_given[0].attention, name) for name in ("heads", "kv_heads", "head_dim")),
            splits=asked.splits_attention,
        ),
    )
    record, meta = begin(folder, meta, resume=resume, allow_different=allow_different)
    write_meta(folder, meta)
    try:
        with progress("shapes") as advance, watch_clocks(target) as clocks:
            outcome = measure_cases(
                wanted,
                bench_of(
                    Pool(
                        target,
                        seen.cache_bytes,
                        splits_attention=asked.splits_attention,
                        packed=asked.packed,
                    )
                ),
                record,
                meta.rates,
                memory_bytes=seen.memory_bytes,
                budget_s=None
                if asked.budget is None
                else max(0.0, asked.budget - (time.monotonic() - started)),
                tell=advance,
            )
    except KeyboardInterrupt:
        say(f"interrupted; {record.rows} rows are kept in {folder}; go on with --resume")
        raise
    meta.environment.run_clocks_mhz.update(clocks.summary)
    if record.rows == 0:
        raise DataError(f"no shape was measured within {asked.budget or 0:g} s; give a larger --budget")
    final = hardware.with_rows(meta.rates, outcome.best_flops_per_s, outcome.best_bytes_per_s)
    write_meta(folder, msgspec.structs.replace(meta, rates=final))
    written = hardware.write_hardware(home, seen, final)
    _tell_outcome(outcome, record.rows, folder, written)
    warning = spread_warning(record.noisy, record.rows, seen.kind, seen.load_average)
    if warning:
        say(f"Warning: {warning}")
    for dtype in chosen:
        files = sorted(path.name for path in folder.glob(f"*_{dtype}.csv"))
        say(
            f"next: medusa-sim calibrate rows --gpu {seen.name} --kernels torch "
            f"{' '.join(str(folder / file) for file in files)}"
        )


def _tell_environment(seen: Environment, shapes: int, folder: Path) -> None:
    clocks = ", ".join(f"{domain} {mhz:g} MHz" for domain, mhz in seen.clocks_mhz.items()) or "unknown clocks"
    say(
        f"{seen.name}: {seen.device}, {seen.units} {'threads' if seen.kind == 'cpu' else 'SMs'}, {clocks}, "
        f"{seen.driver}, torch {seen.torch}, load average {seen.load_average:g}"
    )
    say(f"{shapes} shapes, the most informative first, to {folder}")


def _tell_outcome(outcome: Outcome, rows: int, folder: Path, hardware: Path | None) -> None:
    parts = [f"measured {outcome.measured} shapes in {outcome.elapsed_s:.0f} s"]
    parts += [f"{outcome.kept} were there"] if outcome.kept else []
    parts += [f"the budget left out {outcome.left} (go on with --resume)"] if outcome.left else []
    parts += [f"{outcome.too_large} do not fit the memory"] if outcome.too_large else []
    say(f"{'; '.join(parts)}; {rows} rows in {folder}")
    if hardware is not None:
        say(f"wrote {hardware}")
