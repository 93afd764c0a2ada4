"""Decoding and verification steps of models with random weights over a grid, for `validate decoder`.

A cell is one (batch, candidates); one candidate is the plain decoding step. A step's time does not depend on
the weights, and every step accepts as many draft tokens, so that a measured and a predicted one do the same
work. The cells of a batch take turns, so that drifts hit all alike, and the whole grid is passed over twice
or more: how far the passes disagree is how well anything can be predicted. The step is the one that
`generate` runs, acceptance on the host included; on CUDA its pass is a graph (`decode --launch cuda-graph`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from medusa_sim.lab.decoder.checkpoint import DTYPES
from medusa_sim.lab.measure import hardware
from medusa_sim.lab.measure.arguments import MeasureOptions, StepGrid, Tell
from medusa_sim.lab.measure.cells import StepMeta, StepRow, cell_name, write_config, write_steps
from medusa_sim.lab.measure.clocks import raise_clocks, watch_clocks
from medusa_sim.lab.measure.environment import environment
from medusa_sim.lab.measure.subject import ACCEPTED, Subject, random_subject
from medusa_sim.lab.measure.timed_steps import time_in_turns
from medusa_sim.latency.measurement import Environment
from medusa_sim.units import GIGA, US_PER_S


def measure_decoder_steps(
    folder: Path,
    asked: MeasureOptions,
    grid: StepGrid,
    device: torch.device,
    dtype: str,
    tell: Tell = lambda _: None,
) -> StepMeta:
    """Measure the steps of every model and write them to `folder`; whole passes outlast an interrupt.

    asked: models as names, or a config.json or its folder. tell: takes a line on every cell and model. Raises
    UsageError, SpecError, OutputError.
    """
    raise_clocks(device)
    seen = environment(device, asked.name)
    rates = hardware.rates(device, seen, (dtype,))
    meta = steps_meta(grid, seen, rates.copy_bytes_per_s, packed=asked.packed)
    rows: list[StepRow] = []
    for given in asked.models:
        subject = random_subject(given, dtype, grid, device, packed=asked.packed)
        config, label = subject.model.config, subject.name
        write_config(folder, label, config.to_hf())
        meta.attention[label] = subject.attention
        with watch_clocks(device) as clocks:
            try:
                for cell in step_grid(subject):
                    rows.append(cell)
                    tell(f"{cell_name(cell)}: {cell.time_us:.0f} us")
            except KeyboardInterrupt:
                if whole := whole_passes(rows, len(grid.batches) * len(subject.trees)):
                    write_steps(folder, meta, whole)
                raise
        meta.environment.run_clocks_mhz.update(clocks.summary)
        write_steps(folder, meta, rows)
        plain_us = min(row.time_us for row in rows if row.model == label and row.candidates == 1)
        read = config.parameter_count * DTYPES[dtype].itemsize / plain_us * US_PER_S
        tell(
            f"{label}: the fastest decoding step reads weights at {read / GIGA:.1f} GB/s, "
            f"{100.0 * read / meta.copy_bytes_per_s:.0f} % of the copy bandwidth"
        )
    return meta


def whole_passes(rows: Sequence[StepRow], cells: int) -> list[StepRow]:
    """Rows without the passes over a grid of so many cells that some model lacks: a table has all or none."""
    counts = Counter((row.model, row.repetition) for row in rows)
    models = {row.model for row in rows}
    return [row for row in rows if all(counts[model, row.repetition] == cells for model in models)]


def steps_meta(grid: StepGrid, seen: Environment, copy_bytes_per_s: float, *, packed: bool) -> StepMeta:
    """How steps were measured; `eager` whatever the forward is: the host's share of a step is in its time."""
    return StepMeta(
        schema=1,
        title=f"Steps of the decoder with random weights on {seen.device}",
        packed=packed,
        acceptance=grid.acceptance,
        accepted_draft_tokens=ACCEPTED,
        copy_bytes_per_s=copy_bytes_per_s,
        environment=seen,
    )


@torch.inference_mode()
def step_grid(
    subject: Subject, *, graphs: bool | None = None, clock: Callable[[], float] = time.perf_counter
) -> Iterator[StepRow]:
    """Cells of every pass, batch by batch, as they are done.

    Each step accepts ACCEPTED draft tokens (or as many as its tree is deep). graphs: CUDA graphs; None: where
    on CUDA. Raises UsageError for graphs on a CPU.
    """
    device, grid = subject.model.device, subject.grid
    on_cuda = device.type == "cuda"
    for repetition in range(grid.passes):
        for batch in grid.batches:
            steps = subject.steps(batch, graphs=on_cuda if graphs is None else graphs)
            timings = time_in_turns(steps, device, repeats=grid.repeats, clock=clock)
            steps = {}  # cache and graphs of this batch make room for those of the next
            if on_cuda:
                torch.cuda.empty_cache()
            for count, timing in timings.items():
                yield subject.row(batch, count, repetition, timing)
