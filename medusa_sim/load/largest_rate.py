"""The largest rate at which a server keeps its limits: the asked share of requests, pooled over the seeds.

The share falls as the rate grows. Two rates are found, one that keeps the limits and one that does not, and
the bracket between them is narrowed by false position on the logarithm of the rate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from medusa_sim.arrays import FloatArray
from medusa_sim.load.load_test import LoadTest, PolicyServer
from medusa_sim.load.metrics import Metrics
from medusa_sim.load.point import half_width
from medusa_sim.load.saturation import Saturation
from medusa_sim.load.serving_loop import Advance
from medusa_sim.load.trial import trial_metrics

_PRECISION = 0.01
_MOST_TRIALS = 16
_STEPS_DOWN = (0.5, 0.125, 1.0 / 256.0)
"""Shares of saturation that are tried until one keeps the limits."""
_LEAST_QUEUE_SHARE = 0.1
"""Of rho': below, the time per token hardly follows the rate, and the rate can be any."""
_OF_95 = 0.65
"""80 % interval over the 95 % one of a normal distribution."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestRate:
    """The largest rate that keeps the limits, requests a second; None without limits."""

    largest_per_s: float | None = None
    """Never above saturation; 0 where no rate keeps them."""
    largest_half_width: float | None = None
    """Half-width of its 95 % interval over the seeds; None for one seed, or where that is saturation."""
    largest_low_per_s: float | None = None
    """Lower end of its 80 % interval, with the band of the step."""
    largest_high_per_s: float | None = None
    """Upper end of that interval, never above that of saturation."""
    best_share: float | None = None
    """Share of the requests that keep the limits at the lowest rate tried."""


class _Trials:
    """Rates that were tried, with the share of the requests of each seed that kept the limits."""

    def __init__(self, test: LoadTest, server: PolicyServer, advance: Advance | None) -> None:
        self._test, self._server, self._advance = test, server, advance
        self.shares: dict[float, FloatArray] = {}
        self.first_seed: dict[float, Metrics] = {}

    def excess_at(self, rate: float) -> float:
        """Pooled share of the requests that keep the limits, less the wanted one."""
        test = self._test
        runs = [
            trial_metrics(test, self._server, rate, self._advance, seed=seed) for seed in range(test.seeds)
        ]
        self.first_seed[rate] = runs[0]
        self.shares[rate] = np.array([metrics["goodput_share"] for metrics in runs])
        return float(self.shares[rate].mean()) - test.slos.share


class _Bracket(NamedTuple):
    """A rate that keeps the limits and one that does not, each with the excess of its share."""

    low: float
    low_excess: float
    high: float
    high_excess: float


def largest_rate(
    test: LoadTest, server: PolicyServer, saturated: Saturation, advance: Advance | None
) -> LargestRate:
    """The largest rate that keeps the limits, at most that of saturation; 0 where none that is tried does."""
    trials, wanted, full_per_s = _Trials(test, server, advance), test.slos.share, saturated.requests_per_s
    excess = trials.excess_at(full_per_s)
    if excess >= 0.0:
        return with_interval(full_per_s, trials.first_seed[full_per_s], None, excess + wanted, saturated)
    high, high_excess = full_per_s, excess
    for share in _STEPS_DOWN:
        rate, excess = share * full_per_s, trials.excess_at(share * full_per_s)
        if excess >= 0.0:
            break
        high, high_excess = rate, excess
    else:
        return LargestRate(largest_per_s=0.0, best_share=excess + wanted)
    largest = _narrowed(trials, _Bracket(rate, excess, high, high_excess))
    half = half_of_seeds(trials.shares, wanted)
    return with_interval(largest, trials.first_seed[largest], half, excess + wanted, saturated)


def _narrowed(trials: _Trials, bracket: _Bracket) -> float:
    """The lower end of a bracket that is closed to _PRECISION."""
    low, low_excess, high, high_excess = bracket
    moved = 0  # the end that moved last: 1 the lower, -1 the upper one
    for _ in range(_MOST_TRIALS):
        if high / low <= 1.0 + _PRECISION:
            break
        # one end that stays twice is halved in weight (the Illinois rule), so that the bracket closes
        part = np.clip(low_excess / (low_excess - high_excess), 0.1, 0.9) if high / low < 2.0 else 0.5
        middle = low * float((high / low) ** part)
        excess = trials.excess_at(middle)
        if excess >= 0.0:
            low, low_excess = middle, excess
            high_excess, moved = high_excess * (0.5 if moved > 0 else 1.0), 1
        else:
            high, high_excess = middle, excess
            low_excess, moved = low_excess * (0.5 if moved < 0 else 1.0), -1
    return low


def with_interval(
    rate: float, metrics: Metrics, half: float | None, best_share: float, saturated: Saturation
) -> LargestRate:
    """The rate with its 80 % interval: a step longer by e carries a rate lower by e / rho'.

    At saturation the step grows with the requests as it does there: the rate is lower by e. half: of the 95 %
    interval over the seeds. The upper end is at most what a server with faster steps is full at.
    """
    is_full = rate >= saturated.requests_per_s
    growing = 1.0 if is_full else max(metrics["queue_share"], _LEAST_QUEUE_SHARE)
    chance = _OF_95 * (half or 0.0) / rate
    down, up = (np.hypot(metrics[name] / growing, chance) for name in ("step_slower", "step_faster"))
    return LargestRate(
        largest_per_s=rate,
        largest_half_width=half,
        largest_low_per_s=float(rate * np.exp(-down)),
        largest_high_per_s=float(min(rate * np.exp(up), saturated.high_per_s)),
        best_share=best_share,
    )


def half_of_seeds(shares: dict[float, FloatArray], wanted: float) -> float | None:
    """Half of the 95 % interval of the rate at which each seed alone crosses the wanted share.

    shares: (seeds,) at every rate that was tried. None for one seed.
    """
    rates = np.array(sorted(shares))
    falling = np.minimum.accumulate(np.stack([shares[rate] for rate in rates]), axis=0)
    crossings = [float(np.interp(-wanted, -falling[:, seed], rates)) for seed in range(falling.shape[1])]
    half = half_width(np.array(crossings))
    return half if np.isfinite(half) else None
