"""Scores of predicted steps: errors of steps and speedups, and the counts that follow from both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from medusa_sim.errors import CoverageError
from medusa_sim.lab.measure.disagreement import gains_differ, halves_differ
from medusa_sim.lab.measure.spread import lower_quartile
from medusa_sim.lab.validate.comparison import (
    Cell,
    CountChoice,
    Deviation,
    choice_of,
    comparison,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCell(Cell):
    """A step, microseconds.

    measured_us: the lower quartile of the passes: other work on the machine rather slows a step.
    """

    seq_len: int
    tokens_per_step: float
    measured_us: float
    passes_us: tuple[float, ...]
    predicted_us: float


def step_comparisons(cells: Sequence[StepCell]) -> list[Deviation]:
    """Decoding steps, verification steps, and speedups at equal batch and length."""
    scored = [cell for cell in cells if not cell.is_fitted]
    deviations = []
    for quantity, is_plain in (("decode step", True), ("verify step", False)):
        chosen = [cell for cell in scored if (cell.candidates == 1) == is_plain]
        if chosen:
            ratio = np.asarray([cell.predicted_us / cell.measured_us for cell in chosen])
            floors = [halves_differ(cell.passes_us, lower_quartile) for cell in chosen]
            deviations.append(comparison(quantity, ratio, floors, [cell.where for cell in chosen]))
    pairs = [(_baseline(cells, cell), cell) for cell in scored if cell.candidates > 1]
    if pairs:
        ratio = np.asarray(
            [
                base.predicted_us / cell.predicted_us / (base.measured_us / cell.measured_us)
                for base, cell in pairs
            ]
        )
        floors = [gains_differ(base.passes_us, cell.passes_us) for base, cell in pairs]
        deviations.append(comparison("speedup", ratio, floors, [cell.where for _, cell in pairs]))
    return deviations


def _floor(cells: Sequence[StepCell], plain: StepCell, best: StepCell) -> float | None:
    """How far halves of the passes disagree about a gain, or about all of its model on average if that is
    more: with few passes two halves may agree by chance. None for one pass.
    """
    if len(best.passes_us) == 1:
        return None
    trees = [cell for cell in cells if cell.model == best.model and cell.candidates > 1]
    mean = np.mean([gains_differ(_baseline(cells, cell).passes_us, cell.passes_us) for cell in trees])
    return max(gains_differ(plain.passes_us, best.passes_us), float(mean))


def _baseline(cells: Sequence[StepCell], cell: StepCell) -> StepCell:
    place = (cell.model, cell.batch, cell.seq_len)
    for other in cells:
        if other.candidates == 1 and (other.model, other.batch, other.seq_len) == place:
            return other
    raise CoverageError(f"{cell.where}: no decoding step at this batch and length was measured")


def step_choices(cells: Sequence[StepCell]) -> list[CountChoice]:
    """Best counts of every model and batch with two counts or more."""
    choices = []
    for place in dict.fromkeys((cell.model, cell.batch, cell.seq_len) for cell in cells):
        grid = sorted(
            (cell for cell in cells if (cell.model, cell.batch, cell.seq_len) == place),
            key=lambda cell: cell.candidates,
        )
        if len(grid) < 2:
            continue
        tokens = np.asarray([cell.tokens_per_step for cell in grid])
        measured = tokens / np.asarray([cell.measured_us for cell in grid])
        plain, best = grid[0], grid[1 + int(np.argmax(measured[1:]))]
        choices.append(
            choice_of(
                place[0],
                place[1],
                [cell.candidates for cell in grid],
                measured,
                tokens / np.asarray([cell.predicted_us for cell in grid]),
                gain=best.tokens_per_step * plain.measured_us / best.measured_us,
                floor=_floor(cells, plain, best),
            )
        )
    return choices
