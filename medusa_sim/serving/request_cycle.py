"""The cycle of a request in a full server: it decodes, is away at its client, queues, has its prompt read.

The b requests of a server go around for ever: one that ends comes back as its client's next one. Letters of
(N7) to (N20), here and wherever a server is told of (`mixed_steps`, `step_means`, `server`, `first_tokens`,
`load.prompt_table`); docs/method-engines.md has the same:

    b, running  requests of the server; of these all but those that queue (`running`)
    c, tau      tokens that a step verifies of each that decodes, and emits of each on average
    P, N, cv    mean tokens of a prompt and an output; coefficient of variation of prompts
    C, room     tokens that a step may hold; those of prompts among them
    pi          probability that a request that runs begins its prompt on a given step
    n, S, d     prompts that begin on a step, their tokens together, requests that decode in it
    t(n, S)     time of such a step; t(0) of one that carries no prompt
    g, extra    share of fitted kernels that an engine's own take for prompts; what such a step takes besides

In steps, a request

    D    = (N - 1 + surplus) / tau          decodes (N20)
    I                                       is away until the way to its client and back is over, and for what
                                            the engine has scheduled ahead (`returning`); 0 of one alone
    way  = server_us + server_us_per_request (b - 1) D / (D + ahead + 1)      tokens of others are sent first
    W                                       queues for the room of a step (`running`)
    R    = 1 + mean floor(P / room)         has its prompt read
    room, full                              what requests that decode leave of C; C where prompts have passes
                                            of their own; and what prompts that queue fill of it
    H    = hold (1 + J / 2) / (1 + J)       has its prompt held for others to ride with it: the first of them
                                            `hold` steps or until they fill the room, others half of that
    J    = (running - 1) (1 - (1 - pi)^hold)      how many others join it
    (N7) pi = 1 / (D + I + H + R)           probability that it begins its prompt on a given step

Requests that end on one step, a cohort, come back together, and cohorts meet: so n is not binomial, but that
of 0, 1, 2, ... cohorts, each as often as `returning` has it. t is first that of steps without prompts,
then that of the law that follows (`MixedStepLaw.step_times`). Where prompts have passes of their own no step
is queued for or read on: all requests run, R = 0, and the first of the D steps is the one after its own pass
(apart = 1; elsewhere 0). H depends on pi and pi on H: both are found by iteration.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np

from medusa_sim.arrays import BoolArray, FloatArray
from medusa_sim.serving.returning import Returning, returning
from medusa_sim.serving.running import Queue, Requests, in_queue
from medusa_sim.serving.traffic import Traffic, step_tokens
from medusa_sim.step.prompts import prompts_apart
from medusa_sim.step.setting import Setting

_LEAST = 1e-9
"""Steps of a request that neither decodes nor is away."""
_ITERATIONS = 12
"""After which pi stands to 1e-9, where prompts are held for 100 steps too."""

StepOf: TypeAlias = Callable[[FloatArray], tuple[FloatArray, FloatArray]]
"""Requests that run -> microseconds of their step without prompts, and of its attention."""


class StepTimes(NamedTuple):
    """(cells,) microseconds of steps, and of passes that only read prompts, of a server."""

    alone_us: FloatArray
    """Of a step without prompts."""
    carrying_us: FloatArray
    """Of one that carries some, on average, or of a pass of prompts."""
    ends: FloatArray
    """Chance that any other request ends on a step, so that it has a cohort."""


def steps_alone(step_us: FloatArray) -> StepTimes:
    """As if no step carried prompts."""
    return StepTimes(step_us, step_us, np.zeros_like(step_us))


@dataclass(frozen=True, kw_only=True, eq=False)
class RequestCycle(Requests):
    """(cells,) how requests go around, and the step with all that run decoding."""

    step_us: FloatArray
    """Time of the step with all requests that run decoding, and no prompt."""
    running: FloatArray
    """Requests that the step has."""
    request_attention_us: FloatArray
    """Attention of one request in it."""
    room_tokens: FloatArray
    """Tokens of prompts that it has room for."""
    full_tokens: FloatArray
    """full, those of a step while prompts queue: its room, less where prompts are read whole."""
    after_prefill_steps: FloatArray
    """apart: of D, those right after its prompt's own pass."""
    returning: Returning
    """When clients' next requests come: I, and how many steps' begin on one."""
    idle_trip_us: FloatArray
    """The way to the client and back of a single request, while no step runs."""
    queued_steps: FloatArray
    """W."""
    most_held_steps: FloatArray
    """Steps that the first prompt is held for others, at most."""
    begin_chance: FloatArray
    """pi."""

    @property
    def steps(self) -> FloatArray:
        """Of a whole request, from its prompt to that of its client's next one."""
        return 1.0 / self.begin_chance + self.queued_steps

    @property
    def prompts_in_room(self) -> FloatArray:
        """Prompts of mean length that fill it."""
        return self.full_tokens / self.prompt_tokens

    @cached_property
    def decoding_shares(self) -> FloatArray:
        """(cells, 2) share that decodes of requests that neither queue nor begin: without prompts, with some.

        (D - apart) / (D - apart + I + H) on average over all steps, each counted by its requests. On plain
        steps `away_on_plain` times as many are absent as on average, on the others the rest.
        """
        further_steps = self.decode_steps - self.after_prefill_steps
        mean = self.absent_steps / np.maximum(further_steps + self.absent_steps, _LEAST)
        none_begins = (1.0 - self.begin_chances / self.returning.passes) ** self.running[:, None]
        plain = (self.cohort_chances * none_begins).sum(axis=1)
        others = np.maximum(1.0 - plain - self.begin_chance, _LEAST)
        absent = (1.0 - self.begin_chance) * mean  # of all that run, on any step
        least, most = ((absent - share) / np.maximum(plain, _LEAST) for share in (others, 0.0))
        on_plain = np.clip(mean * self.returning.away_on_plain, np.maximum(least, 0.0), np.minimum(most, 1.0))
        away = np.stack([on_plain, (absent - plain * on_plain) / others], axis=1)
        return np.asarray(1.0 - np.minimum(away, 1.0))  # above 1 by rounding where none decodes

    @cached_property
    def begin_chances(self) -> FloatArray:
        """(cells, cohorts) probability that a request is of so many cohorts: 1 - (1 - h)^m.

        h: that it is of one, so that pi of all begin on a step on average.
        """
        of_one, cohorts = self.begin_chance[:, None], np.arange(self.returning.chances.shape[1])
        for _ in range(_ITERATIONS):
            chances = 1.0 - (1.0 - of_one) ** cohorts
            begun = (self.returning.chances * chances).sum(axis=1, keepdims=True)
            of_one = np.minimum(of_one * self.begin_chance[:, None] / begun, 1.0)
        return chances

    @cached_property
    def cohort_chances(self) -> FloatArray:
        """(cells, cohorts) probability that so many begin on a step; of brief requests more often."""
        chances = self.returning.chances.copy()
        chances *= (self.begin_chance / (chances * self.begin_chances).sum(axis=1))[:, None]
        chances[:, 0] = 1.0 - chances[:, 1:].sum(axis=1)
        return chances

    @cached_property
    def absent_share(self) -> FloatArray:
        """(I + H) / (D + I + H): of those that neither queue nor read, the others."""
        return self.absent_steps / np.maximum(self.decode_steps + self.absent_steps, _LEAST)

    @cached_property
    def absent_steps(self) -> FloatArray:
        """I + H."""
        return self.returning.away_steps + self.held_steps

    @cached_property
    def first_held_steps(self) -> FloatArray:
        """hold: steps that the first of several prompts is held."""
        begun = np.maximum(self.running - 1.0, 0.0) * self.begin_chance
        until_full = np.maximum(self.prompts_in_room - 1.0, 0.0) / np.maximum(begun, _LEAST)
        return np.minimum(self.most_held_steps, until_full)

    @cached_property
    def joining_chance(self) -> FloatArray:
        """1 - (1 - pi)^hold: probability that another request's prompt comes meanwhile."""
        return np.asarray(1.0 - np.maximum(1.0 - self.begin_chance, 0.0) ** self.first_held_steps)

    @cached_property
    def joining(self) -> FloatArray:
        """J."""
        return np.maximum(self.running - 1.0, 0.0) * self.joining_chance

    @cached_property
    def held_steps(self) -> FloatArray:
        """H."""
        return self.first_held_steps * (1.0 + self.joining / 2.0) / (1.0 + self.joining)


