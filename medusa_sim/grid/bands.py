"""Half-widths of the 80 % bands of cells, on the logarithm.

    step            its kernels, and what an engine adds (`compose.Cost`)
    step speedup    overhead and tokens of a step, in quadrature
    token_us        share of the step x (step and tokens in quadrature), then each thing that a server adds,
                    in quadrature
    server speedup  share of the step x its speedup, then each thing that a server adds, in quadrature: the
                    difference that it makes, since it errs in both servers alike

In a server the tokens are those of a request over its whole steps (`Surface.request_token_halves`).

None of them narrows beyond what was measured, in requests or in their length (`grid.extrapolation`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from medusa_sim.arrays import FloatArray, Halves
from medusa_sim.grid.cell_passes import picked
from medusa_sim.grid.extrapolation import widest_below
from medusa_sim.grid.steps import Steps
from medusa_sim.grid.surface import Surface
from medusa_sim.grid.unless_self import cached_unless_self
from medusa_sim.step.compose import overhead_halves

FIRST_TOKEN_SOONER, FIRST_TOKEN_LATER = 0.22, 0.74
"""10th and 90th percentile of measured over predicted first tokens of servers, on the logarithm, each group
of measurements weighted equally (`benchmarks/first_tokens.py`). Prompts that the host launches and prompts
that queue are late."""

_BATCHES, _LENGTHS = 0, 1
"""Axes of cells along which measurements end."""


@dataclass(frozen=True, eq=False)
class BandedSteps(Steps):
    """Steps with the bands of their numbers: half-widths that broadcast with the cells."""

    @cached_property
    def step_halves(self) -> Halves:
        """Half-widths of `step_us`."""
        return self.widened(lambda steps: steps.cost.halves)

    @cached_property
    def step_speedup_halves(self) -> Halves:
        """Half-widths of tokens per step over overhead; 0 where a step emits one token."""
        return self._unless_plain(self._overhead_halves.of_inverse.joined_by(self.token_halves))

    @cached_property
    def _overhead_halves(self) -> Halves:
        return self.widened(lambda steps: overhead_halves(steps.cost, steps.surface.decode.cost))

    @cached_property
    def server_speedup_halves(self) -> Halves:
        """Half-widths of the speedup in a server; 0 where a step emits one token."""
        return self._unless_plain(self.widened(BandedSteps._server_speedup_halves))

    @cached_property
    def token_us_halves(self) -> Halves:
        """Half-widths of the time per token in a server."""
        return self.widened(BandedSteps._token_us_halves)

    @property
    def first_token_halves(self) -> Halves:
        """Half-widths of the time to the first token."""
        down, up = self.token_us_halves
        return Halves(np.hypot(down, FIRST_TOKEN_SOONER), np.hypot(up, FIRST_TOKEN_LATER))

    def _server_speedup_halves(self) -> Halves:
        served, baseline, others = self.served, self.baseline, np.zeros(())
        for half, plain_half in zip(served.halves, baseline.served.halves, strict=True):
            others = others + (half - baseline.first(plain_half)) ** 2
        gain = self.in_flight._overhead_halves.of_inverse.joined_by(self.request_token_halves)
        step = self._unless_plain(gain)
        down, up = (np.log1p(served.step_share * np.expm1(half)) for half in (step.down, -step.up))
        return Halves(np.sqrt(down**2 + others), np.sqrt(up**2 + others))

    def _token_us_halves(self) -> Halves:
        served, steps = self.served, self.in_flight
        others = sum((half**2 for half in served.halves), np.zeros(()))
        # prompts err as the steps of the set-up do
        others = others + (1.0 - served.step_share**2) * (steps.cost.setup_half_us / steps.step_us) ** 2
        step = steps.step_halves.joined_by(self.request_token_halves.of_inverse).times(served.step_share)
        return Halves(np.sqrt(step.down**2 + others), np.sqrt(step.up**2 + others))

    def _unless_plain(self, halves: Halves) -> Halves:
        is_plain = self.tokens_per_step == 1.0
        return Halves(*(np.where(is_plain, 0.0, half) for half in halves))

    # Beyond what was measured.

    def widened(self, halves_of: Callable[[Self], Halves]) -> Halves:
        """Half-widths, at least those at the edges below in batches, then in lengths.

        Where 256 requests were the most that anyone measured, those of 600 requests are at least those of 256
        and of 512 (`batch_edges`): an answer further out is no surer than one at the end of the data.
        """

        def widened_in_batches(steps: Self) -> Halves:
            return steps._at_least(_BATCHES, halves_of)

        return self._at_least(_LENGTHS, widened_in_batches)

    def _at_least(self, axis: int, halves_of: Callable[[Self], Halves]) -> Halves:
        """Half-widths, at least those at the edges below along one axis."""
        here, surface = halves_of(self), self.surface
        edges = (surface.batch_edges, surface.length_edges)[axis]
        if not edges.size:
            return here
        at_edges = self._at_batch_edges if axis == _BATCHES else self._at_length_edges
        there = here if at_edges is self else halves_of(at_edges)
        asked, known = ((at.batch, at.asked_len)[axis] for at in (surface, at_edges.surface))
        places = [np.flatnonzero(known == edge)[0] for edge in edges]

        def at_least(half: FloatArray, half_there: FloatArray) -> FloatArray:
            on_edges = at_edges.spread(half_there).take(places, axis=axis)
            least = widest_below(edges, on_edges, asked, axis)
            return np.asarray(np.maximum(half, picked(least, self.index)))

        return Halves(at_least(here.down, there.down), at_least(here.up, there.up))

    @cached_unless_self
    def _at_batch_edges(self) -> Self:
        return self._every_on(self.surface.at_batch_edges)

    @cached_unless_self
    def _at_length_edges(self) -> Self:
        return self._every_on(self.surface.at_length_edges)

    def _every_on(self, surface: Surface) -> Self:
        """Every configuration on a surface; this object if it has these on this one."""
        every = self.every(surface)
        is_this = surface is self.surface and np.array_equal(every.index, self.index)
        return self if is_this else every
