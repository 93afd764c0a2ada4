"""The cycle of a request in a full server: it decodes, is away at its client, queues, has its prompt read.

The b requests of a server go around for ever: one that ends comes back as its client's next one. Letters of
(N7) to (N20), here and wherever a server is told of (`mixed_steps`, `step_means`, `server`, `first_tokens`,
`gathering`, `load.prompt_table`); docs/method-engines.md has the same:

    b, c, tau   requests of the server; tokens that a step verifies of each, and emits of each on average
    P, N, cv    mean tokens of a prompt and an output; coefficient of variation of prompts
    C, room     tokens that a step may hold; those of prompts among them
    pi          probability that a request begins its prompt on a given step
    n, S, d     prompts that begin on a step, their tokens together, requests that decode in it
    t(n, S)     time of such a step; t(0) of one that carries no prompt
    g, extra    share of fitted kernels that an engine's own take for prompts; what such a step takes besides

In steps, a request

    D    = (N - 1 + surplus) / tau          decodes (N20)
    I    = ahead + server_us / step + 1/2   is away: steps that the engine has scheduled ahead, the way to the
                                            client and back, half a running step; 0 of a single request
    W                                       queues for the room of a step (`_in_queue`)
    R    = 1 + mean floor(P / room)         has its prompt read
    room = max(C - b c, C / 8)              what requests that decode leave of the budget of a step
    H    = hold (1 + J / 2) / (1 + J)       has its prompt held for others to ride with it: the first of them
                                            `hold` steps or until they fill the room, others half of that
    J    = (b - 1) (1 - (1 - pi)^hold)      how many others join it
    (N7) pi = 1 / (D + I + W + H + R)       probability that it begins its prompt on a given step

Without a way to the client (server_us = 0) I has no half step. Where prompts have passes of their own no step
is queued for or read on: pi leaves out W and R, and the first of the D steps is the one after its own pass
(apart = 1; elsewhere 0). H depends on pi and pi on H: both are found by iteration.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np

from medusa_sim.arrays import BoolArray, FloatArray, IntArray
from medusa_sim.step.chance import log_normal
from medusa_sim.step.prompts import prompts_apart
from medusa_sim.step.setting import Setting
from medusa_sim.step.traffic import Traffic, step_tokens

_LEAST = 1e-9
"""Steps of a request that neither decodes nor is away."""
_ITERATIONS = 12
"""After which pi stands to 1e-9, where prompts are held for 100 steps too."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RequestCycle:
    """(cells,) for each cell of a grid: the step with all its requests decoding, and what a request does."""

    step_us: FloatArray
    """Time of the step with all requests decoding and no prompt."""
    requests: FloatArray
    """b, requests that go around."""
    verified_tokens: FloatArray
    """c, tokens that the step processes of a request."""
    request_attention_us: FloatArray
    """Attention of one request in it."""
    room_tokens: FloatArray
    """Tokens of prompts that it has room for."""
    prompt_tokens: FloatArray
    """P."""
    decode_steps: FloatArray
    """D."""
    after_prefill_steps: FloatArray
    """apart: of D, those right after its prompt's own pass."""
    away_steps: FloatArray
    """I."""
    idle_trip_us: FloatArray
    """The way to the client and back of a single request, while no step runs."""
    queued_steps: FloatArray
    """W."""
    most_held_steps: FloatArray
    """Steps that the first prompt is held for others, at most."""
    begin_chance: FloatArray
    """pi."""

    @property
    def prompts_in_room(self) -> FloatArray:
        """Prompts of mean length that it has room for."""
        return self.room_tokens / self.prompt_tokens

    @cached_property
    def decoding_share(self) -> FloatArray:
        """(D - apart) / (D - apart + I + H): of requests that neither queue nor begin, those that decode."""
        further_steps = self.decode_steps - self.after_prefill_steps
        return further_steps / np.maximum(further_steps + self.absent_steps, _LEAST)

    @cached_property
    def absent_share(self) -> FloatArray:
        """(I + H) / (D + I + H): of those that neither queue nor read, the others."""
        return self.absent_steps / np.maximum(self.decode_steps + self.absent_steps, _LEAST)

    @cached_property
    def absent_steps(self) -> FloatArray:
        """I + H."""
        return self.away_steps + self.held_steps

    @cached_property
    def first_held_steps(self) -> FloatArray:
        """hold: steps that the first of several prompts is held."""
        begun = np.maximum(self.requests - 1.0, 0.0) * self.begin_chance
        until_full = np.maximum(self.prompts_in_room - 1.0, 0.0) / np.maximum(begun, _LEAST)
        return np.minimum(self.most_held_steps, until_full)

    @cached_property
    def joining_chance(self) -> FloatArray:
        """1 - (1 - pi)^hold: probability that another request's prompt comes meanwhile."""
        return np.asarray(1.0 - np.maximum(1.0 - self.begin_chance, 0.0) ** self.first_held_steps)

    @cached_property
    def joining(self) -> FloatArray:
        """J."""
        return np.maximum(self.requests - 1.0, 0.0) * self.joining_chance

    @cached_property
    def held_steps(self) -> FloatArray:
        """H."""
        return self.first_held_steps * (1.0 + self.joining / 2.0) / (1.0 + self.joining)

    def beginning(self, cells: IntArray, begin_chance: FloatArray) -> RequestCycle:
        """Some of the cells, which may come again, each with another pi."""
        columns = {field.name: getattr(self, field.name)[cells] for field in fields(self)}
        return RequestCycle(**columns | {"begin_chance": begin_chance})


