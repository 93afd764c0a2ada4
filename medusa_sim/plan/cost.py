"""What tokens cost, in money and in energy (docs/method.md, cost).

    (W1)  $ per million tokens = 1e6 GPUs price / (3600 tokens/s)
    (W4)  joule per token      = GPUs watts / (tokens/s)

price: dollars per GPU-hour. watts: of one GPU (`step/power.py`). tokens/s: of all GPUs together, emitted
tokens alone.
"""

from __future__ import annotations

import numpy as np

from medusa_sim.arrays import FloatArray
from medusa_sim.plan.surface import Surface
from medusa_sim.step.power import served_joules, watts
from medusa_sim.step.step import processed_tokens

_S_PER_HOUR = 3600.0
_MILLION = 1e6


def usd_per_million_tokens(
    usd_per_gpu_hour: float | None, gpus: int, tokens_per_s: FloatArray | float
) -> FloatArray:
    """(W1), shaped as the rate; nan without a price."""
    price = np.nan if usd_per_gpu_hour is None else usd_per_gpu_hour
    return np.asarray(_MILLION * gpus * price / (_S_PER_HOUR * np.asarray(tokens_per_s)))


def joule_per_token(watts: FloatArray | float, tokens_per_s: FloatArray | float) -> FloatArray:
    """(W4), shaped as the two broadcast; watts: of all GPUs together."""
    return np.asarray(np.asarray(watts) / np.asarray(tokens_per_s))


def step_watts(surface: Surface) -> FloatArray:
    """(B, S, 1 + C) mean watts of all GPUs while such steps follow one another, plain decoding first.

    With the scenario's traffic the prompts that ride on the steps and the filtering of logits are counted,
    without it neither. nan (a 0-d array) where the GPU's power is not known, and for scope `block`.
    """
    scenario = surface.scenario
    power = scenario.gpu.power
    if power is None or scenario.scope == "block":
        return np.full((), np.nan)
    if scenario.traffic is None:
        return np.asarray(scenario.gpus * watts(power, surface.joules, surface.by_count.step_us))
    found, batch = surface.in_flight, surface.batch[:, None, None]
    rows = np.asarray(batch, dtype=np.float64) * processed_tokens(surface.setting, found.counts)
    more = served_joules(
        scenario.gpu, power, surface.setting, batch, rows, found.tokens_per_step, scenario.traffic
    )
    time_us = surface.served.tpot_us * found.tokens_per_step
    return np.asarray(scenario.gpus * watts(power, surface.joules + more, time_us))


def watts_at(surface: Surface, at: int, s: int, configuration: int) -> float | None:
    """Watts of all GPUs in one configuration of a search; None where the GPU's power is not known."""
    power = surface.scenario.gpu.power
    if power is None or surface.scenario.scope == "block":
        return None
    one = watts(
        power, np.asarray(surface.joules_at(at, s, configuration)), surface.step_us[at, s, configuration]
    )
    return surface.scenario.gpus * float(one)
