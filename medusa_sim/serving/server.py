"""A step seen by the requests of a server that stays full: time per token, gaps, time to the first token.

In numbers: 64 requests with 512 tokens of prompt and 256 of output, one token a step, decode for D = 255
steps. With I = 2, W = 0 and R = 1 each begins a prompt every 258 steps: pi = 0.00388, n has the mean
0.25, and four steps of five carry none. Where such a step takes 10 ms and each prompt adds 12, the mean t is
13 ms, so is tpot, and token is 13 / (0.00388 * 256) = 13.1 ms: 64 requests emit 4,900 tokens/s.

`request_cycle` says what each letter is and what the b requests of a cell do (N7), `request_steps`
in how many steps (N20), `mixed_steps` what a step takes on which n of them begin a prompt (N8). Here
times t of steps become those of requests, as means over these steps:

    (N9)   itl      = median of t over the steps of a request that decodes
    (N10)  tpot     = mean of t over these D / (N - 1)           from a request's first token on
    (N11)  tokens/s = b / token,  token = mean t (1 / pi + W) / N        a request begins every 1 / pi + W

A single request's way to the client and back, while no step runs, is added to mean t / pi. Without traffic
nothing is carried, and a step is its own kernels, host and engine alone. The time to the first token is (N17)
and (N19) of `first_tokens`. With it requests are in flight as long as b of them can be (Little's law):

    tokens/s / N (ttft + (N - 1) tpot) <= b                      less the way of the last token to the client
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import nan

import numpy as np

from medusa_sim.arrays import FloatArray, as_float
from medusa_sim.operators.operator import Size
from medusa_sim.serving.first_tokens import first_token_us, load_test_first_token_us
from medusa_sim.serving.mixed_steps import MixedStepLaw, mixed_step_law
from medusa_sim.serving.request_cycle import RequestCycle, StepOf, StepTimes, request_cycle, steps_alone
from medusa_sim.serving.request_steps import chain_chances
from medusa_sim.serving.step_means import StepMeans, carrying_share, step_means, step_quantile_us
from medusa_sim.serving.traffic import Traffic
from medusa_sim.step.drafter.base import Drafter
from medusa_sim.step.host import Added
from medusa_sim.step.sampling import sampled
from medusa_sim.step.setting import Setting

_FEW_QUEUE = 1e-3
"""Share of the requests that may queue before a step is taken to have fewer."""


def in_server(
    setting: Setting,
    step_us: FloatArray,
    batch: Size,
    candidates: Size,
    tokens_per_step: FloatArray,
    traffic: Traffic | None,
    *,
    attention_us: FloatArray | float = 0.0,
    fewer: StepOf | None = None,
    decode_steps: FloatArray | None = None,
    prompt_tokens: FloatArray | None = None,
    drafter: Drafter | None = None,
) -> Server:
    """A step in a server of `batch` requests. step_us: of all of them, at `served_length`; all broadcast.

    attention_us: of step_us, the attention of its requests; fewer: the same two of those that run, where the
    tokens of a step keep others in the queue (None: as of all).
    decode_steps: those of a request (N20); None: of a chain of `candidates` that emits so many tokens a step.
    prompt_tokens: mean tokens of a prompt, where servers differ in it (None: the traffic's); drafter: what
    reads the prompts, too.
    """
    step, tokens = as_float(step_us), as_float(tokens_per_step)
    if traffic is None or setting.scope == "block":
        return Server(step_us=step, tokens_per_step=tokens)
    requests, longest = as_float(batch), as_float(candidates)
    shape = np.broadcast_shapes(step.shape, requests.shape, longest.shape, tokens.shape)
    if 0 in shape:  # no batch fits
        return Server(step_us=np.broadcast_to(step, shape), tokens_per_step=tokens)
    if decode_steps is None:
        decode_steps = traffic.request_steps(chain_chances(tokens, np.broadcast_to(longest, shape)))
    return FullServer(
        setting=setting,
        traffic=traffic,
        step_us=step + sampled(setting, requests, candidates, tokens).time_us,
        fewer=fewer,
        tokens_per_step=tokens,
        decode_steps=decode_steps,
        requests=requests,
        candidates=longest,
        verified_tokens=as_float(setting.verified.mean_tokens(candidates)),
        attention_us=as_float(attention_us),
        prompt_tokens=as_float(traffic.prompt_tokens if prompt_tokens is None else prompt_tokens),
        drafter=drafter,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Server:
    """Steps on which nothing rides: what a request sees is the step. Microseconds, arrays broadcast."""

    step_us: FloatArray
    """Time of a step."""
    tokens_per_step: FloatArray
    """Tokens that it emits of a request."""

    @cached_property
    def itl_us(self) -> FloatArray:
        """Median time between two chunks of a request; with traffic (N9)."""
        return self.quantile_us(0.5)

    def quantile_us(self, share: float) -> FloatArray:
        """Time between two chunks that this share of them does not exceed."""
        del share
        return self.step_us

    @property
    def tpot_us(self) -> FloatArray:
        """Mean time per token of a request from its first token on, as load generators count."""
        return np.asarray(self.step_us / self.tokens_per_step)

    @property
    def token_us(self) -> FloatArray:
        """The same with its own prompt: what the rate of all requests tells."""
        return self.tpot_us

    @property
    def first_token_us(self) -> FloatArray:
        """Mean time to the first token; nan where no prompts are known."""
        return np.full(np.shape(self.step_us), nan)

    @property
    def benchmark_first_token_us(self) -> FloatArray:
        """The same as load generators count, whose clients all begin at once."""
        return self.first_token_us

    @property
    def carrying_share(self) -> FloatArray:
        """Share of the steps that carry tokens of prompts."""
        return np.zeros(())

    @property
    def step_share(self) -> FloatArray:
        """Of token_us, what the engine's step takes."""
        return np.ones(())

    @property
    def halves(self) -> tuple[FloatArray, ...]:
        """Half-widths of the 80 % band of token_us, on its logarithm, from each thing other than the step.

        Each is one error: that of plain decoding and of speculation have the same sign.
        """
        return ()


@dataclass(frozen=True, kw_only=True, eq=False)
class FullServer(Server):
    """Steps of a server that stays full (N7) to (N19); step_us is that of all requests, without prompts."""

    setting: Setting
    traffic: Traffic
    requests: FloatArray
    candidates: FloatArray
    """Of each request, where it drafts."""
    verified_tokens: FloatArray
    """Of each request in the step, on average."""
    decode_steps: FloatArray
    """D, steps in which a request decodes."""
    attention_us: FloatArray
    """Of all requests in the step."""
    prompt_tokens: FloatArray
    """Of a prompt, on average."""
    drafter: Drafter | None
    """Of the configurations that verify more than one token."""
    fewer: StepOf | None
    """Steps, and attention, of fewer requests; without sampling, which step_us has."""

    # The equations.

    @property
    def tpot_us(self) -> FloatArray:
        """(N10)."""
        further = self.traffic.output_tokens - 1.0 if self.traffic.output_tokens > 1.0 else nan
        return self._shaped(self._means.decoding_us * self._cycle.decode_steps) / further

    @property
    def token_us(self) -> FloatArray:
        """(N11): time of a whole request over its tokens."""
        return self._request_us / self.traffic.output_tokens

    @property
    def first_token_us(self) -> FloatArray:
        """(N17)."""
        return self._shaped(first_token_us(self._law, self._means))

    @cached_property
    def benchmark_first_token_us(self) -> FloatArray:
        """(N19)."""
        return self._shaped(load_test_first_token_us(self._law, self._means))

    @property
    def carrying_share(self) -> FloatArray:
        """Share of the steps that carry tokens of prompts."""
        return self._shaped(carrying_share(self._law))

    # The cycle, its steps, and means over them.

    @property
    def _cycle(self) -> RequestCycle:
        """(cells,) in a row."""
        return self._law.cycle

    def _cycle_of(self, seen: StepTimes) -> RequestCycle:
        """(cells,) in a row. seen: times of their steps."""
        return request_cycle(
            self.setting,
            self.traffic,
            self._step_of,
            seen=seen,
            requests=self._row(self.requests),
            candidates=self._row(self.candidates),
            verified_tokens=self._row(self.verified_tokens),
            decode_steps=self._row(self.decode_steps),
            prompt_tokens=self._row(self.prompt_tokens),
        )

    def _step_of(self, running: FloatArray) -> tuple[FloatArray, FloatArray]:
        """(cells,) the step, and its attention, where so many requests run."""
        every = self._row(self.step_us), self._row(self.attention_us)
        has_all = running >= (1.0 - _FEW_QUEUE) * self._row(self.requests)
        if self.fewer is None or has_all.all():
            return every
        step_us, attention_us = self.fewer(self._shaped(running))
        of_fewer = step_us + self._sampled(self._shaped(running)).time_us, attention_us
        step_us, attention_us = (
            np.where(has_all, of_all, self._row(few)) for of_all, few in zip(every, of_fewer, strict=True)
        )
        return step_us, attention_us

    def _sampled(self, running: FloatArray) -> Added:
        """What sampling adds to the step of so many requests."""
        return sampled(self.setting, running, self.candidates, self.tokens_per_step)

    @cached_property
    def _law(self) -> MixedStepLaw:
        as_if_none_carried = self._cycle_of(steps_alone(self._row(self.step_us)))
        law = mixed_step_law(self.setting, self.traffic, self.drafter, as_if_none_carried)
        return replace(law, cycle=self._cycle_of(law.step_times))

    @cached_property
    def _means(self) -> StepMeans:
        """(cells,) means over the steps of each cell."""
        return step_means(self._law)

    def quantile_us(self, share: float) -> FloatArray:
        """Time between two chunks that this share of them does not exceed, over steps of a request."""
        between_us = self._shaped(step_quantile_us(self._law, share))
        return between_us if self.traffic.output_tokens > 1.0 else np.full(between_us.shape, nan)

    # The band.

    @cached_property
    def step_share(self) -> FloatArray:
        """Of token_us, what the engine's step takes: of as many steps as a request decodes."""
        cycle = self._cycle
        step_us, added = self._shaped(cycle.step_us), self._sampled(self._shaped(cycle.running))
        return np.minimum(self._share_of(step_us - added.time_us), 1.0)

    @cached_property
    def halves(self) -> tuple[FloatArray, ...]:
        """Of sampling, of the kernels of prompts, and of the host that launches these."""
        on_the_way = self._shaped(self._cycle.idle_trip_us) / self._request_us
        prompts = np.maximum(1.0 - self._share_of(self._shaped(self._cycle.step_us)) - on_the_way, 0.0)
        launching_us = self._shaped(self._means.launching_half_us * self._cycle.steps)
        return (
            self._share_of(self._sampled(self._shaped(self._cycle.running)).half_us),
            prompts * self._shaped(self._law.prompt_half),
            launching_us / self._request_us,
        )

    def _share_of(self, added_us: FloatArray) -> FloatArray:
        """Of a whole request, what takes so long in each step that it decodes."""
        return np.asarray(added_us * self._shaped(self._cycle.decode_steps) / self._request_us)

    @cached_property
    def _request_us(self) -> FloatArray:
        """From one request of a client to its next."""
        cycle = self._cycle
        return self._shaped(self._means.step_us * cycle.steps + cycle.idle_trip_us)

    # Cells in a row, and back.

    @cached_property
    def _shape(self) -> tuple[int, ...]:
        inputs = (
            self.step_us, self.requests, self.candidates, self.verified_tokens, self.decode_steps,
            self.attention_us, self.prompt_tokens,
        )  # fmt: skip
        return np.broadcast_shapes(*map(np.shape, inputs))

    def _row(self, values: FloatArray) -> FloatArray:
        """(cells,) from values that broadcast to the shape of the grid."""
        return np.broadcast_to(values, self._shape).ravel()

    def _shaped(self, values: FloatArray) -> FloatArray:
        """(cells,) values in the shape of the grid."""
        return values.reshape(self._shape)
