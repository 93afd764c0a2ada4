"""Tokens per step as a curve over the number of candidates: a logarithm or a monotone interpolation.

A curve says nothing of the tree of a count; it is what a paper's figure or an engine's log gives.
`ShapedAcceptance` (`acceptance.shaped`) knows the best tree of each size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from medusa_sim.acceptance.heads import NORMAL_90TH
from medusa_sim.arrays import Band, FloatArray
from medusa_sim.errors import CoverageError, DataError, UsageError


def checked_candidates(candidates: npt.ArrayLike, candidates_max: int, name: str) -> FloatArray:
    """The counts as floats of the same shape.

    Raises:
        UsageError: a count below 1 (the root alone is 1) or not a whole number.
        CoverageError: a count beyond `candidates_max`, the end of what `name` was measured on.
    """
    counts = np.asarray(candidates, dtype=np.float64)
    if counts.size and not (np.all(counts >= 1.0) and np.all(counts == np.floor(counts))):
        bad = counts[~((counts >= 1.0) & (counts == np.floor(counts)))].flat[0]
        raise UsageError(f"candidates {bad:g}: whole numbers from 1 (the root alone) are allowed")
    if counts.size and counts.max() > candidates_max:
        raise CoverageError(
            f"acceptance profile {name!r} covers candidates 1..{candidates_max}, given {counts.max():g}: "
            "lower --candidates or choose a profile measured further out"
        )
    return counts


def fitted_log_slope(candidates: npt.ArrayLike, tokens_per_step: npt.ArrayLike) -> float:
    """Least-squares slope of `tokens_per_step = 1 + slope ln(candidates)`.

    The offset is 1 by definition: one candidate is plain decoding. (The Medusa paper, appendix G,
    prints `0.477 log(n)` without it; its Figure 21 shows the form with it.)

    Raises:
        DataError: fewer than one point beyond candidates = 1, or shapes that differ.
    """
    n = np.asarray(candidates, dtype=np.float64)
    tau = np.asarray(tokens_per_step, dtype=np.float64)
    if n.shape != tau.shape or n.ndim != 1:
        raise DataError(
            f"candidates {n.shape} and tokens_per_step {tau.shape}: two lists of one length are needed"
        )
    if not (np.all(np.isfinite(n)) and np.all(np.isfinite(tau)) and np.all(n >= 1.0)):
        raise DataError("candidates must be at least 1 and every value finite")
    log_n = np.log(n)
    if not np.any(log_n > 0.0):
        raise DataError("a logarithmic curve needs at least one point beyond candidates = 1")
    return float(log_n @ (tau - 1.0) / (log_n @ log_n))


@dataclass(frozen=True)
class LogCurve:
    """`tokens_per_step = 1 + slope ln(candidates)` up to `candidates_max`.

    `points` are the published or measured (candidates, tokens_per_step) it is compared with.
    """

    name: str
    slope: float
    candidates_max: int
    points: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        """Raises DataError for a slope that falls or emits more tokens than candidates."""
        if not 0.0 <= self.slope <= 1.0 or self.candidates_max < 1:
            raise DataError(
                f"acceptance curve {self.name!r}: slope {self.slope:g} must lie in 0..1 (tokens per step "
                f"never exceed candidates) and candidates_max {self.candidates_max} be at least 1"
            )

    @classmethod
    def fitted(cls, name: str, points: Sequence[tuple[int, float]]) -> LogCurve:
        """The least-squares curve through `points`; covers up to the largest of them."""
        n, tau = (np.array(column, dtype=np.float64) for column in zip(*points, strict=True))
        return cls(name, fitted_log_slope(n, tau), int(n.max()), tuple((int(c), float(t)) for c, t in points))

    def tokens_per_step(self, candidates: npt.ArrayLike) -> FloatArray:
        """Mean tokens emitted per step, of the shape of `candidates`; exactly 1 at one candidate."""
        counts = checked_candidates(candidates, self.candidates_max, self.name)
        return np.asarray(1.0 + self.slope * np.log(counts))

    def residuals(self) -> FloatArray:
        """(published - curve) / curve at every point beyond one candidate, as fractions."""
        beyond = [(n, tau) for n, tau in self.points if n > 1]
        if not beyond:
            return np.empty(0)
        n, tau = (np.array(column, dtype=np.float64) for column in zip(*beyond, strict=True))
        return np.asarray(tau / self.tokens_per_step(n) - 1.0)

    def band(self, candidates: npt.ArrayLike) -> Band:
        """80 % band: root mean square of the residuals (as fractions) on the curve; exactly 1 at 1."""
        value = self.tokens_per_step(candidates)
        residuals = self.residuals()
        half = NORMAL_90TH * float(np.sqrt(np.mean(residuals**2))) if residuals.size else 0.0
        draft = value - 1.0
        low = 1.0 + np.maximum(draft - half * value * (draft > 0.0), 0.0)
        high = 1.0 + draft + half * value * (draft > 0.0)
        return Band(np.asarray(low), np.asarray(np.minimum(high, np.asarray(candidates, dtype=np.float64))))


def pchip_slopes(x: FloatArray, y: FloatArray) -> FloatArray:
    """Derivatives at the knots that keep a cubic Hermite curve monotone (Fritsch and Butland 1984).

    Written out here (as in scipy's PchipInterpolator, against which a test compares) because
    importing scipy costs more than the whole default sweep.
    """
    step = np.diff(x)
    secant = np.diff(y) / step
    if x.size == 2:
        return np.full(2, secant[0])
    slopes = np.zeros_like(y)
    w1 = 2.0 * step[1:] + step[:-1]
    w2 = step[1:] + 2.0 * step[:-1]
    same_sign = secant[:-1] * secant[1:] > 0.0
    left = np.where(same_sign, secant[:-1], 1.0)
    right = np.where(same_sign, secant[1:], 1.0)
    slopes[1:-1] = np.where(same_sign, (w1 + w2) / (w1 / left + w2 / right), 0.0)
    for end, (h0, h1, s0, s1) in (
        (0, (step[0], step[1], secant[0], secant[1])),
        (-1, (step[-1], step[-2], secant[-1], secant[-2])),
    ):
        slope = ((2.0 * h0 + h1) * s0 - h0 * s1) / (h0 + h1)
        if slope * s0 <= 0.0:
            slope = 0.0
        elif s0 * s1 <= 0.0 and abs(slope) > 3.0 * abs(s0):
            slope = 3.0 * s0
        slopes[end] = slope
    return slopes


@dataclass(frozen=True)
class TableCurve:
    """Monotone interpolation in ln(candidates) of measured points; exact at each of them.

    `error_tokens` is the half width of the 80 % band at the points (the reading error of a figure,
    or 1.28 standard errors of a measurement), in tokens per step.
    """

    name: str
    points: tuple[tuple[int, float], ...]
    error_tokens: float = 0.0
    _knots: tuple[FloatArray, FloatArray, FloatArray] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Sort and check the points; raises DataError when they are no curve."""
        if not (np.isfinite(self.error_tokens) and self.error_tokens >= 0.0):
            raise DataError(
                f"acceptance curve {self.name!r}: error_tokens {self.error_tokens:g}; a half width in tokens "
                "from 0 is needed"
            )
        points = sorted({(1, 1.0), *self.points})
        n, tau = (np.array(column, dtype=np.float64) for column in zip(*points, strict=True))
        if n.size < 2 or np.any(np.diff(n) <= 0.0) or n[0] < 1.0:
            raise DataError(
                f"acceptance curve {self.name!r}: candidates must be different whole numbers from 1, "
                "tokens per step at 1 is exactly 1, and one point beyond it is needed"
            )
        if not np.all(np.isfinite(tau)) or np.any(np.diff(tau) < 0.0):
            raise DataError(f"acceptance curve {self.name!r}: tokens_per_step must be finite and never fall")
        if np.any(tau > n):
            raise DataError(f"acceptance curve {self.name!r}: a step cannot emit more tokens than candidates")
        x = np.log(n)
        object.__setattr__(self, "_knots", (x, tau, pchip_slopes(x, tau)))

    @property
    def candidates_max(self) -> int:
        """The largest measured count."""
        return max(n for n, _ in self.points)

    def tokens_per_step(self, candidates: npt.ArrayLike) -> FloatArray:
        """Mean tokens emitted per step, of the shape of `candidates`; exactly 1 at one candidate."""
        counts = checked_candidates(candidates, self.candidates_max, self.name)
        knots, tau, slopes = self._knots
        x = np.log(counts)
        i = np.clip(np.searchsorted(knots, x, side="right") - 1, 0, knots.size - 2)
        h = knots[i + 1] - knots[i]
        t = (x - knots[i]) / h
        rise = tau[i + 1] - tau[i]
        value = tau[i] + rise * t * t * (3.0 - 2.0 * t)
        value = value + h * t * (1.0 - t) * (slopes[i] * (1.0 - t) - slopes[i + 1] * t)
        return np.asarray(np.minimum(value, counts))

    def band(self, candidates: npt.ArrayLike) -> Band:
        """80 % band: `error_tokens` either way, never below 1 token, nothing at one candidate."""
        value = self.tokens_per_step(candidates)
        half = np.where(value > 1.0, self.error_tokens, 0.0)
        most = np.asarray(candidates, dtype=np.float64)
        return Band(np.asarray(np.maximum(value - half, 1.0)), np.asarray(np.minimum(value + half, most)))
