"""A kernel of another GPU, or one whose unpacking nobody measured, says so and has a wider band."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from medusa_sim.latency.base import Source
from medusa_sim.latency.calibrated import TIMES, CalibratedLatency
from medusa_sim.operators.operator import Attention, Gemm
from medusa_sim.operators.registry import OPERATORS
from medusa_sim.specs.fitted import Residual
from medusa_sim.specs.gpu import gpu_names, load_gpu
from medusa_sim.specs.inheritance import TRANSFER_ERROR, fitted_kernels, widened

LAYER = Gemm(name="up", m=np.array([1, 64, 512]), n=11008, k=4096, dtype="fp16")
DECODE = Attention(
    name="decode", kind="decode_attention", batch=4, q_len=1, kv_len=1024, heads=32, kv_heads=8,
    head_dim=128, dtype="fp16",
)  # fmt: skip


def half_width(low: float, high: float) -> float:
    return float(np.log(high / low)) / 2.0


@pytest.mark.parametrize("name", gpu_names())
def test_every_borrowed_band_is_wider_than_its_lenders(name: str) -> None:
    gpu = load_gpu(name)
    for kernels in gpu.kernels.values():
        for place, kernel in fitted_kernels(kernels).items():
            if kernel.fit.lender in ("", name):
                continue
            _, set_name, *entry = kernel.fit.inherited_from.split(":")
            section, _, key = place.partition(".")
            held = fitted_kernels(load_gpu(kernel.fit.lender).kernels[set_name])
            lent = held[f"{section}.{entry[0] if entry else key}"].fit.residuals
            for wide, narrow in zip(kernel.fit.residuals, lent, strict=True):
                assert half_width(wide.low, wide.high) > half_width(narrow.low, narrow.high), place
                assert wide.low * wide.high == pytest.approx(narrow.low * narrow.high)


def test_a_band_grows_by_its_factor_or_by_the_transfer_error_whichever_is_more() -> None:
    band = Residual(size_max=64.0, low=0.9, high=1.1)
    half = half_width(0.9, 1.1)
    by_factor, by_error = widened(band, 3.0, 0.05), widened(band, 1.0, 0.25)
    assert half_width(by_factor.low, by_factor.high) == pytest.approx(3.0 * half)
    assert half_width(by_error.low, by_error.high) == pytest.approx(np.hypot(half, 0.25))


@pytest.mark.parametrize(("gpu", "source"), [("h100-sxm", Source.CALIBRATED), ("h100-nvl", Source.BORROWED)])
def test_times_of_borrowed_kernels_say_so(gpu: str, source: Source) -> None:
    latency = CalibratedLatency(load_gpu(gpu), "torch")
    assert np.all(latency.time(LAYER).source == source)


def test_weights_and_caches_that_a_kernel_unpacks_are_extrapolated_and_less_certain() -> None:
    latency = CalibratedLatency(load_gpu("a40"), "torch")
    packed = latency.time(dataclasses.replace(LAYER, weight_dtype="int8"))
    dense = latency.time(LAYER)
    assert np.all(packed.source == Source.EXTRAPOLATED)
    wide = np.log(packed.high_us / packed.low_us) / 2.0
    narrow = np.log(dense.high_us / dense.low_us) / 2.0
    assert wide == pytest.approx(np.hypot(narrow, TRANSFER_ERROR))
    assert latency.time(dataclasses.replace(DECODE, kv_dtype="fp8")).source == Source.EXTRAPOLATED
    assert latency.time(dataclasses.replace(LAYER, weight_dtype="bf16")).source[0] == Source.CALIBRATED


def test_every_kind_of_operator_can_be_timed() -> None:
    assert TIMES.keys() == OPERATORS.keys()