def request_cycle(
    setting: Setting, traffic: Traffic, step_of: StepOf, asked: Requests, seen: StepTimes
) -> RequestCycle:
    """The cycle of requests (N7). step_of: the step of those that run; seen: times of their steps."""
    engine, has_others = setting.runtime.engine, _has_others(asked.requests)
    back = _returning(setting, asked, seen)
    budget = step_tokens(
        setting.runtime, setting.latency.gpu, asked.requests, schedulers=setting.parallel.schedulers
    )
    none, apart = np.zeros(asked.requests.size), prompts_apart(setting)
    queue = Queue(asked.requests, budget, budget, read_steps=none, queued_steps=none)
    if not apart:
        whole = engine is not None and engine.whole_prompts
        queue = in_queue(
            asked, away_steps=back.away_steps, budget=budget, prompt_cv=traffic.prompt_cv, whole=whole
        )
    steps = asked.decode_steps + back.away_steps + queue.read_steps
    step_us, attention_us = step_of(queue.running)
    unheld = RequestCycle(
        **vars(asked),
        step_us=step_us,
        running=queue.running,
        request_attention_us=attention_us / queue.running,
        room_tokens=queue.room_tokens,
        full_tokens=queue.full_tokens,
        after_prefill_steps=np.minimum(asked.decode_steps, 1.0) if apart else none,
        returning=back,
        idle_trip_us=server_us(setting) * (1.0 - has_others),
        queued_steps=queue.queued_steps,
        most_held_steps=has_others * (0.0 if engine is None else float(engine.prompt_wait_steps)),
        begin_chance=np.minimum(1.0 / np.maximum(steps, _LEAST), 1.0),
    )
    return _held(unheld) if unheld.most_held_steps.any() else unheld


