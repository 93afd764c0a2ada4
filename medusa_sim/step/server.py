"""A step seen by the requests of a server that stays full: time per token, gaps, time to the first token.

In numbers: 64 requests with 512 tokens of prompt and 256 of output, one token a step, decode for D = 255
steps. With I = 1.5, W = 0 and R = 1 each begins a prompt every 257.5 steps: pi = 0.00388, n has the mean
0.25, and four steps of five carry none. Where such a step takes 10 ms and each prompt adds 12, the mean t is
13 ms, so is tpot, and token is 13 / (0.00388 * 256) = 13.1 ms: 64 requests emit 4,900 tokens/s.

`step.closed_loop` says what each letter is and what the b requests of a cell do (N7), `step.mixed_steps` what
a step takes on which n of them begin a prompt (N8). Here times t of steps become those of requests, as means
over these steps:

    (N9)   itl      = median of t over the steps of a request that decodes
    (N10)  tpot     = mean of t over these / tau                 from a request's first token on
    (N11)  tokens/s = b / token,  token = mean t / (pi N)        a request begins every 1 / pi steps
    (N17)  ttft     = (I + W) mean t + H t(0) + mean of t over the steps that a prompt rides on
    (N19)  ttft of a load test whose b clients begin at once, k requests each:
           ((k - 1) again + start) / k + later
           again    = mean of (N17) over pi(x), with which prompts of such clients begin (`step.gathering`)
           start    = server + (t that reads b prompts + t that reads as many as a step has room for) / 2
           later    = load_test_us + load_test_steps mean t

Each step counts by how probable it is, for (N9) and (N10) times the requests d that decode in it, for (N17)
times the prompts n that begin on it. Without traffic nothing is carried, and a step is its own kernels, host
and engine alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from medusa_sim.arrays import FloatArray, IntArray
from medusa_sim.operators.operator import Size
from medusa_sim.step.chance import quantile, sums_by_place
from medusa_sim.step.closed_loop import ClosedLoop, closed_loop
from medusa_sim.step.drafter.base import Drafter
from medusa_sim.step.gathering import REQUESTS_A_CLIENT, gathered_chances
from medusa_sim.step.host import Added, host_share
from medusa_sim.step.mixed_steps import MixedStepLaw, mixed_step_law
from medusa_sim.step.prompts import prompt_term, prompts_apart
from medusa_sim.step.sampling import sampled
from medusa_sim.step.setting import Setting
from medusa_sim.step.step import processed_tokens
from medusa_sim.step.traffic import Traffic

_BLOCK = 1024
"""Cells whose steps are priced at once."""
_LEAST_WEIGHT = 1e-300


def in_server(
    setting: Setting,
    step_us: FloatArray,
    batch: Size,
    candidates: Size,
    tokens_per_step: FloatArray,
    traffic: Traffic | None,
    *,
    attention_us: FloatArray | float = 0.0,
    drafter: Drafter | None = None,
) -> Server:
    """A step of `batch` requests in a server. step_us: at `served_length`; all broadcast.

    attention_us: of step_us, the attention of all requests; drafter: what reads the prompts, too.
    """
    step, tokens = np.asarray(step_us, dtype=np.float64), np.asarray(tokens_per_step, dtype=np.float64)
    engine = setting.runtime.engine
    server_us = 0.0 if engine is None else engine.server_us.value
    if traffic is None or setting.scope == "block":
        return Server(step_us=step, tokens_per_step=tokens, server_us=server_us)
    requests = np.asarray(batch, dtype=np.float64)
    shape = np.broadcast_shapes(step.shape, requests.shape, np.shape(candidates), tokens.shape)
    if 0 in shape:  # no batch fits
        return Server(step_us=np.broadcast_to(step, shape), tokens_per_step=tokens, server_us=server_us)
    added = sampled(setting, requests, candidates, tokens)
    return FullServer(
        setting=setting,
        traffic=traffic,
        step_us=step + added.time_us,
        sampled=added,
        tokens_per_step=tokens,
        server_us=server_us,
        requests=requests,
        verified_tokens=np.asarray(processed_tokens(setting, candidates), dtype=np.float64),
        attention_us=np.asarray(attention_us, dtype=np.float64),
        drafter=drafter,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Server:
    """Steps on which nothing rides: what a request sees is the step. Microseconds, arrays broadcast."""

    step_us: FloatArray
    """Time of a step."""
    tokens_per_step: FloatArray
    """Tokens that it emits of a request."""
    server_us: float
    """The way of a request to the engine and of its tokens back."""

    @cached_property
    def itl_us(self) -> FloatArray:
        """Median time between two chunks of a request; with traffic (N9)."""
        return self.quantile_us(0.5)

    def quantile_us(self, share: float) -> FloatArray:
        """Time between two chunks that this share of them keeps."""
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
        """Mean time to the first token: half a running step, and the next one."""
        return np.asarray(self.server_us + 1.5 * self.step_us)

    @property
    def benchmark_first_token_us(self) -> FloatArray:
        """The same as load generators count, whose clients all begin at once."""
        return self.first_token_us

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
    """Steps of a server that stays full (N7) to (N19); step_us is that with all requests decoding."""

    setting: Setting
    traffic: Traffic
    requests: FloatArray
    verified_tokens: FloatArray
    """Of each request in the step."""
    attention_us: FloatArray
    """Of all requests in the step."""
    drafter: Drafter | None
    """Of the configurations that verify more than one token."""
    sampled: Added
    """Of step_us, what sampling adds in a server."""

    # The equations.

    @property
    def tpot_us(self) -> FloatArray:
        """(N10)."""
        return self._shaped(self._means.decoding_us / self._loop.tokens_per_step)

    @property
    def token_us(self) -> FloatArray:
        """(N11): time of a whole request over its tokens."""
        return self._shaped(self._means.step_us / (self._loop.begin_chance * self.traffic.output_tokens))

    @property
    def first_token_us(self) -> FloatArray:
        """(N17)."""
        return self._shaped(self._first_token_of(self._law, self._means))

    def _first_token_of(self, law: MixedStepLaw, means: _Means) -> FloatArray:
        """(N17) of the cells of a law."""
        loop = law.loop
        waits_us = loop.idle_trip_us + (loop.away_steps + loop.queued_steps) * means.step_us
        waits_us = waits_us + loop.held_steps * law.empty_us
        if prompts_apart(self.setting):  # no step follows a pass where nobody decodes
            waits_us = waits_us - np.maximum(2.0 - loop.requests, 0.0) * loop.step_us
        return waits_us + means.prompts_us

    @property
    def benchmark_first_token_us(self) -> FloatArray:
        """(N19)."""
        again_us, engine = self._again_us, self.setting.runtime.engine
        test_us = again_us + (self._start_us - again_us) / REQUESTS_A_CLIENT
        if engine is None:
            return np.asarray(test_us)
        waited_us = engine.load_test_steps.value * self._shaped(self._means.step_us)
        return np.asarray(test_us + engine.load_test_us.value + waited_us)

    @cached_property
    def _again_us(self) -> FloatArray:
        """Mean time to the first token of requests that follow others of their client: again of (N19)."""
        chances = gathered_chances(self._loop)
        cells, parts = chances.shape
        law = self._law.where(np.repeat(np.arange(cells), parts), chances.ravel())
        first_us = self._first_token_of(law, self._means_over(law))
        return self._shaped(first_us.reshape(chances.shape).mean(axis=1))

    @cached_property
    def _start_us(self) -> FloatArray:
        """Mean time to the first token of requests that begin at once on an idle server: start of (N19)."""

        def reading_us(place: IntArray, prompts: FloatArray) -> FloatArray:
            steps = self._law.steps(place, prompts)
            return np.asarray((steps.time_us + steps.further * steps.further_us).mean(axis=1))

        requests = self._loop.requests
        together = np.clip(self._loop.prompts_in_room, 1.0, requests)
        both_us = [
            reading_us(place, requests[place]) + reading_us(place, together[place])
            for place in _blocks(requests.size)
        ]
        return self._shaped(self.server_us + np.concatenate(both_us) / 2.0)

    # Steps, and means over them.

    @cached_property
    def _loop(self) -> ClosedLoop:
        """Every cell in a row: M of them."""
        step_us, requests, verified_tokens, tokens_per_step, attention_us = (
            values.ravel() for values in np.broadcast_arrays(*self._inputs)
        )
        return closed_loop(
            self.setting,
            self.traffic,
            step_us=step_us,
            requests=requests,
            verified_tokens=verified_tokens,
            tokens_per_step=tokens_per_step,
            attention_us=attention_us,
            server_us=self.server_us,
        )

    @cached_property
    def _law(self) -> MixedStepLaw:
        return mixed_step_law(self.setting, self.traffic, self.drafter, self._loop)

    @cached_property
    def _means(self) -> _Means:
        """(M,) means over the steps of each cell."""
        return self._means_over(self._law)

    def _means_over(self, law: MixedStepLaw) -> _Means:
        """Means over the steps of each cell of a law."""
        blocks = [self._means_of(law, place) for place in _blocks(law.loop.requests.size)]
        return _Means(*map(np.concatenate, zip(*blocks, strict=True)))

    def _means_of(self, law: MixedStepLaw, place: IntArray) -> _Means:
        """Means over the steps of some cells."""
        begun = law.begun(place)
        cell = place[begun.place]
        steps = law.steps(cell, begun.number)
        whole_us = (steps.time_us + steps.further * steps.further_us).mean(axis=1)
        # further steps stand in place of steps that would carry nothing
        in_place_us = whole_us - steps.further.mean(axis=1) * law.empty_us[cell]

        def summed(values: FloatArray) -> FloatArray:
            return sums_by_place(values, begun.place, place.size)

        def mean(weights: FloatArray, time_us: FloatArray) -> FloatArray:
            return summed(weights * time_us) / np.maximum(summed(weights), _LEAST_WEIGHT)

        return _Means(
            step_us=summed(begun.weight * in_place_us),
            decoding_us=mean(begun.weight * steps.decoding, in_place_us),
            prompts_us=mean(begun.weight * begun.number, whole_us),
        )

    def quantile_us(self, share: float) -> FloatArray:
        """Time between two chunks that this share of them keeps, over the steps of a request that decodes."""
        return self._shaped(
            np.concatenate([self._quantile_of(place, share) for place in _blocks(self._loop.requests.size)])
        )

    def _quantile_of(self, place: IntArray, share: float) -> FloatArray:
        """The same of some cells."""
        begun = self._law.begun(place)
        steps = self._law.steps(place[begun.place], begun.number)
        shape = steps.time_us.shape
        seen = np.broadcast_to((begun.weight * steps.decoding)[:, None] / shape[1], shape)
        cell = np.broadcast_to(begun.place[:, None], shape)
        if not steps.further.any():
            return quantile(steps.time_us.ravel(), seen.ravel(), cell.ravel(), share, place.size)
        further_seen = seen * steps.further
        # further steps stand in place of steps that would carry nothing
        replaced = sums_by_place(further_seen.sum(axis=1), begun.place, place.size)[begun.place]
        is_empty = (begun.number == 0.0)[:, None]
        seen = np.where(is_empty, np.maximum(seen - replaced[:, None] / shape[1], 0.0), seen)
        return quantile(
            np.concatenate([steps.time_us, np.broadcast_to(steps.further_us, shape)]).ravel(),
            np.concatenate([seen, further_seen]).ravel(),
            np.concatenate([cell, cell]).ravel(),
            share,
            place.size,
        )

    # The band.

    @cached_property
    def step_share(self) -> FloatArray:
        """Of token_us, what the engine's step takes: of as many steps as a request decodes."""
        return np.minimum(self._share_of(self.step_us - self.sampled.time_us), 1.0)

    @cached_property
    def halves(self) -> tuple[FloatArray, ...]:
        """Of sampling, of the kernels of prompts, and of the host that launches these."""
        prompts = np.maximum(1.0 - self._share_of(self.step_us), 0.0)
        kernels, launching = prompts * self._law.prompt_half, prompts * self._launching_half()
        return self._share_of(self.sampled.half_us), kernels, launching

    def _launching_half(self) -> FloatArray:
        """Half-width of the time of a step with prompts, of its host."""
        engine, law, drafts = self.setting.runtime.engine, self._law, self.verified_tokens > 1.0
        if engine is None or not (law.plain_host_us or law.drafting_host_us):
            return np.zeros(())
        host_us = np.where(drafts, law.drafting_host_us, law.plain_host_us)
        whole_us = np.maximum(self._shaped(self._means.prompts_us), host_us)
        plain, drafting = (prompt_term(self.setting, engine, drafts=loaded).band for loaded in (False, True))
        return np.asarray(host_share(host_us, whole_us) * np.where(drafts, drafting, plain))

    def _share_of(self, added_us: FloatArray) -> FloatArray:
        """Of a whole request, what takes so long in each step that it decodes."""
        loop = self._loop
        decode_steps = self._shaped(loop.decode_steps)
        request_us = self._shaped(self._means.step_us / loop.begin_chance)
        return np.asarray(added_us * decode_steps / request_us)

    # Cells in a row, and back.

    @property
    def _inputs(self) -> tuple[FloatArray, ...]:
        return self.step_us, self.requests, self.verified_tokens, self.tokens_per_step, self.attention_us

    def _shaped(self, values: FloatArray) -> FloatArray:
        """(M,) values in the shape of the grid."""
        return values.reshape(np.broadcast_shapes(*map(np.shape, self._inputs)))


def _blocks(cells: int) -> Iterator[IntArray]:
    """Places of cells that are priced together."""
    return (np.arange(first, min(first + _BLOCK, cells)) for first in range(0, cells, _BLOCK))


class _Means(NamedTuple):
    """(M,) mean times of steps of each cell."""

    step_us: FloatArray
    """Of all."""
    decoding_us: FloatArray
    """Of those of a request that decodes."""
    prompts_us: FloatArray
    """Of those that a prompt rides on."""
