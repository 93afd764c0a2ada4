"""One request from its prompt to its last token, with the context growing as it decodes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import nan

import numpy as np

from medusa_sim.arrays import FloatArray
from medusa_sim.errors import UsageError
from medusa_sim.grid.cell import Cell
from medusa_sim.grid.cells import Cells, price
from medusa_sim.grid.configurations import at_counts
from medusa_sim.scenario.draft_options import DraftOption
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.serving.request_steps import request_steps
from medusa_sim.step.drafter.base import Drafter
from medusa_sim.step.step import prefill_step

_CONTEXTS = 33
"""Contexts between prompt and last token at which steps are timed; between them the time is linear."""
REQUEST = (
    "batch", "prompt_tokens", "output_tokens", "candidates", "depth", "tokens_per_step", "first_token_us",
    "plain_first_token_us", "total_us", "plain_total_us", "per_token_us", "plain_per_token_us",
    "request_speedup", "decode_speedup",
)  # fmt: skip
"""Keys of a request in JSON: attributes of `RequestLatency`."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RequestLatency:
    """Times of one of `batch` requests that run side by side, microseconds.

    total = T_prompt + D x mean over contexts P..P + N of the step, of P prompt and N output tokens, which
    take D steps on average (N20; N - 1 without speculation). Requests run in lockstep, on the engine: the
    server's way to the client and back is not in it, as it is in `FullServer.first_token_us`.

    cells: what runs, at contexts evenly spaced from the prompt to the last token. `plain_`: without
    speculation.
    """

    cells: Cells
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    """Of a prefix before the prompt, which is attended to and not read again."""

    @property
    def batch(self) -> int:
        """Requests side by side."""
        return int(self.cells.surface.batch[0])

    @property
    def cell(self) -> Cell:
        """What runs, at the first of the contexts."""
        return Cell(cells=self.cells, b=0, s=0)

    @property
    def candidates(self) -> int:
        """Tokens that a step verifies, root included; 1 without speculation."""
        return self.cell.candidates

    @property
    def depth(self) -> int:
        """Draft length (Medusa: heads run); 0 without speculation."""
        return int(self.cells.drafts.flat[0])

    @property
    def tokens_per_step(self) -> float:
        """Mean tokens that a step emits."""
        return float(self.cells.tokens_per_step.flat[0])

    @cached_property
    def plain_first_token_us(self) -> float:
        """Reading the prompt by the model alone, which emits the first token."""
        return self._reading_us(None, 1)

    @cached_property
    def first_token_us(self) -> float:
        """Reading the prompt by the model and the drafter."""
        option = self.cell.option
        return (
            self.plain_first_token_us if option is None else self._reading_us(option.drafter, self.candidates)
        )

    def _reading_us(self, drafter: Drafter | None, candidates: int) -> float:
        step = prefill_step(
            self.cells.surface.setting,
            self.batch,
            self.prompt_tokens,
            drafter,
            candidates=candidates,
            cached=self.cached_tokens,
        )
        return float(step.time_us)

    @cached_property
    def decode_us(self) -> float:
        """From the first token to the last."""
        emission_chances = self.cells.configurations.emission_chances[self.cell.configuration]
        return float(request_steps(emission_chances, self.output_tokens)) * _mean(self.cells.steps.time_us)

    @cached_property
    def plain_decode_us(self) -> float:
        """From the first token to the last, without speculation."""
        return (self.output_tokens - 1) * _mean(self.cells.steps.decode_us)

    @property
    def per_token_us(self) -> float:
        """Mean time between output tokens after the first; nan of a single token."""
        return self.decode_us / (self.output_tokens - 1) if self.output_tokens > 1 else nan

    @property
    def plain_per_token_us(self) -> float:
        """`per_token_us` without speculation."""
        return self.plain_decode_us / (self.output_tokens - 1) if self.output_tokens > 1 else nan

    @property
    def total_us(self) -> float:
        """Time until the last token."""
        return self.first_token_us + self.decode_us

    @property
    def plain_total_us(self) -> float:
        """Time until the last token, without speculation."""
        return self.plain_first_token_us + self.plain_decode_us

    @property
    def request_speedup(self) -> float:
        """Plain decoding's time of a whole request over this one's."""
        return self.plain_total_us / self.total_us

    @property
    def decode_speedup(self) -> float:
        """The speedup of the tokens after the first; nan where there are none."""
        return self.plain_per_token_us / self.per_token_us


def request_latency(
    scenario: Scenario,
    option: DraftOption | None,
    candidates: int,
    *,
    batch: int,
    prompt_tokens: int,
    output_tokens: int,
    cached_tokens: int = 0,
) -> RequestLatency:
    """The latency of a request that drafts with an option (None: decodes plainly) at one of its counts.

    cached_tokens: of a prefix before its prompt. Raises UsageError for sizes below 1.
    """
    for name, value in (("batch", batch), ("prompt", prompt_tokens), ("output", output_tokens)):
        if value < 1:
            raise UsageError(f"{name} {value}: whole numbers from 1 are allowed")
    first = cached_tokens + prompt_tokens
    contexts = np.linspace(first, first + output_tokens, _CONTEXTS)
    options = () if option is None else at_counts([option], np.asarray([candidates]))
    every = price(scenario, [batch], contexts, options)
    return RequestLatency(
        cells=every.with_index(np.array([[[every.shape[-1] - 1]]])),
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        cached_tokens=cached_tokens,
    )


def _mean(step_us: FloatArray) -> float:
    """Mean over evenly spaced contexts by the trapezoid rule."""
    values = np.broadcast_to(step_us, (1, _CONTEXTS, 1))[0, :, 0]
    return float((values.sum() - (values[0] + values[-1]) / 2.0) / (_CONTEXTS - 1))
