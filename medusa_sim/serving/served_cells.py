"""What a server runs before prompts ride along, cell by cell: its requests, and the step that they share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np

from medusa_sim.arrays import FloatArray, as_float
from medusa_sim.operators.operator import Size
from medusa_sim.serving.request_steps import chain_chances
from medusa_sim.serving.traffic import Traffic
from medusa_sim.step.drafter.base import Drafter
from medusa_sim.step.host import Added
from medusa_sim.step.sampling import sampled
from medusa_sim.step.setting import Setting

StepOf: TypeAlias = Callable[[FloatArray], tuple[FloatArray, FloatArray]]
"""Requests that run -> microseconds of their step without prompts, and of its attention."""


@dataclass(frozen=True, eq=False)
class Requests:
    """(cells,) the requests of a server."""

    requests: FloatArray
    """b, how many go around."""
    candidates: FloatArray
    """Tokens of a request that graphs are captured for: those that it verifies where it drafts."""
    verified_tokens: FloatArray
    """c, tokens that a step processes of a request, on average."""
    decode_steps: FloatArray
    """D, steps in which a request decodes."""
    prompt_tokens: FloatArray
    """P, of a prompt, on average."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ServedCells:
    """Requests of servers and their steps; sizes and microseconds broadcast to the shape of the cells."""

    setting: Setting
    requests: Size
    candidates: Size
    """Tokens that a request verifies where it drafts."""
    tokens_per_step: FloatArray
    step_us: FloatArray
    """A step of all requests at `served_length`, without sampling."""
    attention_us: FloatArray | float = 0.0
    """Attention in it."""
    fewer: StepOf | None = None
    """Both where fewer run, as the tokens of a step keep others in the queue; None: as of all."""
    decode_steps: FloatArray | None = None
    """Steps of a request (N20); None: of a chain of `candidates` that emits so many tokens a step."""
    prompt_tokens: FloatArray | None = None
    """Mean tokens of a prompt; None: the traffic's."""
    drafter: Drafter | None = None
    """What reads prompts too, where a cell drafts."""

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The shape of the cells."""
        given = (
            self.step_us, self.requests, self.candidates, self.tokens_per_step, self.attention_us,
            self.decode_steps, self.prompt_tokens,
        )  # fmt: skip
        return np.broadcast_shapes(*(np.shape(each) for each in given if each is not None))

    def row(self, values: Size) -> FloatArray:
        """(cells,) from values that broadcast to the shape."""
        return np.broadcast_to(as_float(values), self.shape).ravel()

    def requests_of(self, traffic: Traffic) -> Requests:
        """(cells,) what each request does, with the lengths of a traffic."""
        steps, prompt = self.decode_steps, self.prompt_tokens
        if steps is None:
            longest = np.broadcast_to(as_float(self.candidates), self.shape)
            steps = traffic.request_steps(chain_chances(self.tokens_per_step, longest))
        return Requests(
            requests=self.row(self.requests),
            candidates=self.row(self.candidates),
            verified_tokens=self.row(self.setting.verified.mean_tokens(self.candidates)),
            decode_steps=self.row(steps),
            prompt_tokens=self.row(traffic.prompt_tokens if prompt is None else prompt),
        )

    def sampling(self, running: Size) -> Added:
        """What sampling adds to the step of so many requests."""
        return sampled(self.setting, running, self.candidates, self.tokens_per_step)
