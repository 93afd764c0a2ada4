"""Steps of a full server that carry prompts as well as decoding: how many begin on a step, and its time.

`step.closed_loop` says what each letter is. Of the b requests of a cell n begin their prompts on a step:

    n ~ Bin(b, pi),   S log-normal with mean n P and variance n (cv P)^2
    d(n) = (b - n) (D - e) / (D - e + I + H)                           requests that decode all the while

    (N8)  t(0)    = step(b) - (b - d) a - own(b) + mean of own over how many are away
          t(n, S) = |device, launches|_3 + beside             where prompts ride on steps, with
                    device = step(b) - (b - d) a + g more(S) + g read(S)
                  = t(0) + |device, launches|_3 + beside      where they have passes of their own, with
                    device = g (linear(S) + logits) + g read(S)
          more(S) = linear(d c + S) - (1 - k / E)^S alike - own(b)
          read(S) = attention of n prompts + that of the drafter + drafter(S) + lone(S)

|device, launches|_3 is the smooth maximum of `host.overlapped_us`; launches is the host, where no graph holds
the pass. linear, own and alike are those of `step.prompt_kernels`: own(b) has the rows of the step as an
engine pads it, a step that carries prompts is not padded. GPUs that attend to their own requests share n
prompts; fewer than GPUs are one of the busiest, which has the layers around their attention too: lone(S).

A prompt longer than the room of a step takes floor(S / room) further steps before its last one. They carry as
much as there is room for, in place of steps that would carry nothing.

A step's time is convex in what it carries, with cliffs: it is averaged over n and S, never taken at their
means.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from medusa_sim.arrays import FloatArray, IntArray
from medusa_sim.step.chance import Hits, binomial, log_normal, sums_by_place
from medusa_sim.step.closed_loop import ClosedLoop
from medusa_sim.step.drafter.base import Drafter
from medusa_sim.step.graphs import padded_tokens
from medusa_sim.step.prompt_kernels import (
    busiest_share,
    decode_linear_us,
    drafter_attention_us,
    drafter_linear_us,
    expert_sharing_us,
    imbalance_share,
    imbalance_us,
    inactive_share,
    linear_times,
    linear_us,
    logits_us,
    prompt_attention_us,
    timed_rows,
)
from medusa_sim.step.prompts import (
    eager_host_us,
    graph_rows,
    prompt_host_us,
    prompt_terms,
    prompts_apart,
)
from medusa_sim.step.setting import Setting
from medusa_sim.step.traffic import Traffic

_LEAST_PROMPTS = 1e-9


class MixedSteps(NamedTuple):
    """n steps and the prompts that begin on each; (n, K) over equally likely lengths of these prompts."""

    decoding: FloatArray
    """(n,) d, requests that decode in all of it; those that begin see the step behind their pass, t(0)."""
    time_us: FloatArray
    """(n, K) of the step with the last of these prompts' tokens."""
    further: FloatArray
    """(n, K) steps before it that carry as much of them as they have room for."""
    further_us: FloatArray
    """Time of each of these; broadcasts with `further`."""
    reading_us: FloatArray
    """(n,) mean time until these prompts are read: of all these steps, or of their own passes alone."""


