"""Steps of the requests that a server has in flight, as these requests see them while it stays full."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from medusa_sim.arrays import FloatArray, IntArray, as_float
from medusa_sim.grid.steps import Steps
from medusa_sim.serving.chance import place_between
from medusa_sim.serving.server import ServedCells, Server, in_server
from medusa_sim.serving.traffic import Traffic
from medusa_sim.serving.watts import requests_joules, watts


@dataclass(frozen=True, eq=False)
class ServerSteps:
    """Steps in a server with the scenario's traffic. steps: of requests in flight (`Surface.in_flight`)."""

    steps: Steps

    @classmethod
    def of(cls, steps: Steps) -> ServerSteps:
        """Steps of the requests that are in flight around the lengths of these steps."""
        in_flight = steps.surface.in_flight
        return cls(steps if in_flight is steps.surface else replace(steps, surface=in_flight))

    @cached_property
    def server(self) -> Server:
        """What requests see of every step."""
        return in_server(self._every_cell, self._traffic)

    @property
    def _every_cell(self) -> ServedCells:
        b, s = np.ix_(*map(np.arange, self.steps.surface.shape))
        indices = b[..., None], s[..., None], self.steps.index
        return self._cells(indices, self.steps.time_us, self.steps.attention_us)

    @property
    def _traffic(self) -> Traffic | None:
        return self.steps.surface.scenario.traffic

    def server_at(self, b: int, s: int) -> Server:
        """(cells,) `server` at one batch and length."""
        indices = np.asarray(b), np.asarray(s), self.steps.spread(self.steps.index)[b, s]
        cells = self._cells(indices, self.steps.time_us[b, s], self.steps.attention_us[b, s])
        return in_server(cells, self._traffic)

    def server_if(
        self, b: int, s: int, k: int, step_us: FloatArray | float, emission_chances: FloatArray
    ) -> Server:
        """What they would see if the step of a cell took `step_us` and emitted other numbers of tokens.

        emission_chances: (..., X) probabilities that a step emits at least 1, 2, ... X tokens.
        """
        indices = np.asarray(b), np.asarray(s), np.asarray(self.steps.spread(self.steps.index)[b, s, k])
        attention_us = self.steps.attention_us[b, s, k]
        return in_server(
            self._cells(indices, as_float(step_us), attention_us, emission_chances), self._traffic
        )

    def _cells(
        self,
        indices: tuple[IntArray, IntArray, IntArray],
        step_us: FloatArray,
        attention_us: FloatArray,
        emission_chances: FloatArray | None = None,
    ) -> ServedCells:
        """Steps as a server has them. indices: batch, length and configuration of each."""
        surface, (b, s, configuration) = self.steps.surface, indices
        configurations, traffic, batch = surface.configurations, self._traffic, surface.batch[b]
        tokens, decode_steps = configurations.tokens_per_step[configuration], None
        if emission_chances is not None:
            tokens = emission_chances.sum(axis=-1)
            decode_steps = None if traffic is None else traffic.request_steps(emission_chances)
        elif surface.decode_steps is not None:
            decode_steps = surface.decode_steps[configuration]
        return ServedCells(
            setting=surface.setting,
            requests=batch,
            candidates=configurations.candidates[configuration],
            tokens_per_step=tokens,
            step_us=step_us,
            attention_us=attention_us,
            fewer=StepOfFewer(self._fewer, s, configuration, as_float(batch), step_us, attention_us).step_of,
            fewer_sizes=as_float(self._fewer.surface.batch),
            decode_steps=decode_steps,
            prompt_tokens=None if surface.prompt_tokens is None else surface.prompt_tokens[s],
            cached_tokens=surface.cached_tokens[s],
            drafter=surface.loaded_drafter,
        )

    @cached_property
    def _fewer(self) -> Steps:
        """Every configuration at numbers of requests up to these."""
        return Steps.every(self.steps.surface.fewer_requests)

    @cached_property
    def watts(self) -> FloatArray:
        """Mean watts of all GPUs while such steps follow one another.

        With traffic, prompts that ride on the steps and the filtering of logits count. nan (a 0-d array)
        where the GPU's power is not known, and for scope `block`.
        """
        cells, scenario, traffic = self._every_cell, self.steps.surface.scenario, self._traffic
        power = scenario.gpu.power
        if power is None or scenario.scope == "block":
            return np.full((), np.nan)
        joules = self.steps.joules
        time_us = self.server.token_us * cells.tokens_per_step
        if traffic is not None and cells.decode_steps is not None:
            joules = requests_joules(power, cells, traffic, cells.decode_steps, joules)
            time_us = self.server.token_us * traffic.output_tokens
        return np.asarray(scenario.gpus * watts(power, joules, time_us))


@dataclass(frozen=True, eq=False)
class StepOfFewer:
    """The step of cells where some of their requests queue: as much shorter as priced steps of so many are.

    priced: every configuration at rising numbers of requests. The others broadcast with the cells: indices of
    their lengths, their configurations, and the step and its attention where all requests run.
    """

    priced: Steps
    s: IntArray
    configuration: IntArray
    requests: FloatArray
    step_us: FloatArray
    attention_us: FloatArray

    def step_of(self, running: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The step of those that run, and its attention."""
        step, attention = (
            self._at(running, priced_us) / self._at(self.requests, priced_us)
            for priced_us in (self.priced.time_us, self.priced.attention_us)
        )
        return self.step_us * step, self.attention_us * attention

    def _at(self, requests: FloatArray, priced_us: FloatArray) -> FloatArray:
        """What was priced, at these numbers of requests: linear between two."""
        above, part = place_between(as_float(self.priced.surface.batch), requests)
        low, high = (priced_us[b, self.s, self.configuration] for b in (above - 1, above))
        return np.asarray(low + part * (high - low))
