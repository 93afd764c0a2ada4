"""Speculative decoding with one draft token (RSD paper section 2), and drafting that is taken as certain."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from medusa_sim.arrays import FloatArray
from medusa_sim.errors import DataError

LAW_TOLERANCE = 1e-9
"""How far the sum of a law may lie from 1: float64 sums of a vocabulary stay well inside."""


def checked_law(law: npt.ArrayLike, name: str) -> FloatArray:
    """`law` as floats.

    Raises:
        DataError: an entry that is negative or not finite, or a sum that is not 1.
    """
    array = np.asarray(law, dtype=np.float64)
    if array.ndim < 1 or array.shape[-1] < 1 or not np.all(np.isfinite(array) & (array >= 0.0)):
        raise DataError(f"{name}: a probability law has finite entries from 0 along its last axis")
    total = array.sum(axis=-1)
    if np.any(np.abs(total - 1.0) > LAW_TOLERANCE):
        worst = float(np.ravel(total)[np.argmax(np.abs(np.ravel(total) - 1.0))])
        raise DataError(f"{name}: a probability law sums to 1, given {worst:.9g}")
    return array


def normalised(mass: FloatArray, fallback: FloatArray) -> FloatArray:
    """`mass` scaled to sum 1; `fallback` where there is no mass at all (draft equals target: 0 / 0)."""
    total = mass.sum(axis=-1, keepdims=True)
    return np.asarray(np.where(total > 0.0, mass / np.where(total > 0.0, total, 1.0), fallback))


def residual(p: FloatArray, q: FloatArray) -> FloatArray:
    """Law of the token drawn after a rejection: Norm[(q - p)+]; q itself where p equals q."""
    return normalised(np.maximum(q - p, 0.0), q)


def sd_acceptance(p: npt.ArrayLike, q: npt.ArrayLike) -> FloatArray:
    """Probability that a token drawn from p is accepted: sum min(p, q) = 1 - TV(p, q). Shape: contexts."""
    draft, target = checked_law(p, "draft law"), checked_law(q, "target law")
    return np.asarray(np.minimum(draft, target).sum(axis=-1))


def sd_output_law(p: npt.ArrayLike, q: npt.ArrayLike) -> FloatArray:
    """Law of the emitted token, accepted or redrawn; equals q (Leviathan et al. 2023)."""
    draft, target = checked_law(p, "draft law"), checked_law(q, "target law")
    accepted = np.minimum(draft, target)
    rejected = 1.0 - accepted.sum(axis=-1, keepdims=True)
    return np.asarray(accepted + rejected * residual(draft, target))


def one_hot_children(p: npt.ArrayLike, q: npt.ArrayLike, children: int) -> FloatArray:
    """(..., children) probability that the k-th likeliest draft token is the accepted one.

    Engines that draft by argmax or top-k take the draft as certain (its law as one-hot): a child x is
    accepted with q(x) and, if not, struck from q. Unconditionally that is q(x) itself, which at
    temperature above 0 is less than 1 - TV(p, q) promises.

    Raises:
        DataError: more children than tokens.
    """
    draft, target = checked_law(p, "draft law"), checked_law(q, "target law")
    if not 1 <= children <= draft.shape[-1]:
        raise DataError(f"{children} children asked for, the vocabulary has {draft.shape[-1]} tokens")
    best = np.argsort(-draft, axis=-1, kind="stable")[..., :children]
    return np.asarray(np.take_along_axis(np.broadcast_to(target, draft.shape), best, axis=-1))
