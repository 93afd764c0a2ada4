"""One launch -> its time: by the latency model, and in an engine by what its own kernels take.

(N4)   argmax = sampling_us + rows V sampling_bytes / B   the likeliest token of each row of V logits
(N18)  time   = share x fitted kernel + added             of every other kernel; of experts at least that of
                                                          the roofline, where it is below the fitted kernel
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from medusa_sim.arrays import FloatArray
from medusa_sim.engines.engine import Engine
from medusa_sim.engines.runtime import Runtime
from medusa_sim.gpus.gpu import Gpu
from medusa_sim.latency.model import LatencyModel, known_time
from medusa_sim.latency.operator_time import Bound, OperatorTime, Source, replaced_where
from medusa_sim.latency.roofline import roofline_time_us
from medusa_sim.operators.elementwise import Elementwise
from medusa_sim.operators.experts import Experts
from medusa_sim.operators.gemm import Gemm
from medusa_sim.operators.operator import Size
from medusa_sim.step.launch import Launch, Part
from medusa_sim.units import US_PER_S

_SHARES: dict[Part, str] = {
    **dict.fromkeys(("qkv", "o_proj", "mlp"), "linear_share"),
    "attention": "attention_share",
    "exchange": "exchange_share",
}
"""Slices of a step whose kernels an engine's own take a share of, and the term that says how much."""


def kernel_time(latency: LatencyModel, runtime: Runtime, launch: Launch) -> OperatorTime:
    """One launch in its runtime: (N4) and (N18) in a serving engine, elsewhere the fitted kernel."""
    engine = runtime.engine
    if engine is None or runtime.local:
        return launch_time(latency, launch)
    if isinstance(launch.operator, Elementwise) and launch.operator.kind == "next_token":
        return _argmax_time(latency, engine, launch.operator)
    time, (share, added_us) = launch_time(latency, launch), _share_and_added(engine, launch)
    if share == 1.0 and not added_us:
        return time
    if share < 1.0 and isinstance(launch.operator, Experts):
        # an engine's kernels read weights no faster than memory
        floor_us = roofline_time_us(latency.gpu, launch.operator)
        return time.mapped(
            lambda kernel_us: np.maximum(share * kernel_us, np.minimum(kernel_us, floor_us)) + added_us
        )
    return time.mapped(lambda kernel_us: share * kernel_us + added_us)


def _share_and_added(engine: Engine, launch: Launch) -> tuple[float, float]:
    """(share of the fitted kernel, microseconds added to it) of (N18)."""
    operator = launch.operator
    share, added_us = launch.share * engine.kernels_share.value, 0.0
    if launch.part in _SHARES:
        share *= getattr(engine, _SHARES[launch.part]).value
    if isinstance(operator, Gemm) and operator.dtype == operator.stored_dtype == "fp8":
        added_us = engine.quantise_us.value
    if isinstance(operator, Experts):
        share *= engine.experts_share.value
        is_spread = np.any(np.asarray(operator.local_experts) < np.asarray(operator.experts))
        added_us = engine.expert_parallel_us_per_layer.value * float(is_spread)
        added_us += engine.experts_us_per_layer.value
    return share, added_us


def _argmax_time(latency: LatencyModel, engine: Engine, operator: Elementwise) -> OperatorTime:
    """(N4) with its band."""
    time_us = argmax_us(engine, latency.gpu, operator.m, int(np.max(operator.n)))
    band = engine.sampling_bytes_per_logit.band
    source = Source.ROOFLINE if latency.name == "roofline" else Source.CALIBRATED
    return OperatorTime(
        time_us=time_us,
        low_us=time_us / (1.0 + band),
        high_us=time_us * (1.0 + band),
        bound=np.asarray(Bound.MEMORY, dtype=np.int8),
        source=np.asarray(source, dtype=np.int8),
    )


def argmax_us(engine: Engine, gpu: Gpu, rows: Size, vocab: int) -> FloatArray:
    """(N4): logits to fp32 and the largest of each row."""
    read = np.asarray(rows, dtype=np.float64) * vocab * engine.sampling_bytes_per_logit.value
    return engine.sampling_us.value + read / gpu.bandwidth_bytes_per_s * US_PER_S


def launch_time(latency: LatencyModel, launch: Launch) -> OperatorTime:
    """One launch; verification of one token is the kernel of a plain step."""
    operator = launch.operator
    time = _widened(latency, launch, latency.time(operator))
    plain = operator.of_one_token
    if plain is None:
        return time
    is_one = np.equal(operator.sizes["q_len"], 1)
    if not is_one.any():
        return time
    return replaced_where(time, launch_time(latency, replace(launch, operator=plain)), is_one)


def _widened(latency: LatencyModel, launch: Launch, time: OperatorTime) -> OperatorTime:
    """The time with the spread of an uncertain input in its band, in addition to that of the kernel.

    Half-widths add in quadrature, in the logarithm: no end falls to 0.
    """
    if launch.ends is None:
        return time
    few_us, many_us = (latency.time(operator).time_us for operator in launch.ends)
    own_us = time.time_us
    below = np.hypot(np.log(own_us / time.low_us), np.log(np.maximum(own_us / few_us, 1.0)))
    above = np.hypot(np.log(time.high_us / own_us), np.log(np.maximum(many_us / own_us, 1.0)))
    return replace(time, low_us=own_us * np.exp(-below), high_us=own_us * np.exp(above))


def decomposed(latency: LatencyModel, launches: Iterable[Launch]) -> Iterator[Launch]:
    """The launches that the latency model has kernels of: instead of others what they are composed of."""
    for launch in launches:
        if launch.composed and known_time(latency, launch.operator) is None:
            yield from launch.composed
        else:
            yield launch
