"""Operators of models measured on a device, within a budget: rows, what they depend on, a hardware file."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path

import torch
from msgspec.structs import replace

from medusa_sim.data import user_data_dir
from medusa_sim.errors import DataError
from medusa_sim.lab.decoder.checkpoint import DTYPES
from medusa_sim.lab.measure import hardware
from medusa_sim.lab.measure.arguments import MeasureOptions, Tell
from medusa_sim.lab.measure.bench import bench_of
from medusa_sim.lab.measure.clocks import raise_clocks, watch_clocks
from medusa_sim.lab.measure.environment import environment, environment_text, model_label
from medusa_sim.lab.measure.kernels import Pool, attention_kernels
from medusa_sim.lab.measure.record import Recorder, begin, write_meta
from medusa_sim.lab.measure.shape_pass import Outcome, measure_shapes
from medusa_sim.lab.measure.shapes import timed_shapes
from medusa_sim.lab.measure.spread import spread_warning
from medusa_sim.latency.measured import OPERATOR_PROFILES
from medusa_sim.latency.measurement import SCHEMA, Environment, Meta, Rates
from medusa_sim.models.named import load_model

_METHODS = {
    "cpu": "wall time of runs of calls; weights and K/V rotate as a step of the model reads them",
    "cuda": "CUDA events around a replayed graph; weights and K/V rotate as a step of the model reads them",
}


def measure_operators(
    asked: MeasureOptions,
    device: torch.device,
    dtypes: tuple[str, ...],
    *,
    resume: bool,
    allow_different: bool,
    tell: Tell,
    progress: AbstractContextManager[Callable[[int, int, float], None]],
) -> None:
    """Measure the shapes of models, the most informative first, to a folder of the device's name.

    resume: go on with a folder that holds rows; allow_different: also where they are of another device.
    tell: takes lines. progress: told (shapes done, shapes in all, seconds left).

    Raises:
        DataError: nothing was measured within the budget, or rows are of another device.
        SpecError, OutputError: a model that is not there, a folder that cannot be written.
    """
    started = time.monotonic()
    raise_clocks(device)
    models = [load_model(model) for model in asked.models]
    wanted = timed_shapes(models, dtypes)
    seen = environment(device, asked.name)
    home = user_data_dir(asked.data_dir)
    folder = asked.out or home / OPERATOR_PROFILES / seen.name
    tell(environment_text(seen))
    tell(f"{len(wanted)} shapes, the most informative first, to {folder}")
    first = models[0].attention
    sizes = (first.heads, first.kv_heads, first.head_dim)
    kernels = attention_kernels(device, DTYPES[dtypes[0]], *sizes)
    meta = operators_meta(asked, dtypes, seen, hardware.rates(device, seen, dtypes), _METHODS[seen.kind])
    meta.attention.update(kernels)
    record, meta = begin(folder, meta, resume=resume, allow_different=allow_different)
    write_meta(folder, meta)
    pool = Pool(device, seen.cache_bytes, packed=asked.packed)
    left_s = None if asked.budget is None else max(0.0, asked.budget - (time.monotonic() - started))
    try:
        with progress as advance, watch_clocks(device) as clocks:
            outcome = measure_shapes(
                wanted,
                bench_of(pool),
                record,
                meta.rates,
                memory_bytes=seen.memory_bytes,
                budget_s=left_s,
                advance=advance,
            )
    except KeyboardInterrupt:
        tell(f"interrupted; {record.rows} rows are kept in {folder}; go on with --resume")
        raise
    meta.environment.run_clocks_mhz.update(clocks.summary)
    if record.rows == 0:
        raise DataError(f"no shape was measured within {asked.budget or 0:g} s; give a larger --budget")
    reached = hardware.with_rows(meta.rates, outcome.best_flops_per_s, outcome.best_bytes_per_s)
    write_meta(folder, replace(meta, rates=reached))
    tell(_outcome_text(outcome, record.rows, folder))
    if (written := hardware.write_hardware(home, seen, reached)) is not None:
        tell(f"wrote {written}")
    _tell_next(tell, record, seen, folder, dtypes)


def operators_meta(
    asked: MeasureOptions, dtypes: tuple[str, ...], seen: Environment, rates: Rates, method: str
) -> Meta:
    """What rows depend on. method: how they are timed, in words."""
    labels = tuple(model_label(model) for model in asked.models)
    return Meta(
        schema=SCHEMA,
        title=f"Operators of {', '.join(labels)} on {seen.device}",
        method=method,
        models=labels,
        dtypes=dtypes,
        environment=seen,
        rates=rates,
        packed=asked.packed,
    )


def _outcome_text(outcome: Outcome, rows: int, folder: Path) -> str:
    parts = [f"measured {outcome.measured} shapes in {outcome.elapsed_s:.0f} s"]
    parts += [f"{outcome.kept} were there"] if outcome.kept else []
    parts += [f"the budget left out {outcome.left} (go on with --resume)"] if outcome.left else []
    parts += [f"{outcome.too_large} do not fit the memory"] if outcome.too_large else []
    return f"{'; '.join(parts)}; {rows} rows in {folder}"


def _tell_next(tell: Tell, record: Recorder, seen: Environment, folder: Path, dtypes: Iterable[str]) -> None:
    """Whether rows are noisy, and the command that fits those of each dtype."""
    if warning := spread_warning(record.noisy, record.rows, seen.kind, seen.load_average):
        tell(f"Warning: {warning}")
    for dtype in dtypes:
        files = sorted(folder.glob(f"*_{dtype}.csv"))
        tell(f"next: medusa-sim calibrate rows --gpu {seen.name} --kernels torch {' '.join(map(str, files))}")
