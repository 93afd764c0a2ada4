"""Distributions over a vocabulary, and the residual of a rejection: what every draft-model method needs."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from medusa_sim.arrays import FloatArray
from medusa_sim.errors import DataError

SUM_TOLERANCE = 1e-9
"""How far the sum of a distribution may lie from 1: float64 sums of a vocabulary stay well inside."""


def checked_distribution(probabilities: npt.ArrayLike, name: str) -> FloatArray:
    """`probabilities` as floats.

    Raises:
        DataError: an entry that is negative or not finite, or a sum that is not 1.
    """
    array = np.asarray(probabilities, dtype=np.float64)
    if array.ndim < 1 or array.shape[-1] < 1 or not np.all(np.isfinite(array) & (array >= 0.0)):
        raise DataError(f"{name}: a probability distribution has finite entries from 0 along its last axis")
    total = array.sum(axis=-1)
    if np.any(np.abs(total - 1.0) > SUM_TOLERANCE):
        worst = float(np.ravel(total)[np.argmax(np.abs(np.ravel(total) - 1.0))])
        raise DataError(f"{name}: a probability distribution sums to 1, given {worst:.9g}")
    return array


def checked_pair(draft: npt.ArrayLike, target: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    """The distributions of draft and target, (..., vocabulary) each. Raises DataError for what is none."""
    return checked_distribution(draft, "draft"), checked_distribution(target, "target")


def normalised(mass: FloatArray, fallback: FloatArray) -> FloatArray:
    """`mass` scaled to sum 1; `fallback` where there is no mass at all (draft equals target: 0 / 0)."""
    total = mass.sum(axis=-1, keepdims=True)
    return np.asarray(np.where(total > 0.0, mass / np.where(total > 0.0, total, 1.0), fallback))


def residual(draft: FloatArray, target: FloatArray) -> FloatArray:
    """Distribution of the token drawn after a rejection: Norm[(target - draft)+].

    The target's own where both are equal.
    """
    return normalised(np.maximum(target - draft, 0.0), target)
