"""Clients of a load test that begin at once: they ask again at nearly the same time.

Of requests of generation i (the first, which all begin at once, is 0) the prompts begin around step i / pi.
Outputs of a coefficient of variation cv part them, and so does the reading of the first prompts:

    var_i = (b P / room)^2 / 12 + i (cv D)^2            variance of when they begin, in steps
    pi(x) = sum_i f_i(x)                                f_i normal of variance var_i around i / pi

A published test ends before they are spread over the whole of 1 / pi: more than pi of them begin on the steps
on which they do (N19).
"""

from __future__ import annotations

import numpy as np

from medusa_sim.arrays import FloatArray
from medusa_sim.serving.chance import normal_values
from medusa_sim.serving.request_cycle import RequestCycle

REQUESTS_A_CLIENT = 10
"""Of load tests: m of (N19). InferenceX's recipes ask for ten times as many prompts as are in flight."""
TESTED_CV = 0.2 / 0.9 / 12.0**0.5
"""Of their outputs: InferenceX draws them from 80 to 100 % of the length named, all alike."""
_PARTS = 2
"""Equally likely values of pi(x) that are kept: twelve move first tokens by at most 0.02 %."""
_ONE_STEP = (2.0 * np.pi) ** -0.5
"""Deviation, in steps, of a normal density that is 1 at its middle: all begin on that step."""


def gathered_chances(cycle: RequestCycle) -> FloatArray:
    """(cells, parts) equally likely pi(x) at the steps x on which requests but a client's first begin."""
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
