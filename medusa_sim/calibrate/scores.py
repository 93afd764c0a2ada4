"""How good predicted times are: error, error of the ratio to one token, and what a wrong choice costs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from medusa_sim.arrays import FloatArray, IntArray


def mape(predicted: FloatArray, measured: FloatArray) -> float:
    """Mean absolute percentage error as a fraction: mean |predicted / measured - 1|."""
    return float(np.mean(np.abs(predicted / measured - 1.0)))


def ratio_mape(predicted: FloatArray, measured: FloatArray, m: IntArray, shape: IntArray) -> float:
    """MAPE of T(m) / T(1) over m > 1, as a fraction.

    All arguments have one entry per row; `shape` labels the rows that share a weight matrix. A shape
    without a row at m = 1 has no ratio and is left out; with none left the result is NaN.
    """
    errors = []
    for label in np.unique(shape):
        rows = shape == label
        first, rest = rows & (m == 1), rows & (m > 1)
        if first.any() and rest.any():
            base = np.median(predicted[first]) / np.median(measured[first])
            errors.append(np.abs(predicted[rest] / measured[rest] / base - 1.0))
    return float(np.mean(np.concatenate(errors))) if errors else float("nan")


GROWTHS = (2, 4, 8)
"""Times as many tokens: what verification asks of a layer."""


def growth_mape(predicted: FloatArray, measured: FloatArray, tokens: IntArray, shape: IntArray) -> float:
    """MAPE of T(2, 4, 8 x tokens) / T(tokens), as a fraction; NaN where no shape has such a pair.

    All arguments have one entry per row; `shape` labels the rows that differ in tokens alone.
    """
    order = np.lexsort((tokens, shape))
    place = shape[order] * (int(tokens.max()) + 1) + tokens[order]
    error = np.log(predicted / measured)[order]
    errors = []
    for growth in GROWTHS:
        wanted = place + (growth - 1) * tokens[order]
        at = np.minimum(np.searchsorted(place, wanted), len(place) - 1)
        found = (place[at] == wanted) & (growth * tokens[order] <= tokens.max())
        errors.append(np.abs(np.expm1(error[at][found] - error[found])))
    every = np.concatenate(errors)
    return float(np.mean(every)) if every.size else float("nan")


@dataclass(frozen=True, slots=True)
class ChoiceRegret:
    """Share of the attainable speedup that choosing by predicted times gives away, per case."""

    regret: FloatArray
    chosen: IntArray
    best: IntArray

    @property
    def mean(self) -> float:
        """Mean over the cases."""
        return float(np.mean(self.regret))

    @property
    def worst(self) -> float:
        """The worst case."""
        return float(np.max(self.regret))


def choice_regret(
    predicted: FloatArray, measured: FloatArray, candidates: IntArray, tokens_per_step: FloatArray
) -> ChoiceRegret:
    """1 - speedup(predicted best count) / speedup(true best count).

    predicted, measured: step times, shape (cases, counts), a case being a model at a batch;
    candidates, tokens_per_step: shape (counts,). The speedup of a count is tokens_per_step over its
    time; the decode step it is divided by cancels within a case.
    """
    speedup = tokens_per_step / measured
    chosen = np.argmax(tokens_per_step / predicted, axis=-1)
    best = np.argmax(speedup, axis=-1)
    cases = np.arange(len(speedup))
    regret = 1.0 - speedup[cases, chosen] / speedup[cases, best]
    return ChoiceRegret(regret=regret, chosen=candidates[chosen], best=candidates[best])
