"""What `measure steps` and `--decoder-runs` do: the folder that `validate decoder` reads."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from medusa_sim.cli.values import ACCEPTANCE, BATCH, CANDIDATES, SEQ_LEN, GridType
from medusa_sim.errors import UsageError

if TYPE_CHECKING:
    import torch

    from medusa_sim.measure.decoder_steps import StepGrid

Command = Callable[..., Any]

_OPERATORS = ("budget", "resume", "allow_different", "out")
_STEPS = ("seq_len", "acceptance", "repeats", "with_operators")
_BOTH = ("batch", "candidates", "passes")
_RUNS = ("checkpoint",)
_UNUSED = {
    None: (*_STEPS, *_BOTH, *_RUNS),
    "decoder_steps": (*_OPERATORS, *_RUNS),
    "with_operators": ("resume", "allow_different", "repeats", "passes", "tree_attention", *_RUNS),
    "decoder_runs": (*_OPERATORS, *_STEPS, "models", "dtypes", "name", "device", "tree_attention"),
}
"""Options that a kind of measurement has no use for."""


def decoder_options(command: Command) -> Command:
    """--decoder-steps and --decoder-runs, and what only they use; the command gets them as `decoder`."""
    options = (
        click.option(
            "--decoder-steps",
            type=click.Path(path_type=Path, file_okay=False),
            metavar="FOLDER",
            help="Measure whole steps of MODELS with random weights instead, for `validate decoder`.",
        ),
        click.option(
            "--decoder-runs",
            type=click.Path(path_type=Path, file_okay=False),
            metavar="FOLDER",
            help="Measure whole generations of trained checkpoints instead, for `validate decoder`.",
        ),
        click.option(
            "--with-operators",
            is_flag=True,
            help="With --decoder-steps on a CPU: also the operators, alternating with the steps and a "
            "reference kernel, so that a shared machine can be measured.",
        ),
        click.option(
            "--tree-attention",
            type=click.Choice(("masked", "split")),
            default="masked",
            help="Verification in one kernel under the tree's mask, or the prefix by the fastest kernel and "
            "the tree behind it apart [default: masked].",
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
    if ctx.params["with_operators"] and kind != "decoder_steps":
        raise UsageError("--with-operators goes with --decoder-steps FOLDER, where the steps are written")
    unused = _UNUSED["with_operators" if ctx.params["with_operators"] else kind]
    for parameter in ctx.command.params:
        name = parameter.name or ""
        if name in unused and ctx.get_parameter_source(name) is not ParameterSource.DEFAULT:
            what = f"--{kind.replace('_', '-')}" if kind else "operators (neither --decoder-steps nor -runs)"
            raise UsageError(f"{parameter.opts[0]} has no meaning for {what}; leave it out")


def measure_steps(folder: Path, device: torch.device, dtype: str, given: dict[str, Any]) -> None:
    """Measure steps into the folder. given: the command's parameters."""
    from medusa_sim.measure.decoder_steps import measure_decoder_steps

    grid = _grid(given)
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


def _grid(given: dict[str, Any]) -> StepGrid:
    from medusa_sim.measure.decoder_steps import StepGrid

    if len(given["seq_len"]) > 1:
        raise UsageError(
            f"--seq-len {','.join(map(str, given['seq_len']))}: one length is measured at a time"
        )
    return StepGrid(
        batches=given["batch"],
        candidates=given["candidates"],
        seq_len=given["seq_len"][0],
        acceptance=given["acceptance"],
        repeats=given["repeats"],
        passes=given["passes"],
        splits_attention=given["tree_attention"] == "split",
    )


def measure_both(folder: Path, device: torch.device, dtype: str, given: dict[str, Any]) -> None:
    """Measure steps into the folder, and operators beside them. given: the command's parameters."""
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
    if len(given["models"]) > 1:
        raise UsageError(
            "--with-operators measures one model; a model is a device of its own on a CPU (--name)"
        )
    grid, (path,) = _grid(given), given["models"]
    label, config = decoder_config(path)
    model = dataclasses.replace(
        load_model(path), dtype=dtype, weight_dtype=dtype, kv_dtype=dtype, activation_dtype=dtype
    )
    seen = environment(device, given["name"])
    home = user_data_dir(given["data_dir"])
    rows = given["out"] or home / OPERATOR_PROFILES / seen.name
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
        run.run(given["budget"] or math.inf)
    finally:
        if run.turns.found:
            best = run.best
            reached = hardware.with_rows(rates, best.flops_per_s, best.bytes_per_s)
            beside = {"attention": run.attention, "reference": run.reference}
            write_meta(rows, msgspec.structs.replace(meta, rates=reached, **beside))
            hardware.write_hardware(home, seen, reached)
    _say(f"{record.rows} operators in {rows}")
    _say_next(folder, seen.name)


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
    _say(f"next: medusa-sim validate decoder {folder} --gpu {gpu} --kernels torch")
