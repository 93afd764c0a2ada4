"""Whole generations of a trained decoder against the simulator: tokens per step, speedup by the wall clock.

The tokens per step of each tree are predicted from head accuracies that other prompts gave, its step from the
device's operators, and the speedup is one over the other. `gaps` are fitted to the first plain and the first
speculative cell, as for steps; the latter is left out of the scores of speedups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from medusa_sim.acceptance.heads import HeadAccuracy, expected_tokens_per_step, optimal_order
from medusa_sim.acceptance.profile import load_acceptance
from medusa_sim.data import DataDir
from medusa_sim.errors import DataError
from medusa_sim.gpus.gpu import Gpu
from medusa_sim.lab.measure.cells import RunRow, read_runs
from medusa_sim.lab.measure.predicted_step import decoder_model, decoder_step, fitted_gaps
from medusa_sim.lab.validate.comparison import (
    Cell,
    CountChoice,
    Deviation,
    choice_of,
    comparison,
    disagreement,
)
from medusa_sim.latency.by_name import Fallback, LatencyName, latency_model
from medusa_sim.latency.calibrated import CalibratedLatency


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsCell(Cell):
    """Generations. speedup: tokens/s over plain decoding, same batch; speedups: of each pass.

    step_us: of the fastest pass; tokens_per_step: on average over the passes.
    """

    tokens_per_step: float
    predicted_tokens_per_step: float
    step_us: float
    predicted_step_us: float
    speedup: float
    speedups: tuple[float, ...]
    predicted_speedup: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsValidation:
    """Everything that a folder of runs tells."""

    cells: tuple[RunsCell, ...]
    comparisons: tuple[Deviation, ...]
    choices: tuple[CountChoice, ...]


def validate_runs(
    folder: Path,
    gpu: Gpu,
    *,
    kernels: str,
    latency: LatencyName,
    fallback: Fallback,
    data_dir: DataDir = None,
) -> RunsValidation:
    """Predicted against measured generations of `folder` (see `medusa_sim.lab.measure.cells`).

    Raises DataError for malformed files or a profile without heads; SpecError or CoverageError from the
    latency model.
    """
    rows = read_runs(folder)
    calibrated = partial(CalibratedLatency, gpu, kernels, cold=False)
    model_of = latency_model(gpu, latency, calibrated, fallback=fallback, data_dir=data_dir)
    cells: list[RunsCell] = []
    for name in dict.fromkeys(row.model for row in rows):
        mine = [row for row in rows if row.model == name]
        heads = load_acceptance(mine[0].acceptance, data_dir).heads
        if heads is None:
            raise DataError(f"{folder}: acceptance {mine[0].acceptance} has no heads to predict trees from")
        model = decoder_model(folder, name, mine[0].dtype)
        kernels_us = {
            (row.batch, row.candidates): float(
                decoder_step(model, model_of, row.batch, row.seq_len, row.candidates, row.depth).device_us
            )
            for row in mine
        }
        cells += _cells(mine, kernels_us, heads)
    return RunsValidation(
        cells=tuple(cells), comparisons=tuple(_comparisons(cells)), choices=tuple(_choices(cells))
    )


def _cells(
    rows: Sequence[RunRow], kernels_us: dict[tuple[int, int], float], heads: HeadAccuracy
) -> list[RunsCell]:
    keys = sorted({(row.batch, row.candidates) for row in rows})
    passes = {key: [row for row in rows if (row.batch, row.candidates) == key] for key in keys}
    step_us = {key: min(row.step_us for row in group) for key, group in passes.items()}
    plain_batches = {batch for batch, count in keys if count == 1}
    if any(batch not in plain_batches for batch, _ in keys) or len(keys) == len(plain_batches):
        raise DataError(
            f"{rows[0].model}: runs of a tree, and plain ones (candidates 1) at every batch, are needed"
        )
    fitted_to = [next(key for key in keys if (key[1] > 1) == drafts) for drafts in (False, True)]
    gaps = fitted_gaps([step_us[key] - kernels_us[key] for key in fitted_to])
    order = optimal_order(heads, max(count for _, count in keys))
    predicted_us = {key: kernels_us[key] + gaps.step_us(key[1]) for key in keys}
    group = []
    for key in keys:
        batch, count = key
        tokens = expected_tokens_per_step(order.tree(count), heads) if count > 1 else 1.0
        plain = passes[batch, 1]
        measured_tokens = float(np.mean([row.tokens_per_step for row in passes[key]]))
        speedups = tuple(
            row.tokens_per_step * base.step_us / row.step_us
            for row, base in zip(passes[key], plain, strict=True)
        )
        group.append(
            RunsCell(
                model=rows[0].model,
                batch=batch,
                candidates=count,
                tokens_per_step=measured_tokens,
                predicted_tokens_per_step=tokens,
                step_us=step_us[key],
                predicted_step_us=predicted_us[key],
                speedup=measured_tokens * step_us[batch, 1] / step_us[key],
                speedups=speedups,
                predicted_speedup=tokens * predicted_us[batch, 1] / predicted_us[key],
                is_fitted=key in fitted_to,
            )
        )
    return group


def _comparisons(cells: Sequence[RunsCell]) -> list[Deviation]:
    """Tokens per step at one batch (they do not depend on it), and speedups of every cell."""
    first = min(cell.batch for cell in cells)
    trees = [cell for cell in cells if cell.candidates > 1 and cell.batch == first]
    tokens = np.asarray([cell.predicted_tokens_per_step / cell.tokens_per_step for cell in trees])
    deviations = [comparison("tokens per step", tokens, [0.0] * len(trees), [cell.where for cell in trees])]
    scored = [cell for cell in cells if cell.candidates > 1 and not cell.is_fitted]
    if scored:
        gain = np.asarray([cell.predicted_speedup / cell.speedup for cell in scored])
        floors = [disagreement(cell.speedups) for cell in scored]
        deviations.append(comparison("speedup, wall clock", gain, floors, [cell.where for cell in scored]))
    return deviations


def _choices(cells: Sequence[RunsCell]) -> list[CountChoice]:
    choices = []
    for model, batch in dict.fromkeys((cell.model, cell.batch) for cell in cells):
        grid = [cell for cell in cells if (cell.model, cell.batch) == (model, batch)]
        choices.append(
            choice_of(
                model,
                batch,
                [cell.candidates for cell in grid],
                np.asarray([cell.speedup for cell in grid]),
                np.asarray([cell.predicted_speedup for cell in grid]),
            )
        )
    return choices