@dataclass(frozen=True, kw_only=True, eq=False)
class MixedStepLaw:
    """(N8) of M cells, with what is priced once for all of them."""

    setting: Setting
    traffic: Traffic
    loop: ClosedLoop
    own_linear_us: FloatArray
    """(M,) own(b), with all requests decoding."""
    empty_linear_us: FloatArray
    """(M,) the same, averaged over how many are away."""
    expert_sharing_us: FloatArray
    """(M,) by which it is shorter because tokens of a request share experts."""
    rows: FloatArray
    """(R,) between which linear(rows) and drafter(rows) are linear."""
    linear_us: FloatArray
    """(R,) linear: what all tokens of a step share."""
    drafter_us: FloatArray
    """(R,) what a drafter adds for tokens of prompts, but for its attention."""
    logits_us: float
    """Of choosing tokens behind prompts, in a pass of their own."""
    imbalance_us: FloatArray
    """(R,) what linear takes longer where one GPU attends to all of these tokens."""
    prompt_attention_us: float
    """Attention of one prompt, averaged over its length."""
    drafter_attention_us: float
    """That of a drafter which reads the prompt, too."""
    prompt_half: float
    """Upper half-width of the band of linear(P), on the logarithm."""
    plain_host_us: float
    """Host of a step or pass with prompts, where no drafter is loaded; 0: a graph holds it."""
    drafting_host_us: float
    """The same where one is."""

    def begun(self, cells: IntArray) -> Hits:
        """n: how many prompts begin on a step of some cells. `Hits.place` is a place among `cells`."""
        is_launched = self.plain_host_us > 0.0 and not prompts_apart(self.setting)
        held, grouped = self.loop.most_held_steps.any(), is_launched and self.setting.parallel.schedulers > 1
        begun = self._begun_held if held else self._begun_in_groups if grouped else self._begun_singly
        return begun(cells)

    def _begun_singly(self, cells: IntArray) -> Hits:
        """Each of b requests by itself."""
        return binomial(self.loop.requests[cells], self.loop.begin_chance[cells])

    def _begun_in_groups(self, cells: IntArray) -> Hits:
        """One for each GPU at once: those whose steps with prompts are launched wait for each other's.

        b / GPUs groups begin with the probability pi of a request, so that as many prompts begin on average.
        """
        requests = self.loop.requests[cells]
        together = np.minimum(float(self.setting.parallel.schedulers), requests)
        hits = binomial(requests / together, self.loop.begin_chance[cells])
        return hits._replace(number=hits.number * together[hits.place])

    def _begun_held(self, cells: IntArray) -> Hits:
        """The first, held for others, and J that join it: 1 + J on b pi / (1 + J) of the steps.

        Where there is nobody to wait for, none joins: the one request begins with pi.
        """
        loop = self.loop
        carry = np.minimum(loop.requests * loop.begin_chance / (1.0 + loop.joining), 1.0)[cells]
        joined = binomial(np.maximum(loop.requests[cells] - 1.0, 0.0), loop.joining_chance[cells])
        return Hits(
            np.concatenate([np.zeros(cells.size), 1.0 + joined.number]),
            np.concatenate([1.0 - carry, carry[joined.place] * joined.weight]),
            np.concatenate([np.arange(cells.size), joined.place]),
        )

    def where(self, cells: IntArray, begin_chance: FloatArray) -> MixedStepLaw:
        """Of some cells, which may come again, on whose steps prompts begin with another probability."""
        return replace(
            self,
            loop=self.loop.beginning(cells, begin_chance),
            own_linear_us=self.own_linear_us[cells],
            empty_linear_us=self.empty_linear_us[cells],
            expert_sharing_us=self.expert_sharing_us[cells],
        )

    def steps(self, cells: IntArray, prompts: FloatArray) -> MixedSteps:
        """(n,) steps, one of each of `cells` (which may come again), on which so many prompts begin."""
        traffic = self.traffic
        some_prompts = np.maximum(prompts, _LEAST_PROMPTS)
        spread = log_normal(traffic.prompt_cv / np.sqrt(some_prompts))
        prompt_tokens = prompts[:, None] * traffic.prompt_tokens * spread  # S
        room = self.loop.room_tokens[cells][:, None]
        further = np.floor(prompt_tokens / room)
        last_tokens = prompt_tokens - further * room

        carrying_us = self._pass_apart_us if prompts_apart(self.setting) else self._riding_us
        empty_us = self.empty_us[cells][:, None]
        time_us = np.where(prompts[:, None] > 0.0, carrying_us(cells, prompts, last_tokens), empty_us)
        further_us = carrying_us(cells, prompts, room) if further.any() else empty_us
        reading_us = time_us + further * further_us
        if prompts_apart(self.setting):  # all in a row, before the step goes on
            reading_us = reading_us - (1.0 + further) * empty_us
        return MixedSteps(
            self._decoding(cells, prompts), time_us, further, further_us, reading_us.mean(axis=1)
        )

    @cached_property
    def empty_us(self) -> FloatArray:
        """(M,) t(0)."""
        loop = self.loop
        away = loop.requests * loop.away_share
        return loop.step_us - away * loop.request_attention_us - (self.own_linear_us - self.empty_linear_us)

    def _decoding(self, cells: IntArray, prompts: FloatArray) -> FloatArray:
        """d(n)."""
        return np.maximum(self.loop.requests[cells] - prompts, 0.0) * self.loop.decoding_share[cells]

    def _riding_us(self, cells: IntArray, prompts: FloatArray, tokens: FloatArray) -> FloatArray:
        """t(n, S) where prompts ride on the step; tokens: (n, K), S."""
        loop, decoding = self.loop, self._decoding(cells, prompts)
        absent = loop.requests[cells] - decoding
        step_us = loop.step_us[cells] - absent * loop.request_attention_us[cells]
        rows = (decoding * loop.verified_tokens[cells])[:, None] + tokens
        linear_us = np.interp(rows, self.rows, self.linear_us)
        if self.expert_sharing_us.any():
            linear_us -= inactive_share(self.setting, tokens) * self.expert_sharing_us[cells][:, None]
        more_us = linear_us - self.own_linear_us[cells][:, None]
        read_us, host_us = self._read_us(cells, prompts, tokens), self._riding_host_us(cells, rows)
        return prompt_terms(self.setting).mixed_us(step_us[:, None], more_us, read_us, host_us)

    def _riding_host_us(self, cells: IntArray, rows: FloatArray) -> FloatArray | float:
        """Host that launches a step of so many rows, (n, K), where its prompts take it out of a graph."""
        if self.plain_host_us:
            return self.plain_host_us
        host_us = eager_host_us(self.setting)
        if not host_us:
            return 0.0
        each, index = np.unique(self.loop.verified_tokens[cells], return_inverse=True)
        most_rows = np.asarray([graph_rows(self.setting, tokens) for tokens in each])[index][:, None]
        own_rows = (self.loop.requests * self.loop.verified_tokens)[cells][:, None]
        return np.where((own_rows <= most_rows) & (rows > most_rows), host_us, 0.0)

    def _pass_apart_us(self, cells: IntArray, prompts: FloatArray, tokens: FloatArray) -> FloatArray:
        """t(n, S) where prompts have passes of their own; tokens: (n, K), S."""
        linear_us = (np.interp(tokens, self.rows, self.linear_us) + self.logits_us) * (tokens > 0.0)
        read_us, drafts = self._read_us(cells, prompts, tokens), self.loop.verified_tokens > 1.0
        host_us = np.where(drafts, self.drafting_host_us, self.plain_host_us)[cells][:, None]
        launched_us = np.where(tokens > 0.0, host_us, 0.0)
        step_us = self.empty_us[cells][:, None]
        return prompt_terms(self.setting).mixed_us(step_us, linear_us, read_us, launched_us)

    def _read_us(self, cells: IntArray, prompts: FloatArray, tokens: FloatArray) -> FloatArray:
        """read(S): attention and drafter of so many tokens of so many prompts, at cells that draft or not."""
        gpus, drafts = self.setting.parallel.schedulers, (self.loop.verified_tokens > 1.0)[cells]
        busiest = busiest_share(gpus, prompts)
        attention_us = busiest * (self.prompt_attention_us + drafts * self.drafter_attention_us)
        each_us = (attention_us / self.traffic.prompt_tokens)[:, None] * tokens
        drafter_us = np.interp(tokens, self.rows, self.drafter_us) * (tokens > 0.0)
        return np.asarray(each_us + drafts[:, None] * drafter_us + self._lone_us(tokens, busiest))

    def _lone_us(self, tokens: FloatArray, busiest: FloatArray) -> FloatArray | float:
        """What linear takes longer as one GPU has this share of the tokens, (n,); 0 where all share all."""
        gpus = self.setting.parallel.schedulers
        if gpus == 1:
            return 0.0
        part = imbalance_share(gpus, busiest)[:, None]
        return np.asarray(part * np.interp(tokens, self.rows, self.imbalance_us) * (tokens > 0.0))


