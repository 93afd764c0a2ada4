"""One request from its prompt to its last token, with the context growing as it decodes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from medusa_sim.arrays import FloatArray
from medusa_sim.errors import UsageError
from medusa_sim.plan.draft_options import DraftOption
from medusa_sim.step.step import Setting, decode_step, prefill_step, verify_step, work_time
from medusa_sim.step.workload import prefill

_CONTEXTS = 33
"""Contexts between prompt and last token at which steps are timed; between them the time is linear."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLatency:
    """Times of one of `batch` requests that run side by side, microseconds.

    first_token_us: reading the prompt, which emits the first token. total_us: until the last token.
    per_token_us: mean time between output tokens after the first. `plain_`: without speculation.
    """

    batch: int
    prompt_tokens: int
    output_tokens: int
    candidates: int
    depth: int
    tokens_per_step: float
    first_token_us: float
    plain_first_token_us: float
    total_us: float
    plain_total_us: float
    per_token_us: float
    plain_per_token_us: float

    @property
    def speedup(self) -> float:
        """End to end."""
        return self.plain_total_us / self.total_us

    @property
    def decode_speedup(self) -> float:
        """Of the tokens after the first alone."""
        return self.plain_per_token_us / self.per_token_us


def request_latency(
    setting: Setting,
    option: DraftOption | None,
    candidates: int,
    *,
    batch: int,
    prompt_tokens: int,
    output_tokens: int,
) -> RequestLatency:
    """Latency of a request of P prompt and N output tokens.

    total = T_prompt + (N - 1) / tau x mean over contexts P..P + N of the step, tau tokens a step (1
    without speculation). The last step's surplus tokens are not charged, and requests run in lockstep.
    Raises UsageError for counts below 1.
    """
    for name, value in (("batch", batch), ("prompt", prompt_tokens), ("output", output_tokens)):
        if value < 1:
            raise UsageError(f"{name} {value}: whole numbers from 1 are allowed")
    contexts = np.linspace(prompt_tokens, prompt_tokens + output_tokens, _CONTEXTS)
    plain_prompt = prefill_step(setting, batch, prompt_tokens)
    plain_step = _mean(decode_step(setting, batch, contexts).time_us)
    prompt, step, tokens = plain_prompt, plain_step, 1.0
    if option is not None:
        drafting = replace(setting, drafter=option.drafter)
        tokens = option.tokens(candidates)
        step = _mean(verify_step(drafting, batch, contexts, candidates).time_us)
        works = option.drafter.prompt_work(setting.shard, prefill(batch, prompt_tokens), setting.runtime)
        for work in works:
            prompt = prompt + work_time(setting.latency, work)
    per_token, plain_per_token = step / tokens, plain_step
    first, plain_first = float(prompt.time_us), float(plain_prompt.time_us)
    return RequestLatency(
        batch=batch,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        candidates=1 if option is None else candidates,
        depth=0 if option is None else option.depth,
        tokens_per_step=tokens,
        first_token_us=first,
        plain_first_token_us=plain_first,
        total_us=first + (output_tokens - 1) * per_token,
        plain_total_us=plain_first + (output_tokens - 1) * plain_per_token,
        per_token_us=per_token,
        plain_per_token_us=plain_per_token,
    )


def _mean(step_us: FloatArray) -> float:
    """Mean over evenly spaced contexts by the trapezoid rule."""
    values = np.broadcast_to(step_us, (_CONTEXTS,))
    return float((values.sum() - (values[0] + values[-1]) / 2.0) / (_CONTEXTS - 1))