def server_us(setting: Setting) -> float:
    """The way of a request to the engine and of its tokens back."""
    engine = setting.runtime.engine
    return 0.0 if engine is None else engine.server_us.value


def _has_others(requests: FloatArray) -> FloatArray:
    """0 of a single request, while which is away no step runs; 1 of two and more."""
    return np.minimum(requests - 1.0, 1.0)


def _returning(setting: Setting, asked: Requests, seen: StepTimes) -> Returning:
    """When the next requests of clients come and begin; at once where there is one alone, or no server."""
    engine, has_others = setting.runtime.engine, _has_others(asked.requests)
    way_us = np.zeros(asked.requests.size)
    ahead = has_others * _steps_ahead(setting, is_drafting=asked.verified_tokens > 1.0)
    if engine is not None and engine.server_us.value:
        decoding = (asked.requests - 1.0) * asked.decode_steps / (asked.decode_steps + ahead + 1.0)
        sending_us = engine.server_us_per_request.value * decoding
        way_us = has_others * (engine.server_us.value + sending_us)
    return returning(
        way_us=way_us,
        ahead=ahead,
        alone_us=seen.alone_us,
        carrying_us=seen.carrying_us,
        ends=seen.ends * (engine is None or not engine.prompt_wait_steps),
        apart=prompts_apart(setting),
    )


def _held(unheld: RequestCycle) -> RequestCycle:
    """The cycle with its pi lessened by H: the fewer prompts begin, the longer the first one is held."""
    cycle = unheld
    for _ in range(_ITERATIONS):
        cycle = replace(cycle, begin_chance=1.0 / (1.0 / unheld.begin_chance + cycle.held_steps))
    return cycle


def _steps_ahead(setting: Setting, *, is_drafting: BoolArray) -> FloatArray:
    """Steps that an engine schedules before the running one ends; none where a drafter switches that off."""
    engine = setting.runtime.engine
    if engine is None:
        return np.zeros(1)
    is_synchronous = is_drafting & (setting.drafter_name in engine.synchronous_drafters)
    return np.where(is_synchronous, 0.0, engine.steps_ahead.value)
