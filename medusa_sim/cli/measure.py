"""`medusa-sim measure`: microbenchmarks of a device, for `calibrate` and the `measured` latency model."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from medusa_sim.cli import examples
from medusa_sim.cli.measure_decoder import (
    decoder_options,
    measure_both,
    measure_runs,
    measure_steps,
    refuse_unused,
)
from medusa_sim.cli.modes import Mode, Moded
from medusa_sim.cli.options import PositiveFloat, Sectioned, require_decoder_extra
from medusa_sim.cli.output import progress
from medusa_sim.cli.values import MODELS, Threads
from medusa_sim.errors import DataError, UsageError

if TYPE_CHECKING:
    import torch

    from medusa_sim.measure.session import Outcome
    from medusa_sim.specs.measurement import Environment, Meta, Rates

DTYPES = ("fp32", "bf16", "fp16")
_DEFAULT_DTYPE = {"cpu": "fp32", "cuda": "fp16"}
_METHODS = {
    "cpu": "wall time of runs of calls; weights and K/V rotate as a step of the model reads them",
    "cuda": "CUDA events around a replayed graph; weights and K/V rotate as a step of the model reads them",
}


@click.command(
    "measure",
    cls=Sectioned,
    epilog=examples(
        "medusa-sim measure operators --device cuda --models llama-7b,llama-13b,llama-3-8b --budget 600",
        "medusa-sim measure operators --models my/config.json --dtype fp32 --budget 300 --resume",
        "medusa-sim measure steps out/steps --device cuda --models llama-7b --batch 1,4,16",
    ),
)
@click.option("--device", default="cpu", show_default=True, help="cpu, cuda or cuda:n.")
@click.option(
    "--models",
    type=MODELS,
    default="llama-7b",
    show_default=True,
    help="Models whose shapes are measured: names or paths of a config.json, by commas.",
)
@click.option(
    "--dtype", "dtypes", default=None, help="fp32, bf16, fp16, by commas [default: cpu fp32, cuda fp16]."
)
@click.option(
    "--budget",
    type=PositiveFloat(),
    default=None,
    metavar="SECONDS",
    help="Stop after this many seconds; the most informative shapes come first [default: all of them].",
)
@click.option(
    "--resume", is_flag=True, help="Go on with a folder that holds rows; noisy ones are measured again."
)
@click.option(
    "--allow-different", is_flag=True, help="Also where its rows are of another device, torch or clocks."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    help="Folder of the rows [default: profiles/operators/NAME in the data folder].",
)
@click.option(
    "--name", default=None, help="Name of the device as a --gpu [default: from what the system says]."
)
@click.option("--threads", type=Threads(), default=None, help="CPU threads [default: torch's].")
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    help="Your own specs and profiles [default: $MEDUSA_SIM_DATA_DIR, else the platform's user data folder].",
)
@decoder_options
def _whole(
    device: str,
    models: tuple[str, ...],
    dtypes: str | None,
    budget: float | None,
    resume: bool,
    allow_different: bool,
    out: Path | None,
    name: str | None,
    threads: int | None,
    data_dir: Path | None,
    decoder_steps: Path | None,
    decoder_runs: Path | None,
    **decoder: Any,
) -> None:
    """Times of the operators of MODELS on this device, written as rows beside their environment.

    Linear layers (m 1 to 4096, fused and separate projections, LM head), fused attention under a tree mask
    (contexts 128 to 8192, batches 1 to 64), unfused products, elementwise kernels and the launch floor. A
    device without a hardware file gets one, so that its name is a --gpu. Needs torch.
    """
    kind = "decoder_steps" if decoder_steps else "decoder_runs" if decoder_runs else None
    refuse_unused(kind)
    require_decoder_extra()
    import torch

    from medusa_sim.measure.environment import torch_device

    if threads is not None:
        torch.set_num_threads(threads)
    if decoder_runs is not None:
        measure_runs(decoder_runs, decoder)
        return
    target = torch_device(device)
    chosen = _dtypes(dtypes, target.type)
    if decoder_steps is None:
        _measure_operators(
            target,
            models,
            chosen,
            budget,
            out,
            name,
            data_dir,
            resume=resume,
            allow_different=allow_different,
            splits=decoder["tree_attention"] == "split",
        )
        return
    if len(chosen) > 1:
        raise UsageError(f"--dtype {dtypes}: steps are measured in one dtype at a time")
    given = {**decoder, "models": models, "name": name, "budget": budget, "out": out, "data_dir": data_dir}
    if decoder["with_operators"]:
        measure_both(decoder_steps, target, chosen[0], given)
        return
    measure_steps(decoder_steps, target, chosen[0], given)


def _measure_operators(
    target: torch.device,
    models: tuple[str, ...],
    chosen: tuple[str, ...],
    budget: float | None,
    out: Path | None,
    name: str | None,
    data_dir: Path | None,
    *,
    resume: bool,
    allow_different: bool,
    splits: bool,
) -> None:
    from medusa_sim.data import user_data_dir
    from medusa_sim.latency.measured import OPERATOR_PROFILES
    from medusa_sim.measure import hardware
    from medusa_sim.measure.environment import environment, model_as_told, raise_clocks, watch_clocks
    from medusa_sim.measure.kernels import DTYPES as DTYPE_OF
    from medusa_sim.measure.kernels import Pool, attention_kernels
    from medusa_sim.measure.record import begin, write_meta
    from medusa_sim.measure.session import measure_cases
    from medusa_sim.measure.shapes import cases
    from medusa_sim.measure.spread import spread_warning
    from medusa_sim.measure.timing import bench_of
    from medusa_sim.specs.measurement import SCHEMA, Meta
    from medusa_sim.specs.models import load_model

    started = time.monotonic()
    raise_clocks(target)
    models_given = [load_model(model) for model in models]
    wanted = cases(models_given, chosen)
    seen = environment(target, name)
    home = user_data_dir(data_dir)
    folder = out or home / OPERATOR_PROFILES / seen.name
    _tell_environment(seen, len(wanted), folder)
    rates = hardware.rates(target, seen, chosen)
    told = tuple(model_as_told(model) for model in models)
    meta = Meta(
        schema=SCHEMA,
        title=f"Operators of {', '.join(told)} on {seen.device}",
        method=_METHODS[seen.kind],
        models=told,
        dtypes=chosen,
        environment=seen,
        rates=rates,
        attention=attention_kernels(
            target,
            DTYPE_OF[chosen[0]],
            heads=models_given[0].attention.heads,
            kv_heads=models_given[0].attention.kv_heads,
            head_dim=models_given[0].attention.head_dim,
            splits=splits,
        ),
    )
    record, meta = begin(folder, meta, resume=resume, allow_different=allow_different)
    write_meta(folder, meta)
    try:
        with progress("shapes") as advance, watch_clocks(target) as clocks:
            outcome = measure_cases(
                wanted,
                bench_of(Pool(target, seen.cache_bytes, splits_attention=splits)),
                record,
                meta.rates,
                memory_bytes=seen.memory_bytes,
                budget_s=None if budget is None else max(0.0, budget - (time.monotonic() - started)),
                tell=lambda at: advance(at.done, at.total, at.left_s),
            )
    except KeyboardInterrupt:
        click.echo(f"interrupted; {record.rows} rows are kept in {folder}; go on with --resume", err=True)
        raise
    meta.environment.run_clocks_mhz.update(clocks.summary)
    if record.rows == 0:
        raise DataError(f"no shape was measured within {budget:g} s; give a larger --budget")
    final = hardware.with_rows(meta.rates, outcome.best_flops_per_s, outcome.best_bytes_per_s)
    write_meta(folder, _with_rates(meta, final))
    written = hardware.write_hardware(home, seen, final)
    _tell_outcome(outcome, record.rows, folder, written)
    warning = spread_warning(record.noisy, record.rows, seen.kind, seen.load_average)
    if warning:
        click.echo(f"Warning: {warning}", err=True)
    for dtype in chosen:
        files = sorted(path.name for path in folder.glob(f"*_{dtype}.csv"))
        click.echo(
            f"next: medusa-sim calibrate rows --gpu {seen.name} --kernels torch --rows "
            f"{' '.join(str(folder / file) for file in files)}",
            err=True,
        )


def _with_rates(meta: Meta, rates: Rates) -> Meta:
    import msgspec

    return msgspec.structs.replace(meta, rates=rates)


def _dtypes(given: str | None, kind: str) -> tuple[str, ...]:
    """The dtypes asked for. Raises UsageError for one that no kernel here has."""
    found = tuple(dict.fromkeys(part.strip() for part in (given or _DEFAULT_DTYPE[kind]).split(",")))
    unknown = [dtype for dtype in found if dtype not in DTYPES]
    if unknown:
        raise UsageError(
            f"--dtype {given!r}: {unknown[0]!r} cannot be measured (allowed: {', '.join(DTYPES)})"
        )
    return found


def _tell_environment(seen: Environment, shapes: int, folder: Path) -> None:
    clocks = ", ".join(f"{domain} {mhz:g} MHz" for domain, mhz in seen.clocks_mhz.items()) or "unknown clocks"
    click.echo(
        f"{seen.name}: {seen.device}, {seen.units} {'threads' if seen.kind == 'cpu' else 'SMs'}, {clocks}, "
        f"{seen.driver}, torch {seen.torch}, load average {seen.load_average:g}",
        err=True,
    )
    click.echo(f"{shapes} shapes, the most informative first, to {folder}", err=True)


def _tell_outcome(outcome: Outcome, rows: int, folder: Path, hardware: Path | None) -> None:
    told = [f"measured {outcome.measured} shapes in {outcome.elapsed_s:.0f} s"]
    told += [f"{outcome.kept} were there"] if outcome.kept else []
    told += [f"the budget left out {outcome.left} (go on with --resume)"] if outcome.left else []
    told += [f"{outcome.too_large} do not fit the memory"] if outcome.too_large else []
    click.echo(f"{'; '.join(told)}; {rows} rows in {folder}", err=True)
    if hardware is not None:
        click.echo(f"wrote {hardware}", err=True)


_STEPS = ("seq_len", "acceptance", "repeats", "with_operators", "batch", "candidates", "passes")
measure = Moded(
    _whole,
    {
        "operators": Mode(
            says="Times of the operators of models on this device, for `calibrate rows`.",
            own=("budget", "resume", "allow_different", "out", "models", "dtypes", "name", "device"),
        ),
        "steps": Mode(
            says="Times of whole steps of models with random weights, for `validate decoder`.",
            files="decoder_steps", chosen_by=("--decoder-steps",), metavar="FOLDER",
            own=(*_STEPS, "tree_attention", "models", "dtypes", "name", "device"),
        ),
        "runs": Mode(
            says="Times of whole generations of trained checkpoints, for `validate decoder`.",
            files="decoder_runs", chosen_by=("--decoder-runs",), metavar="FOLDER",
            own=("checkpoint", "batch", "candidates", "passes", "decoder_runs"),
        ),
    },
)  # fmt: skip
