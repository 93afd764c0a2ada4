"""Times to the first token: of a server that stays full, and of a load test whose clients begin at once.

    (N17)  ttft     = I mean of t over the steps on which its prompt does not begin + W mean of t + H t(0)
                      + mean of t over those until its prompt is read, in its turn, or of its passes alone
    (N19)  ttft of a load test whose b clients begin at once, m requests each:
           ((m - 1) again + start) / m + later
           again    = mean of (N17) over pi(x), with which prompts of such clients begin
           start    = server + time until one of b prompts is read, one after the other
           later    = load_test_us + load_test_steps mean t

`request_cycle` says what each letter is. In numbers: a request is away for I = 2 steps of 13 ms,
queues for none, is not held, and its prompt rides on steps of 22 ms: its first token comes after
2 x 13 + 22 = 48 ms.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from medusa_sim.arrays import FloatArray
from medusa_sim.serving.chance import normal_values
from medusa_sim.serving.mixed_steps import MixedStepLaw
from medusa_sim.serving.request_cycle import RequestCycle, server_us
from medusa_sim.serving.step_means import StepMeans, blocks, step_means

REQUESTS_A_CLIENT = 10
"""Of load tests: m of (N19). InferenceX's recipes ask for ten times as many prompts as are in flight."""
TESTED_CV = 0.2 / 0.9 / 12.0**0.5
"""Of their outputs: InferenceX draws them from 80 to 100 % of the length named, all alike."""
_PARTS = 2
"""Equally likely values of pi(x) that are kept: twelve move first tokens by at most 0.02 %."""
_ONE_STEP = (2.0 * np.pi) ** -0.5
"""Deviation, in steps, of a normal density that is 1 at its middle: all begin on that step."""


def first_token_us(law: MixedStepLaw, means: StepMeans) -> FloatArray:
    """(cells,) microseconds: (N17)."""
    cycle = law.cycle
    away_us = cycle.idle_trip_us + cycle.returning.away_steps * means.absent_us
    waits_us = away_us + cycle.queued_steps * means.step_us
    return np.asarray(waits_us + cycle.held_steps * law.decode_only_us + means.reading_us)


def load_test_first_token_us(law: MixedStepLaw, means: StepMeans) -> FloatArray:
    """(cells,) microseconds: (N19)."""
    again_us, engine = following_us(law), law.setting.runtime.engine
    test_us = again_us + (starting_us(law) - again_us) / REQUESTS_A_CLIENT
    if engine is None:
        return np.asarray(test_us)
    later_us = engine.load_test_us.value + engine.load_test_steps.value * means.step_us
    return np.asarray(test_us + later_us)


def following_us(law: MixedStepLaw) -> FloatArray:
    """(cells,) microseconds: again of (N19), of requests that follow others of their client."""
    laws = (
        replace(law, cycle=replace(law.cycle, begin_chance=chance))
        for chance in gathered_chances(law.cycle).T
    )
    first_us = [first_token_us(gathered, step_means(gathered)) for gathered in laws]
    return np.asarray(np.mean(first_us, axis=0))


def gathered_chances(cycle: RequestCycle) -> FloatArray:
    """(cells, parts) equally likely pi(x) at the steps x on which requests but a client's first begin.

    Clients that begin at once ask again at nearly the same time. Of requests of generation i (the first,
    which all begin at once, is 0) the prompts begin around step i / pi. Outputs of a coefficient of variation
    cv part them, and so does the reading of the first prompts:

        var_i = (b P / room)^2 / 12 + i (cv D)^2            variance of when they begin, in steps
        pi(x) = sum_i f_i(x)                                f_i normal of variance var_i around i / pi

    A published test ends before they are spread over the whole of 1 / pi: more than pi of them begin on the
    steps on which they do (N19).
    """
    number = np.arange(1, REQUESTS_A_CLIENT)
    reading = cycle.requests / cycle.prompts_in_room
    spread = np.sqrt(reading[:, None] ** 2 / 12.0 + number * (TESTED_CV * cycle.decode_steps[:, None]) ** 2)
    middle = number * cycle.steps[:, None]  # (cells, generations)
    begin = middle[..., None] + spread[..., None] * normal_values()
    around = np.hypot(spread, _ONE_STEP)[:, None, None, :]
    apart = (begin[..., None] - middle[:, None, None, :]) / around
    density = (np.exp(-(apart**2) / 2.0) * _ONE_STEP / around).sum(axis=-1)
    # the same prompts begin, of fewer requests: those that run
    density = density * (cycle.requests / cycle.running)[:, None, None]
    chances = np.sort(np.minimum(density, 1.0).reshape(middle.shape[0], -1), axis=1)
    return np.asarray(chances.reshape(middle.shape[0], _PARTS, -1).mean(axis=2))


def starting_us(law: MixedStepLaw) -> FloatArray:
    """(cells,) microseconds: start of (N19), of requests that begin at once on an idle server."""
    requests = law.cycle.requests
    read_us = [law.steps(block, requests[block]).reading_us for block in blocks(law)]
    return np.asarray(server_us(law.setting) + np.concatenate(read_us))
