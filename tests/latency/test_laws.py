"""What every fitted kernel of every card must do, whatever its law: one test over all kinds and cards."""

import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest

from medusa_sim.errors import SpecError
from medusa_sim.latency.base import roofline_time_us
from medusa_sim.latency.calibrated import CalibratedLatency
from medusa_sim.operators.kinds import KINDS, operator_of
from medusa_sim.operators.operator import Operator
from medusa_sim.specs.formats import format_of
from medusa_sim.specs.gpu import Gpu, gpu_names, load_gpu

POINTS = 48
SIZES: dict[str, tuple[float, ...]] = {
    "m": (1, 20_000), "n": (64, 30_000), "k": (64, 30_000),
    "batch": (1, 512), "q_len": (1, 128), "kv_len": (1, 60_000), "prefix": (1, 60_000), "window": (64, 4096),
    "tokens": (1, 8192), "hidden": (2048, 8192), "inter": (256, 8192), "message_bytes": (256, 1e9),
}  # fmt: skip
"""Ends of what is drawn, evenly in the logarithm."""
CHOICES: dict[str, tuple[float, ...]] = {
    "heads": (8, 32, 64, 128), "kv_heads": (1, 8), "head_dim": (64, 128), "experts": (128, 256), "topk": (8,),
    "ranks": (2, 4, 8), "nodes": (1,), "sms": (0,), "key_heads": (8,), "key_dim": (128,), "value_dim": (128,),
    "conv_width": (4,), "q_rank": (1536,), "index_heads": (64,), "nope_dim": (128,), "v_dim": (128,),
    "streams": (4,), "sites": (1,),
}  # fmt: skip
FORMS = ("fp16", "bf16", "fp32", "fp8", "fp8_block", "int4", "nvfp4", "mxfp4")


def drawn(kind: str, form: str, seed: int) -> Operator:
    """Random sizes of a kind that make sense together."""
    rng = np.random.default_rng(seed)
    made = next(each.operator for each in KINDS if kind in each.names)
    sizes: dict[str, np.ndarray] = {}
    for name in made.COLUMNS:
        if name in SIZES:
            low, high = SIZES[name]
            sizes[name] = np.floor(np.exp(rng.uniform(np.log(low), np.log(high + 1), POINTS)))
        elif name in CHOICES:
            sizes[name] = rng.choice(CHOICES[name], POINTS)
    if kind in ("decode_attention", "mla_decode"):
        sizes["q_len"] = np.ones(POINTS)
    if "kv_len" in sizes:
        sizes["kv_len"] += sizes["q_len"]
    if "local_experts" in made.COLUMNS:
        sizes["rows"] = sizes["tokens"] * sizes["topk"]
        sizes["local_experts"] = sizes["experts"]
        sizes["hit"] = np.minimum(sizes["rows"], sizes["experts"])
    stored = format_of(form)
    weight = {"weight_dtype": stored.weight_dtype} if "weight_dtype" in made.__dataclass_fields__ else {}
    return dataclasses.replace(operator_of(kind, stored.dtype, sizes), **weight)


def timed(gpu: Gpu, kernels: str) -> Iterator[tuple[CalibratedLatency, Operator]]:
    """Every operator that a kernel of the set serves."""
    model = CalibratedLatency(gpu, kernels)
    for kind in KINDS:
        if not kind.table(gpu.kernels[kernels]):
            continue
        for seed, (name, form) in enumerate((name, form) for name in kind.names for form in FORMS):
            operator = drawn(name, form, seed)
            try:
                model.time(operator)
            except SpecError:  # no kernel of that arithmetic
                continue
            yield model, operator


def fitted_sets() -> list[tuple[str, str]]:
    """Cards and sets with a kernel that was fitted to rows of their own."""
    return [
        (name, held)
        for name in gpu_names()
        for held, kernels in load_gpu(name).kernels.items()
        if any(not each.fit.inherited_from for kind in KINDS for each in kind.table(kernels).values())
    ]


def faster(gpu: Gpu) -> Gpu:
    """The same card with all of its rates doubled."""
    rates = {
        name: 2.0 * getattr(gpu, name)
        for name in ("bandwidth_bytes_per_s", "link_bandwidth_bytes_per_s", "wide_link_bandwidth_bytes_per_s")
        if getattr(gpu, name)
    }
    peaks = {name: 2.0 * peak for name, peak in gpu.peak_flops_per_s.items()}
    return dataclasses.replace(gpu, peak_flops_per_s=peaks, **rates)


@pytest.mark.parametrize(("name", "kernels"), fitted_sets())
def test_times_keep_the_limits_of_the_card(name, kernels):
    gpu = load_gpu(name)
    twice = CalibratedLatency(faster(gpu), kernels)
    hot = CalibratedLatency(gpu, kernels, cold=False)
    rng = np.random.default_rng(1)
    found = 0
    for model, operator in timed(gpu, kernels):
        cold = model.time(operator)
        told = f"{operator.kind} {operator.form}"
        assert np.isfinite(cold.time_us).all(), told
        assert (cold.low_us <= cold.time_us).all(), told
        assert (cold.time_us <= cold.high_us).all(), told
        assert (cold.time_us >= roofline_time_us(gpu, operator) * (1.0 - 1e-9)).all(), told
        assert (hot.time(operator).time_us <= cold.time_us * (1.0 + 1e-9)).all(), told
        quick = twice.time(operator).time_us
        assert (quick >= cold.time_us * (0.5 - 1e-9)).all(), told
        assert (quick <= cold.time_us * (1.0 + 1e-9)).all(), told
        point = int(rng.integers(POINTS))
        one = operator.with_columns(**{key: value[point] for key, value in operator.sizes.items()})
        assert float(model.time(one).time_us) == pytest.approx(float(cold.time_us[point]), rel=1e-9), told
        found += 1
    assert found
