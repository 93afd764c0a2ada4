"""Block efficiencies of chains that go through the measured ones.

    (D13) b(n) = b(n - 1) + min(g(n) sqrt(d / g(L)), d) beyond the longest measured chain, of L drafts

g(n) is the gain of draft n in the fit, d what the last measured draft added. Between measured chains powers
of the falls of g meet the next one; after the last one half of its misfit is carried on. So no draft adds
more than the one before it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from medusa_sim.arrays import FloatArray

STEEPEST = 64.0
"""Power of the fitted gains beyond which none is searched."""


def chain_through(measured: Mapping[int, float], fitted: FloatArray) -> FloatArray:
    """(lengths,) block efficiencies of chains of 1, 2, ... drafts that go through the measured ones.

    measured: by length, shortest first. fitted: (lengths,) those of the fit, to the longest measured one at
    least, which say how gains fall between and after them (D13).
    """
    gains = np.diff(np.concatenate([[1.0], fitted]))
    falls = gains / np.concatenate([[1.0], gains[:-1]])
    through: list[float] = []
    at, value, added = 0, 1.0, 1.0
    for length, tokens in measured.items():
        through += _between(tokens - value, added, falls[at:length]).tolist()
        at, value, added = length, tokens, max(through[-1], 0.0)
    behind = gains[at:]
    if at:
        behind = np.minimum(behind * np.sqrt(added / gains[at - 1]), added)
    return np.asarray(1.0 + np.cumsum(np.concatenate([through, behind])))


def _between(needed: float, before: float, falls: FloatArray) -> FloatArray:
    """What each of some drafts adds, `needed` in all: `before` times powers of how the fitted gains fall.

    Alike, where they would have to add more than the draft before, or nothing: noise of measurements.
    """

    def added(power: float) -> FloatArray:
        return np.asarray(before * np.cumprod(falls**power))

    def beyond(power: float) -> float:
        return float(added(power).sum()) - needed

    from scipy.optimize import brentq

    if beyond(0.0) <= 0.0 or beyond(STEEPEST) >= 0.0:
        return np.full(falls.size, needed / falls.size)
    return added(float(brentq(beyond, 0.0, STEEPEST)))


def possible(measured: Mapping[int, float], length: int) -> tuple[float, float]:
    """(least, most) tokens of a chain beside the measured ones (by length, shortest first).

    A longer chain emits no fewer, and no draft adds more than the one before it: the course is concave.
    """
    known = {0: 1.0, **measured}
    before = [n for n in known if n <= length]
    behind = [n for n in known if n > length]
    last = before[-1]
    earlier = before[-2] if len(before) > 1 else None
    steepest = 1.0 if earlier is None else (known[last] - known[earlier]) / (last - earlier)
    most = known[last] + max(steepest, 0.0) * (length - last)
    least = known[last]
    if behind:
        following = behind[0]
        slope = (known[following] - known[last]) / (following - last)
        least = known[last] + slope * (length - last)
    return least, most
