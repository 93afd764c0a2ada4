"""What speculation does to the largest batch that fits, and to the throughput that the card can reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from medusa_sim.plan.break_even import few_counts
from medusa_sim.plan.draft_options import DraftOption
from medusa_sim.plan.scenario import Scenario
from medusa_sim.plan.surface import PLAIN, Surface, price
from medusa_sim.units import US_PER_MS, US_PER_S

_EVERY_BATCH_TO = 64
_RATIO = 1.05
"""Every batch is tried to the first, beyond it every 5 % as long as it fits, and each around the best."""
_NEAR = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatingPoint:
    """A batch and a configuration that fit, what they give, and the largest batch of that configuration."""

    batch: int
    seq_len: int
    candidates: int
    drafts: int
    max_batch: int
    tokens_per_s: float
    tokens_per_s_per_user: float
    time_per_token_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The best throughput of one length with and without speculation, each at its own best batch.

    max_batch_with: of the configuration of `with_speculation`. gain: ratio of the two throughputs; None where
    not even one sequence fits.
    """

    seq_len: int
    max_batch_without: int
    max_batch_with: int
    without_speculation: OperatingPoint | None
    with_speculation: OperatingPoint | None

    @property
    def gain(self) -> float | None:
        """Throughput with speculation over throughput without."""
        if self.without_speculation is None or self.with_speculation is None:
            return None
        return self.with_speculation.tokens_per_s / self.without_speculation.tokens_per_s


def capacities(
    scenario: Scenario, options: Sequence[DraftOption], searched: Surface, max_latency_us: float | None = None
) -> tuple[Capacity, ...]:
    """For each length of `searched` the best operating points among all batches that fit.

    Batches up to what memory allows are tried with few counts, those around the best and those that were
    searched with every count. max_latency_us: longest time per output token of one user.
    """
    return tuple(
        _capacity(scenario, options, searched, s, max_latency_us) for s in range(searched.seq_len.size)
    )


def _capacity(
    scenario: Scenario,
    options: Sequence[DraftOption],
    searched: Surface,
    s: int,
    max_latency_us: float | None,
) -> Capacity:
    length = int(searched.seq_len[s])
    largest = int(searched.max_batch[s, PLAIN])
    if largest < 1:
        return Capacity(
            seq_len=length,
            max_batch_without=0,
            max_batch_with=0,
            without_speculation=None,
            with_speculation=None,
        )
    every = np.arange(1, min(largest, _EVERY_BATCH_TO) + 1)
    ratio = 1 + int(np.ceil(np.log(max(largest / every[-1], 1.0)) / np.log(_RATIO)))
    beyond = np.rint(np.geomspace(every[-1], largest, ratio)).astype(np.int64)
    few = few_counts(options)
    coarse = price(scenario, np.unique(np.concatenate([every, beyond])), [length], few)
    points = {}
    for speculate in (False, True):
        found = [
            best_operating_point(surface, place, max_latency_us, speculate=speculate)
            for surface, place in ((coarse, 0), (searched, s))
        ]
        known = [point for point in found if point is not None]
        best = max(known, key=_rate, default=None)
        if best is not None:
            near = np.arange(max(1, best.batch - _NEAR), min(largest, best.batch + _NEAR) + 1)
            fine = price(scenario, near, [length], options if speculate else ())
            again = best_operating_point(fine, 0, max_latency_us, speculate=speculate)
            best = max([best, *([again] if again is not None else [])], key=_rate)
        points[speculate] = best
    speculative = points[True]
    return Capacity(
        seq_len=length,
        max_batch_without=largest,
        max_batch_with=0 if speculative is None else speculative.max_batch,
        without_speculation=points[False],
        with_speculation=speculative,
    )


def _rate(point: OperatingPoint) -> float:
    return point.tokens_per_s


def best_operating_point(
    surface: Surface, s: int, max_latency_us: float | None, *, speculate: bool
) -> OperatingPoint | None:
    """The largest throughput at one length of the cells that fit and keep the latency; None if none does."""
    place = slice(1, None) if speculate else slice(0, 1)
    allowed = surface.fits[:, s, place]
    per_token_us = surface.step_us[:, s, place] / surface.tokens_per_step[place]
    if max_latency_us is not None:
        allowed = allowed & (per_token_us <= max_latency_us)
    if not allowed.any():
        return None
    rate = surface.batch[:, None] / per_token_us * US_PER_S
    row, column = np.unravel_index(int(np.argmax(np.where(allowed, rate, -np.inf))), rate.shape)
    configuration = int(place.start or 0) + int(column)
    option = surface.option_of(configuration)
    candidates = int(surface.candidates[configuration])
    return OperatingPoint(
        batch=int(surface.batch[row]),
        seq_len=int(surface.seq_len[s]),
        candidates=candidates,
        drafts=0 if option is None else option.drafts(candidates),
        max_batch=int(surface.max_batch[s, configuration]),
        tokens_per_s=float(rate[row, column]),
        tokens_per_s_per_user=US_PER_S / float(per_token_us[row, column]),
        time_per_token_ms=float(per_token_us[row, column]) / US_PER_MS,
    )