def request_cycle(
    setting: Setting,
    traffic: Traffic,
    *,
    step_us: FloatArray,
    requests: FloatArray,
    verified_tokens: FloatArray,
    decode_steps: FloatArray,
    attention_us: FloatArray,
    prompt_tokens: FloatArray,
    server_us: float,
) -> RequestCycle:
    """The cycle in some cells, all given (cells,): (N7).

    attention_us: of all requests in the step; server_us: the way of a response to the client and back.
    """
    engine = setting.runtime.engine
    budget = step_tokens(
        setting.runtime, setting.latency.gpu, requests, schedulers=setting.parallel.schedulers
    )
    # an eighth is assumed: where a step is full prompts wait until requests end, here all of them decode on
    room_tokens = np.maximum(budget - requests * verified_tokens, budget / 8.0)
    others = np.minimum(requests - 1.0, 1.0)  # 0 of a single request: no step runs while it is away
    trip_steps = server_us / step_us + 0.5 if server_us else 0.0
    away_steps = others * (_steps_ahead(setting, is_drafting=verified_tokens > 1.0) + trip_steps)
    other_steps, none = decode_steps + away_steps, np.zeros(requests.size)
    if prompts_apart(setting):
        begin_chance = np.minimum(1.0 / np.maximum(other_steps, _LEAST), 1.0)
        queued_steps, after_prefill_steps = none, np.minimum(decode_steps, 1.0)
    else:
        begin_chance, queued_steps = _in_queue(
            prompt_tokens, traffic.prompt_cv, requests, room_tokens, other_steps
        )
        after_prefill_steps = none
    unheld = RequestCycle(
        step_us=step_us,
        requests=requests,
        verified_tokens=verified_tokens,
        request_attention_us=attention_us / requests,
        room_tokens=room_tokens,
        prompt_tokens=prompt_tokens,
        decode_steps=decode_steps,
        after_prefill_steps=after_prefill_steps,
        away_steps=away_steps,
        idle_trip_us=server_us * (1.0 - others),
        queued_steps=queued_steps,
        most_held_steps=others * (0.0 if engine is None else float(engine.prompt_wait_steps)),
        begin_chance=begin_chance,
    )
    return _held(unheld) if unheld.most_held_steps.any() else unheld


def _held(unheld: RequestCycle) -> RequestCycle:
    """The cycle with its pi lessened by H: the fewer prompts begin, the longer the first one is held."""
    cycle = unheld
    for _ in range(_ITERATIONS):
        cycle = replace(cycle, begin_chance=1.0 / (1.0 / unheld.begin_chance + cycle.held_steps))
    return cycle


def _steps_ahead(setting: Setting, *, is_drafting: BoolArray) -> FloatArray | float:
    """Steps that an engine schedules before the running one ends; none where a drafter switches that off."""
    engine = setting.runtime.engine
    if engine is None:
        return 0.0
    is_synchronous = is_drafting & (setting.drafter_name in engine.synchronous_drafters)
    return np.where(is_synchronous, 0.0, engine.steps_ahead.value)


def _in_queue(
    prompt_tokens: FloatArray,
    prompt_cv: float,
    requests: FloatArray,
    room_tokens: FloatArray,
    other_steps: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """(pi, W) where prompts ride on steps; other_steps: D + I, all (cells,).

    Prompts that together fill a good part of the room queue for it, as in an M/G/1 queue whose customers are
    the requests themselves. Of `rate` prompts a step, each of which takes s = P / room of it,

        b = rate (D + I + R + W),   W = rate s^2 (1 + cv^2) / (2 (1 - rate s))

    which is quadratic in the rate. 64 requests whose prompts fill a step and that decode for 150 of them
    begin 0.42 prompts a step, and each waits for a third of a step:

    >>> begin_chance, queued_steps = _in_queue(
    ...     prompt_tokens=np.array([8192.0]), prompt_cv=0.0, requests=np.array([64.0]),
    ...     room_tokens=np.array([8193.0]), other_steps=np.array([150.0]))
    >>> round(64.0 * float(begin_chance[0]), 3), round(float(queued_steps[0]), 3)
    (0.423, 0.366)
    """
    prompt_room = prompt_tokens / room_tokens  # s
    lengths = prompt_tokens[:, None] * log_normal(np.full(1, prompt_cv))
    read_steps = 1.0 + np.floor(lengths / room_tokens[:, None]).mean(axis=1)  # R
    cycle_steps = other_steps + read_steps
    half_square = prompt_room**2 * (1.0 + prompt_cv**2) / 2.0
    # b (1 - rate s) = rate cycle (1 - rate s) + rate^2 half_square
    linear, square = cycle_steps + requests * prompt_room, prompt_room * cycle_steps - half_square
    root = np.sqrt(np.maximum(linear**2 - 4.0 * requests * square, 0.0))
    rate = 2.0 * requests / (linear + root)
    begin_chance = np.minimum(rate / requests, 1.0)
    return begin_chance, np.maximum(1.0 / begin_chance - cycle_steps, 0.0)
