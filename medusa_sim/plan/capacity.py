"""What speculation does to the largest batch that fits, and to the throughput that the card can reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from medusa_sim.arrays import BoolArray
from medusa_sim.plan.break_even import thinned
from medusa_sim.plan.draft_options import DraftOption
from medusa_sim.plan.surface import PLAIN, Surface, searched
from medusa_sim.specs.gpu import Gpu
from medusa_sim.step.step import Setting
from medusa_sim.units import US_PER_MS, US_PER_S

_BATCHES = 20
"""Batches tried between 1 and the largest that fits."""


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
    gpu: Gpu,
    setting: Setting,
    options: Sequence[DraftOption],
    seq_len: Sequence[int],
    max_latency_us: float | None = None,
) -> tuple[Capacity, ...]:
    """For each length the best operating points among all batches that fit, up to what memory allows.

    max_latency_us: longest time per output token of one user.
    """
    found = []
    few = thinned(options)
    for length in seq_len:
        limits = searched(gpu, setting, few, [1], [length]).max_batch[0]
        largest = int(limits[PLAIN])
        if largest < 1:
            found.append(
                Capacity(
                    seq_len=length,
                    max_batch_without=0,
                    max_batch_with=0,
                    without_speculation=None,
                    with_speculation=None,
                )
            )
            continue
        tried = np.rint(np.geomspace(1, largest, _BATCHES)).astype(np.int64)
        ends = np.unique(limits[(limits > 0) & (limits < largest)])[-_BATCHES:]
        surface = searched(gpu, setting, few, np.unique(np.concatenate([tried, ends])), [length])
        fits = surface.fits[:, 0]
        plain = best_point(surface, 0, fits[:, :1], max_latency_us, first=PLAIN)
        speculative = best_point(surface, 0, fits[:, 1:], max_latency_us, first=1)
        found.append(
            Capacity(
                seq_len=length,
                max_batch_without=largest,
                max_batch_with=0 if speculative is None else speculative.max_batch,
                without_speculation=plain,
                with_speculation=speculative,
            )
        )
    return tuple(found)


def best_point(
    surface: Surface, length: int, fits: BoolArray, max_latency_us: float | None, *, first: int
) -> OperatingPoint | None:
    """The largest throughput among the cells that fit and keep the latency; None where there is none.

    fits: (B, C) for the configurations from `first` on.
    """
    place = slice(first, first + fits.shape[1])
    per_token_us = surface.step_us[:, length, place] / surface.tokens_per_step[place]
    rate = surface.batch[:, None] / per_token_us * US_PER_S
    allowed = fits
    if max_latency_us is not None:
        allowed = allowed & (per_token_us <= max_latency_us)
    if not allowed.any():
        return None
    row, column = np.unravel_index(int(np.argmax(np.where(allowed, rate, -np.inf))), rate.shape)
    configuration = first + int(column)
    option = surface.option_of(configuration)
    return OperatingPoint(
        batch=int(surface.batch[row]),
        seq_len=int(surface.seq_len[length]),
        candidates=int(surface.candidates[configuration]),
        drafts=0 if option is None else option.depth,
        max_batch=int(surface.max_batch[length, configuration]),
        tokens_per_s=float(rate[row, column]),
        tokens_per_s_per_user=US_PER_S / float(per_token_us[row, column]),
        time_per_token_ms=float(per_token_us[row, column]) / US_PER_MS,
    )
