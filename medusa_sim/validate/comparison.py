"""How predictions and measurements of one quantity differ, and the choice that follows from either."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from medusa_sim.arrays import FloatArray

ALLOWANCE = 0.10
"""Error beyond the passes' own disagreement that a cell may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Errors of one quantity as fractions of the measured one.

    floor: mean disagreement of the passes, the error that even a perfect prediction would have. within: share
    of cells whose error is at most floor + ALLOWANCE.
    """

    quantity: str
    cells: int
    mean: float
    worst: float
    worst_at: str
    bias: float
    floor: float
    within: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The best count of candidates by predicted and by measured steps; 1 is "do not enable".

    grid_steps: how many places of the measured grid lie between them. regret: share of the attainable
    speedup that the predicted choice gives away.
    """

    model: str
    batch: int
    predicted: int
    measured: int
    grid_steps: int
    regret: float


def comparison(quantity: str, ratio: FloatArray, floors: Sequence[float], where: Sequence[str]) -> Comparison:
    """Errors of predicted / measured. floors: disagreement of the passes, where: words, for each cell."""
    error = np.abs(ratio - 1.0)
    worst = int(np.argmax(error))
    floor = float(np.mean(floors))
    return Comparison(
        quantity=quantity,
        cells=len(error),
        mean=float(np.mean(error)),
        worst=float(error[worst]),
        worst_at=where[worst],
        bias=float(np.mean(ratio - 1.0)),
        floor=floor,
        within=float(np.mean(error <= floor + ALLOWANCE)),
    )


def disagreement(passes: tuple[float, ...]) -> float:
    """(largest - smallest) / mean of the passes; 0 for one pass."""
    return (max(passes) - min(passes)) / float(np.mean(passes))


def choice_of(
    model: str, batch: int, candidates: Sequence[int], measured: FloatArray, predicted: FloatArray
) -> Choice:
    """The best count by predicted and by measured gain, for counts in ascending order."""
    best, chosen = int(np.argmax(measured)), int(np.argmax(predicted))
    return Choice(
        model=model,
        batch=batch,
        predicted=candidates[chosen],
        measured=candidates[best],
        grid_steps=abs(best - chosen),
        regret=1.0 - float(measured[chosen] / measured[best]),
    )
