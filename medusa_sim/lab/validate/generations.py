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
from medusa_sim.lab.measure.predicted_step import Place, decoder_model, decoder_step, predicted_steps
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
            place: float(decoder_step(model, model_of, *place).device_us) for place in _passes(mine)
        }
        cells += _cells(mine, kernels_us, heads)
    return RunsValidation(
        cells=tuple(cells), comparisons=tuple(_comparisons(cells)), choices=tuple(_choices(cells))
    )


def _passes(rows: Sequence[RunRow]) -> dict[Place, list[RunRow]]:
    """Rows by place, in ascending order."""
    passes: dict[Place, list[RunRow]] = {}
    for row in sorted(rows, key=lambda row: (row.batch, row.candidates)):
        passes.setdefault(Place(row.batch, row.seq_len, row.candidates, row.depth), []).append(row)
    return passes


def _cells(rows: Sequence[RunRow], kernels_us: dict[Place, float], heads: HeadAccuracy) -> list[RunsCell]:
    passes = _passes(rows)
    plain = {place.batch: place for place in passes if place.candidates == 1}
    if any(place.batch not in plain for place in passes) or len(passes) == len(plain):
        raise DataError(
            f"{rows[0].model}: runs of a tree, and plain ones (candidates 1) at every batch, are needed"
        )
    step_us = {place: min(row.step_us for row in group) for place, group in passes.items()}
    predicted = predicted_steps(kernels_us, step_us)
    order = optimal_order(heads, max(place.candidates for place in passes))
    cells = []
    for place, group in passes.items():
        base, count = plain[place.batch], place.candidates
        tokens = expected_tokens_per_step(order.tree(count), heads) if count > 1 else 1.0
        measured_tokens = float(np.mean([row.tokens_per_step for row in group]))
        speedups = tuple(
            row.tokens_per_step * other.step_us / row.step_us
            for row, other in zip(group, passes[base], strict=True)
        )
        cells.append(
            RunsCell(
                model=rows[0].model,
                batch=place.batch,
                candidates=count,
                tokens_per_step=measured_tokens,
                predicted_tokens_per_step=tokens,
                step_us=step_us[place],
                predicted_step_us=predicted.step_us[place],
                speedup=measured_tokens * step_us[base] / step_us[place],
                speedups=speedups,
                predicted_speedup=tokens * predicted.step_us[base] / predicted.step_us[place],
                is_fitted=place in predicted.fitted_to,
            )
        )
    return cells


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
