"""Repeated times of one launch: their median, 10th and 90th percentile, and when these are too far apart."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

SPREAD_LIMIT = 0.10
"""(p90 - p10) / median above which a row is called noisy (pyperf warns at the same share of deviation)."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Microseconds of one launch."""

    time_us: float
    p10_us: float
    p90_us: float
    repeats: int

    @property
    def spread(self) -> float:
        """(p90 - p10) / median."""
        return (self.p90_us - self.p10_us) / self.time_us


def timing_of(samples_us: Sequence[float]) -> Timing:
    """Median and percentiles of samples."""
    if len(samples_us) == 1:
        return Timing(samples_us[0], samples_us[0], samples_us[0], 1)
    deciles = statistics.quantiles(samples_us, n=10, method="inclusive")
    return Timing(statistics.median(samples_us), deciles[0], deciles[-1], len(samples_us))


def settled_timing(values_us: Sequence[float]) -> Timing:
    """Times of a launch in several turns: `time_us` is the lower quartile, which other work hardly moves."""
    return dataclasses.replace(timing_of(values_us), time_us=lower_quartile(values_us))


def lower_quartile(values: Sequence[float]) -> float:
    """A quarter of the way up the sorted values; of two, a quarter of the way between them."""
    if len(values) == 1:
        return values[0]
    return statistics.quantiles(values, n=4, method="inclusive")[0]


def spread_warning(noisy: int, rows: int, kind: str, load_average: float) -> str | None:
    """One line with a remedy where some of the rows are noisy, else None."""
    if not noisy:
        return None
    limit = f"{100.0 * SPREAD_LIMIT:.0f} % (p90 - p10 over the median)"
    text = f"{noisy} of {rows} rows spread by more than {limit}; "
    if kind == "cuda":
        remedy = "let nothing else run on the GPU; lock its clocks if you may (nvidia-smi --lock-gpu-clocks)"
    else:
        remedy = f"end other programs (load average {load_average:g} at the start) and fix the clocks"
    return f"{text}{remedy}, then run the same command with --resume: noisy rows are measured again"
