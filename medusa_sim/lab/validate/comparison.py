"""How predictions and measurements of one quantity differ, and the choice that follows from either."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from medusa_sim.arrays import FloatArray

CLOSE = 0.05
"""Regret below which a choice is as good as the best."""
ALLOWANCE = 0.10
"""Error beyond the passes' own disagreement that a cell may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What was measured and predicted at one batch and count. is_fitted: overhead comes from it."""

    model: str
    batch: int
    candidates: int
    is_fitted: bool

    @property
    def where(self) -> str:
        """The cell in words."""
        return f"{self.model}, batch {self.batch}, {self.candidates} candidates"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
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
class CountChoice:
    """The best count of candidates by predicted and by measured steps; 1 is "do not enable".

    grid_steps: how many places of the measured grid lie between them. regret: share of the attainable
    speedup that the predicted choice gives away. gain: measured speedup of the best tree over none. floor:
    how far halves of the passes disagree about it, or about all gains on average if that is more; None where
    that is not known.
    """

    model: str
    batch: int
    predicted: int
    measured: int
    grid_steps: int
    regret: float
    gain: float | None = None
    floor: float | None = None

    @property
    def verdict(self) -> str:
        """What a measurement of this accuracy says about the choice."""
        if self.floor is not None and self.gain is not None and self.floor >= abs(self.gain - 1.0):
            return "cannot be judged here"
        if self.predicted == self.measured:
            return "right"
        if self.regret <= CLOSE:
            return f"within {100 * CLOSE:.0f} %"
        return "cannot be judged here" if self.floor is not None and self.regret <= self.floor else "wrong"


def comparison(quantity: str, ratio: FloatArray, floors: Sequence[float], where: Sequence[str]) -> Deviation:
    """Errors of predicted / measured. floors: disagreement of the passes, where: words, for each cell."""
    error = np.abs(ratio - 1.0)
    worst = int(np.argmax(error))
    known = [each for each in floors if not math.isnan(each)]
    floor = float(np.mean(known)) if known else 0.0
    return Deviation(
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
    model: str,
    batch: int,
    candidates: Sequence[int],
    measured: FloatArray,
    predicted: FloatArray,
    *,
    gain: float | None = None,
    floor: float | None = None,
) -> CountChoice:
    """The best count by predicted and by measured gain, for counts in ascending order.

    gain, floor: of `CountChoice`.
    """
    best, chosen = int(np.argmax(measured)), int(np.argmax(predicted))
    return CountChoice(
        model=model,
        batch=batch,
        predicted=candidates[chosen],
        measured=candidates[best],
        grid_steps=abs(best - chosen),
        regret=1.0 - float(measured[chosen] / measured[best]),
        gain=gain,
        floor=floor,
    )
