"""Requests that a server works on, and what an engine takes of them into one step."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from medusa_sim.arrays import FloatArray
from medusa_sim.engines.runtime import Runtime
from medusa_sim.gpus.gpu import Gpu
from medusa_sim.operators.operator import Size
from medusa_sim.serving.request_steps import request_steps
from medusa_sim.step.setting import Setting

MAX_REQUESTS = 256
TOKEN_BUDGET = 8192
"""`max_num_seqs` and `max_num_batched_tokens` where no engine has its own (`Engine.step_limit`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Requests that a full server works on. Lengths are log-normal."""

    prompt_tokens: float
    """Mean tokens of a prompt."""
    output_tokens: float
    """Mean tokens of an output."""
    prompt_cv: float = 0.0
    """Coefficient of variation of prompts; 0: all are equal."""
    output_cv: float = 0.0
    """The same of outputs."""

    def request_steps(self, emission_chances: FloatArray) -> FloatArray:
        """(...) mean steps in which a request decodes (N20). emission_chances: (..., X)."""
        return request_steps(emission_chances, self.output_tokens, self.output_cv)


def step_limits(runtime: Runtime, gpu: Gpu, *, schedulers: int = 1) -> tuple[int, int]:
    """(requests, tokens) of one step that an engine allows on a GPU by default.

    schedulers: GPUs that take requests each for itself.
    """
    engine = runtime.engine
    if engine is None:
        return MAX_REQUESTS, TOKEN_BUDGET
    limit = engine.step_limit(gpu.name, gpu.memory_bytes)
    limited = engine.limited(schedulers)
    return limited * limit.requests, limited * limit.tokens


def longest_prompt(runtime: Runtime, gpu: Gpu) -> float:
    """Tokens of a prompt that an engine takes by default; infinite where it reads longer ones in chunks."""
    engine = runtime.engine
    return inf if engine is None or not engine.whole_prompts else float(step_limits(runtime, gpu)[1])


def step_tokens(runtime: Runtime, gpu: Gpu, requests: Size, *, schedulers: int = 1) -> FloatArray:
    """Tokens of one step in a server that is set up for so many requests.

    Engines leave them as they are; vLLM refuses fewer tokens than requests.
    """
    return np.maximum(
        step_limits(runtime, gpu, schedulers=schedulers)[1], np.asarray(requests, dtype=np.float64)
    )


def drafting_requests(runtime: Runtime, gpu: Gpu, *, schedulers: int = 1) -> int:
    """Requests of one step that an engine allows by default with a drafter loaded.

    Whoever asks for more raises this number alone: the tokens of a step stay (`step_limits`).
    """
    requests, _ = step_limits(runtime, gpu, schedulers=schedulers)
    engine = runtime.engine
    if engine is None or not engine.drafting_requests:
        return requests
    return min(requests, engine.limited(schedulers) * engine.drafting_requests)


def served_length(setting: Setting, seq_len: Size, traffic: Traffic | None) -> Size:
    """Mean committed tokens of the requests in flight around a mean length of `seq_len`.

    Long outputs stay in flight longer: with a coefficient of variation cv of the outputs a request that
    decodes is N cv^2 / 2 tokens longer than the average one (length bias).
    """
    if traffic is None or setting.runtime.engine is None:
        return seq_len
    return np.asarray(seq_len) + traffic.output_cv**2 / 2.0 * traffic.output_tokens
