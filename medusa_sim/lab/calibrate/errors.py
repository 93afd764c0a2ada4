"""How good predicted times are: their error, and that of the ratio to one token."""

from __future__ import annotations

import numpy as np

from medusa_sim.arrays import FloatArray, IntArray

GROWTHS = (2, 4, 8)
"""Factors on the number of tokens, as verification multiplies it."""


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
        matched = (place[at] == wanted) & (growth * tokens[order] <= tokens.max())
        errors.append(np.abs(np.expm1(error[at][matched] - error[matched])))
    every = np.concatenate(errors)
    return float(np.mean(every)) if every.size else float("nan")
