"""Watts of a step and what they cost a token (docs/method-engines.md, watts).

    (W2)  load  = idle + (J_byte bytes + J_cache cached + J_flop flops + sampling t_filter) / t
    (W3)  watts = load (1 + (load / limit)^4)^(-1/4)

of one GPU: bytes and flops of its kernels in a step of t seconds, bytes of grouped attention (cached) apart.
(W3) is a smooth minimum: GPUs lower their clocks before they reach the limit. It is fitted to mean watts of
servers, and takes the mean load of their steps, with prompts and without. The parameters are a GPU's
(`gpus/power.py`).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from medusa_sim.arrays import FloatArray, as_float
from medusa_sim.gpus.gpu import Gpu
from medusa_sim.gpus.power import Power
from medusa_sim.operators.attention import Attention
from medusa_sim.operators.operator import Operator, Size
from medusa_sim.serving.chance import log_normal
from medusa_sim.serving.server import ServedCells
from medusa_sim.serving.traffic import Traffic
from medusa_sim.step.drafter.base import Drafter
from medusa_sim.step.launch import Launch
from medusa_sim.step.prompt_kernels import prompt_launches
from medusa_sim.step.sampling import filter_us
from medusa_sim.step.setting import Setting
from medusa_sim.step.workload import prefill
from medusa_sim.units import US_PER_S


def launch_joules(
    gpu: Gpu, power: Power, launches: Iterable[Launch], *, with_bytes: bool = True
) -> FloatArray:
    """Joules above idle of some kernels on one GPU; with_bytes: what they move counts too."""
    by_shape: dict[tuple[int, ...], FloatArray] = {}
    for launch in launches:
        operator, times = launch.operator, launch.count * launch.share
        one = operator.with_columns(batch=1.0) if isinstance(operator, Attention) else operator
        joules = times * joule_per_flop(gpu, power, operator.dtype) * one.flops
        if with_bytes:
            joules = joules + times * joule_per_byte(power, operator) * one.bytes
        if isinstance(operator, Attention):  # of each sequence: small arrays as long as can be
            joules = as_float(operator.batch) * joules
        held = by_shape.get(joules.shape)
        by_shape[joules.shape] = joules if held is None else held + joules
    total = np.zeros(())
    for joules in sorted(by_shape.values(), key=lambda array: array.size):
        total = total + joules
    return total


def joule_per_byte(power: Power, operator: Operator) -> float:
    """Of what an operator moves; measured of grouped attention apart."""
    is_grouped = isinstance(operator, Attention)
    return power.fit.joule_per_cache_byte if is_grouped else power.fit.joule_per_byte


def joule_per_flop(gpu: Gpu, power: Power, dtype: str) -> float:
    """Of arithmetic in a dtype: the same watts at the same share of its peak; as fitted where it has none."""
    peaks = gpu.peak_flops_per_s
    return power.fit.joule_per_flop * peaks[power.fit.dtype] / peaks.get(dtype, peaks[power.fit.dtype])


def requests_joules(
    power: Power, cells: ServedCells, traffic: Traffic, decode_steps: FloatArray, step_joules: FloatArray
) -> FloatArray:
    """Joules above idle of the requests of servers from their prompts to their last tokens.

    They take so many decode_steps of step_joules, in each of which their logits are filtered. Attention's
    FLOPs grow with the square of a prompt, so prompts are averaged over their lengths.
    """
    setting, requests, drafter = cells.setting, as_float(cells.requests), cells.drafter
    mean_tokens = as_float(traffic.prompt_tokens if cells.prompt_tokens is None else cells.prompt_tokens)
    lengths = mean_tokens[..., None] * log_normal(np.full(1, traffic.prompt_cv))[0]
    cached = as_float(cells.cached_tokens)[..., None]

    def reading(reader: Drafter | None) -> FloatArray:
        return np.asarray(prompt_joules(power, setting, lengths, reader, cached).mean(axis=-1))

    plain = reading(None)
    drafting = plain if drafter is None else reading(drafter)
    prompts = requests * np.where(np.asarray(cells.candidates) > 1, drafting, plain)
    rows = requests * np.asarray(setting.verified.mean_tokens(cells.candidates))
    return np.asarray(prompts + decode_steps * (step_joules + sampling_joules(power, setting, rows)))


def prompt_joules(
    power: Power,
    setting: Setting,
    prompt_tokens: Size,
    drafter: Drafter | None = None,
    cached_tokens: Size = 0,
) -> FloatArray:
    """Joules above idle of a prompt on one GPU: its FLOPs alone, since it shares the weights of a step.

    drafter: what reads it, too. cached_tokens: of a prefix before it, to which it attends. Of as many at once
    as there are GPUs that attend to their own, so that each of them has one.
    """
    at_once = setting.parallel.schedulers
    launches = prompt_launches(setting, drafter, prefill(at_once, prompt_tokens, cached_tokens))
    return launch_joules(setting.latency.gpu, power, launches, with_bytes=False) / at_once


def sampling_joules(power: Power, setting: Setting, rows: Size) -> FloatArray:
    """Joules above idle of filtering so many rows of logits (N6), of which one of the GPUs has them all."""
    engine, model = setting.runtime.engine, setting.model
    if engine is None:
        return np.zeros(())
    filtered_us = filter_us(
        engine, setting.latency.gpu, rows, model.filtered_vocab, top_k=model.samples_top_k
    )
    return np.asarray(power.fit.sampling_watts * filtered_us / US_PER_S / setting.parallel.tp)


def watts(power: Power, joules: FloatArray, time_us: FloatArray) -> FloatArray:
    """Mean watts of one GPU over steps that take so long and so many joules above idle."""
    load = load_watts(power.fit.idle_watts, joules / time_us * US_PER_S)
    return under_limit(load, power.limit_watts)


def load_watts(idle_watts: float, above_watts: FloatArray) -> FloatArray:
    """(W2): what the work would draw without a limit."""
    return np.asarray(idle_watts + above_watts)


def under_limit(load: FloatArray, limit_watts: float) -> FloatArray:
    """(W3): never above the limit, and below it the lower the closer the load comes."""
    share = np.asarray(load / limit_watts)  # and then in place: a power of 4, and its root
    share *= share
    share *= share
    share += 1.0
    return np.asarray(load / np.sqrt(np.sqrt(share, out=share), out=share))
