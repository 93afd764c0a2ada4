"""Half-widths of the 80 % bands of steps, alone and in a server, on the logarithm.

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
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from medusa_sim.arrays import Band, FloatArray, Halves
from medusa_sim.grid.cached_or_self import cached_or_self
from medusa_sim.grid.extrapolation import widest_below
from medusa_sim.grid.server_steps import ServerSteps
from medusa_sim.grid.steps import Steps, picked
from medusa_sim.grid.surface import Surface
from medusa_sim.step.compose import overhead_halves

FIRST_TOKEN_SOONER, FIRST_TOKEN_LATER = 0.22, 0.74
"""10th and 90th percentile of measured over predicted first tokens of servers, on the logarithm, each group
of measurements weighted equally (`benchmarks/first_tokens.py`). Prompts that the host launches and prompts
that queue are late."""

_BATCHES, _LENGTHS = 0, 1
"""Axes of cells along which measurements end."""


@dataclass(frozen=True, eq=False)
class Bands:
    """How sure steps are, alone and in a server: half-widths that broadcast with them.

    server_steps: of the same configurations. baseline: steps in the same server, of which the first is plain
    decoding.
    """

    steps: Steps
    server_steps: ServerSteps
    baseline: ServerSteps

    @classmethod
    def every(cls, surface: Surface) -> Bands:
        """Bands of every configuration, the first of which is plain decoding."""
        steps = Steps.every(surface)
        server_steps = ServerSteps.of(steps)
        return cls(steps, server_steps, server_steps)

    @cached_or_self
    def in_flight(self) -> Bands:
        """Bands of the steps of the requests in flight."""
        return self if self.steps is self.server_steps.steps else replace(self, steps=self.server_steps.steps)

    @cached_property
    def step(self) -> Halves:
        """Half-widths of a step's time."""
        return self.widened(lambda bands: bands.steps.cost.halves)

    @property
    def step_us(self) -> Band:
        """Ends of a step's time, microseconds."""
        low, high = self.step.ratios()
        return Band(np.asarray(self.steps.time_us * low), np.asarray(self.steps.time_us * high))

    @cached_property
    def step_speedup(self) -> Halves:
        """Half-widths of tokens per step over overhead; 0 where a step emits one token."""
        return self._unless_plain(self.overhead.of_inverse.joined_by(self.tokens))

    @cached_property
    def server_speedup(self) -> Halves:
        """Half-widths of the speedup in a server; 0 where a step emits one token."""
        return self._unless_plain(self.widened(Bands._server_speedup))

    @cached_property
    def token_us(self) -> Halves:
        """Half-widths of the time per token in a server."""
        return self.widened(Bands._token_us)

    @property
    def first_token(self) -> Halves:
        """Half-widths of the time to the first token."""
        down, up = self.token_us
        return Halves(np.hypot(down, FIRST_TOKEN_SOONER), np.hypot(up, FIRST_TOKEN_LATER))

    @cached_property
    def overhead(self) -> Halves:
        """Half-widths of a step over the plain one."""
        return self.widened(lambda bands: overhead_halves(bands.steps.cost, bands.steps.surface.decode.cost))

    @cached_property
    def tokens(self) -> Halves:
        """Half-widths of the tokens per step."""
        return self._of_configurations(self.steps.surface.configurations.token_halves)

    @property
    def request_tokens(self) -> Halves:
        """Half-widths of the tokens of a request over its whole steps."""
        return self._of_configurations(self.steps.surface.request_token_halves)

    def _server_speedup(self) -> Halves:
        server, others = self.server_steps.server, np.zeros(())
        for half, plain_half in zip(server.halves, self.baseline.server.halves, strict=True):
            others = others + (half - self.baseline.steps.spread(plain_half)[..., :1]) ** 2
        step = self._unless_plain(self.in_flight.overhead.of_inverse.joined_by(self.request_tokens))
        down, up = (np.log1p(server.step_share * np.expm1(half)) for half in (step.down, -step.up))
        return Halves(np.sqrt(down**2 + others), np.sqrt(up**2 + others))

    def _token_us(self) -> Halves:
        server, steps = self.server_steps.server, self.server_steps.steps
        others = sum((half**2 for half in server.halves), np.zeros(()))
        # prompts err as the steps of the set-up do
        others = others + (1.0 - server.step_share**2) * (steps.cost.setup_half_us / steps.time_us) ** 2
        step = self.in_flight.step.joined_by(self.request_tokens.of_inverse).times(server.step_share)
        return Halves(np.sqrt(step.down**2 + others), np.sqrt(step.up**2 + others))

    def _of_configurations(self, halves: Halves) -> Halves:
        return Halves(*(half[self.steps.index] for half in halves))

    def _unless_plain(self, halves: Halves) -> Halves:
        is_plain = self.steps.surface.configurations.tokens_per_step[self.steps.index] == 1.0
        return Halves(*(np.where(is_plain, 0.0, half) for half in halves))

    # Beyond what was measured.

    def widened(self, halves_of: Callable[[Bands], Halves]) -> Halves:
        """Half-widths, at least those at the edges below in batches, then in lengths.

        Where 256 requests were the most that anyone measured, those of 600 requests are at least those of 256
        and of 512 (`batch_edges`): an answer further out is no surer than one at the end of the data.
        """
        return self._at_least(_LENGTHS, lambda bands: bands._at_least(_BATCHES, halves_of))

    def _at_least(self, axis: int, halves_of: Callable[[Bands], Halves]) -> Halves:
        """Half-widths, at least those at the edges below along one axis."""
        here, surface = halves_of(self), self.steps.surface
        in_lengths = axis == _LENGTHS
        edges = surface.length_edges if in_lengths else surface.batch_edges
        asked = surface.asked_len if in_lengths else surface.batch
        if not edges.size:
            return here
        is_of_every = np.array_equal(self.steps.index, surface.configurations.indices)
        if is_of_every and np.isin(edges, asked).all():
            at_edges, there, priced = self, here, asked
        else:
            at_edges = self._at_length_edges if in_lengths else self._at_batch_edges
            there, priced = halves_of(at_edges), edges
        places = [np.flatnonzero(priced == edge)[0] for edge in edges]

        def at_least(half: FloatArray, half_there: FloatArray) -> FloatArray:
            on_edges = at_edges.steps.spread(half_there).take(places, axis=axis)
            least = widest_below(edges, on_edges, asked, axis)
            return np.asarray(np.maximum(half, picked(least, self.steps.index)))

        return Halves(at_least(here.down, there.down), at_least(here.up, there.up))

    @cached_property
    def _at_batch_edges(self) -> Bands:
        return Bands.every(self.steps.surface.at_batch_edges)

    @cached_property
    def _at_length_edges(self) -> Bands:
        return Bands.every(self.steps.surface.at_length_edges)