def mixed_step_law(
    setting: Setting, traffic: Traffic, drafter: Drafter | None, loop: ClosedLoop
) -> MixedStepLaw:
    """(N8) of the cells of a loop. drafter: what reads prompts too, where a cell drafts."""
    most_rows = (loop.requests * loop.verified_tokens).max() + loop.room_tokens.max()
    knots = timed_rows(float(most_rows)).astype(np.int64)
    padded = _padded_rows(setting, loop.requests, loop.verified_tokens)
    # averaged over how many are away, so that no edge of a tile falls on one number of requests
    away = binomial(loop.requests, loop.away_share)
    present = np.maximum(loop.requests[away.place] - away.number, 1.0)
    verified = loop.verified_tokens[away.place]
    padded_without = _padded_rows(setting, present, verified)

    timed = np.unique(np.concatenate([padded, padded_without, knots]))
    timed_us = linear_us(setting, timed.astype(np.float64))

    def of_rows(rows: IntArray) -> FloatArray:
        return np.asarray(timed_us[np.searchsorted(timed, rows)])

    def own_us(requests: FloatArray, tokens: FloatArray, rows: IntArray) -> FloatArray:
        return decode_linear_us(setting, requests, tokens, rows.astype(np.float64), of_rows(rows))

    prompt_step = linear_times(setting, np.array([float(round(max(traffic.prompt_tokens, 1.0)))]))
    lengths = traffic.prompt_tokens * log_normal(np.full(1, traffic.prompt_cv))[0]
    return MixedStepLaw(
        setting=setting,
        traffic=traffic,
        loop=loop,
        own_linear_us=own_us(loop.requests, loop.verified_tokens, padded),
        empty_linear_us=sums_by_place(
            away.weight * own_us(present, verified, padded_without), away.place, padded.size
        ),
        expert_sharing_us=expert_sharing_us(
            setting,
            loop.requests,
            loop.verified_tokens,
            padded.astype(np.float64),
            loop.requests * loop.verified_tokens,
        ),
        rows=knots.astype(np.float64),
        linear_us=of_rows(knots),
        drafter_us=drafter_linear_us(setting, drafter, knots.astype(np.float64)),
        logits_us=logits_us(setting),
        imbalance_us=imbalance_us(setting, knots.astype(np.float64)),
        prompt_attention_us=float(prompt_attention_us(setting, lengths, lengths).mean()),
        drafter_attention_us=float(drafter_attention_us(setting, drafter, lengths, lengths).mean()),
        prompt_half=float(np.log(prompt_step.high_us / prompt_step.time_us)[0]),
        plain_host_us=prompt_host_us(setting, has_drafter=False),
        drafting_host_us=prompt_host_us(setting, has_drafter=True),
    )


def _padded_rows(setting: Setting, requests: FloatArray, verified_tokens: FloatArray) -> IntArray:
    """Rows of the linear layers of a step of so many requests, as an engine pads them."""
    engine = setting.runtime.engine
    rows = requests * verified_tokens
    padded = rows if engine is None else padded_tokens(engine, requests, verified_tokens)
    return np.maximum(np.rint(padded), 1.0).astype(np.int64)
