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
from functools import cached_property, partial
from math import nan

import numpy as np

from medusa_sim.arrays import FloatArray, as_float
from medusa_sim.operators.operator import Size
from medusa_sim.serving.first_tokens import first_token_us, load_test_first_token_us
from medusa_sim.serving.mixed_steps import MixedStepLaw, mixed_step_law
from medusa_sim.serving.request_cycle import RequestCycle, StepOf, request_cycle, steps_alone
from medusa_sim.serving.request_steps import chain_chances
from medusa_sim.serving.running import Requests
from medusa_sim.serving.step_means import StepMeans, carrying_share, step_means, step_quantile_us
from medusa_sim.serving.traffic import Traffic
from medusa_sim.step.drafter.base import Drafter
from medusa_sim.step.host import Added
from medusa_sim.step.sampling import sampled
from medusa_sim.step.setting import Setting

_FEW_QUEUE = 1e-3
"""Share of the requests that may queue before a step is taken to have fewer."""


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
    fewer_sizes: FloatArray | None = None
    """Rising numbers of requests between which `fewer` interpolates; None: it is exact."""
    decode_steps: FloatArray | None = None
    """Steps of a request (N20); None: of a chain of `candidates` that emits so many tokens a step."""
    prompt_tokens: FloatArray | None = None
    """Mean tokens of a prompt; None: the traffic's."""
    cached_tokens: FloatArray | float = 0.0
    """Of a prefix before it, which it attends to and which is not read again."""
    drafter: Drafter | None = None
    """What reads prompts too, where a cell drafts."""

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """The shape of the cells."""
        given = (
            self.step_us, self.requests, self.candidates, self.tokens_per_step, self.attention_us,
            self.decode_steps, self.prompt_tokens, self.cached_tokens,
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


def in_server(cells: ServedCells, traffic: Traffic | None) -> Server:
    """Steps in servers that stay full; without traffic, and of a block, nothing rides on them."""
    if traffic is None or cells.setting.scope == "block":
        return Server(step_us=cells.step_us, tokens_per_step=cells.tokens_per_step)
    if 0 in cells.shape:  # no batch fits
        return Server(
            step_us=np.broadcast_to(cells.step_us, cells.shape), tokens_per_step=cells.tokens_per_step
        )
    step_us = cells.step_us + cells.sampling(as_float(cells.requests)).time_us
    return FullServer(step_us=step_us, tokens_per_step=cells.tokens_per_step, cells=cells, traffic=traffic)


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

    cells: ServedCells
    traffic: Traffic

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

    @cached_property
    def _law(self) -> MixedStepLaw:
        cells, requests = self.cells, self.cells.requests_of(self.traffic)
        cycle_of = partial(request_cycle, cells.setting, self.traffic, self._step_of, requests)
        # kernels are priced for this one alone: priced anew, a time per token would move by 0.4 % at most
        as_if_none_carried = cycle_of(steps_alone(cells.row(self.step_us)))
        law = mixed_step_law(
            cells.setting,
            self.traffic,
            cells.drafter,
            as_if_none_carried,
            cells.row(cells.cached_tokens),
            cells.fewer_sizes,
        )
        return replace(law, cycle=cycle_of(law.step_times))

    def _step_of(self, running: FloatArray) -> tuple[FloatArray, FloatArray]:
        """(cells,) the step, and its attention, where so many requests run."""
        cells = self.cells
        every = cells.row(self.step_us), cells.row(cells.attention_us)
        has_all = running >= (1.0 - _FEW_QUEUE) * cells.row(cells.requests)
        if cells.fewer is None or has_all.all():
            return every
        step_us, attention_us = cells.fewer(self._shaped(running))
        of_fewer = step_us + cells.sampling(self._shaped(running)).time_us, attention_us
        step_us, attention_us = (
            np.where(has_all, of_all, cells.row(few)) for of_all, few in zip(every, of_fewer, strict=True)
        )
        return step_us, attention_us

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
        step_us, added = self._shaped(cycle.step_us), self.cells.sampling(self._shaped(cycle.running))
        return np.minimum(self._share_of(step_us - added.time_us), 1.0)

    @cached_property
    def halves(self) -> tuple[FloatArray, ...]:
        """Of sampling, of the kernels of prompts, and of the host that launches these."""
        on_the_way = self._shaped(self._cycle.idle_trip_us) / self._request_us
        prompts = np.maximum(1.0 - self._share_of(self._shaped(self._cycle.step_us)) - on_the_way, 0.0)
        launching_us = self._shaped(self._means.launching_half_us * self._cycle.steps)
        return (
            self._share_of(self.cells.sampling(self._shaped(self._cycle.running)).half_us),
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

    def _shaped(self, values: FloatArray) -> FloatArray:
        """(cells,) values in the shape of the grid."""
        return values.reshape(self.cells.shape)
