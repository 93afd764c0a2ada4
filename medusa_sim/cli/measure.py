"""`medusa-sim measure`: microbenchmarks of a device, for `calibrate` and the `measured` latency model."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from medusa_sim.cli import examples
from medusa_sim.cli.measure_decoder import chosen_device, measure_runs, measure_steps
from medusa_sim.cli.modes import Moded
from medusa_sim.cli.options import Sectioned, asked
from medusa_sim.cli.output import progress
from medusa_sim.errors import DataError
from medusa_sim.measure.arguments import Device

if TYPE_CHECKING:
    from medusa_sim.measure.session import Outcome
    from medusa_sim.specs.measurement import Environment

_METHODS = {
    "cpu": "wall time of runs of calls; weights and K/V rotate as a step of the model reads them",
    "cuda": "CUDA events around a replayed graph; weights and K/V rotate as a step of the model reads them",
}


_EXAMPLES = examples(
    "medusa-sim measure operators --device cuda --models llama-7b,llama-13b,llama-3-8b --budget 600",
    "medusa-sim measure operators --models my/config.json --dtype fp32 --budget 300 --resume",
    "medusa-sim measure steps out/steps --device cuda --models llama-7b --batch 1,4,16",
)


@click.command("operators", cls=Sectioned, epilog=_EXAMPLES)
@asked(Device)
@click.option(
    "--resume", is_flag=True, help="Go on with a folder that holds rows; noisy ones are measured again."
)
@click.option(
    "--allow-different", is_flag=True, help="Also where its rows are of another device, torch or clocks."
)
def _operators(asked: Device, *, resume: bool, allow_different: bool) -> None:
    """Times of the operators of models on this device, for `calibrate rows`.

    Linear layers (m 1 to 4096, fused and separate projections, LM head), fused attention under a tree mask
    (contexts 128 to 8192, batches 1 to 64), unfused products, elementwise kernels and the launch floor, as
    rows beside their environment. A device without a hardware file gets one, so that its name is a --gpu.
    Needs torch.
    """
    import msgspec

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

    target, chosen = chosen_device(asked)
    started = time.monotonic()
    raise_clocks(target)
    models_given = [load_model(model) for model in asked.models]
    wanted = cases(models_given, chosen)
    seen = environment(target, asked.name)
    home = user_data_dir(asked.data_dir)
    folder = asked.out or home / OPERATOR_PROFILES / seen.name
    _tell_environment(seen, len(wanted), folder)
    rates = hardware.rates(target, seen, chosen)
    told = tuple(model_as_told(model) for model in asked.models)
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
            splits=asked.splits_attention,
        ),
    )
    record, meta = begin(folder, meta, resume=resume, allow_different=allow_different)
    write_meta(folder, meta)
    try:
        with progress("shapes") as advance, watch_clocks(target) as clocks:
            outcome = measure_cases(
                wanted,
                bench_of(Pool(target, seen.cache_bytes, splits_attention=asked.splits_attention)),
                record,
                meta.rates,
                memory_bytes=seen.memory_bytes,
                budget_s=None
                if asked.budget is None
                else max(0.0, asked.budget - (time.monotonic() - started)),
                tell=lambda at: advance(at.done, at.total, at.left_s),
            )
    except KeyboardInterrupt:
        click.echo(f"interrupted; {record.rows} rows are kept in {folder}; go on with --resume", err=True)
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
        click.echo(f"Warning: {warning}", err=True)
    for dtype in chosen:
        files = sorted(path.name for path in folder.glob(f"*_{dtype}.csv"))
        click.echo(
            f"next: medusa-sim calibrate rows --gpu {seen.name} --kernels torch "
            f"{' '.join(str(folder / file) for file in files)}",
            err=True,
        )


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


measure = Moded(
    "measure",
    {"--decoder-steps": "steps", "--with-operators": "steps", "--decoder-runs": "runs"},
    _operators,
    measure_steps,
    measure_runs,
    help="Times of operators, steps or generations on this device, written beside their environment.",
    epilog=_EXAMPLES,
)
