"""Calibrated time of latent attention (MLA): absorbed decoding and verification, expanded prefill, whole
modules.

The kernel walks over keys by (A1) to (A4) of `latency.attention`, with one K/V head of latent_dim + rope_dim
values that all query rows share when absorbed, so that rows = q_len heads: q candidates of h heads are as
good as h q heads, but where each token has blocks of its own (U5).
Prefill is causal attention with as many K/V heads as heads, of 192 and 128 values. A module adds its
projections: with m = batch q_len, w and a the bytes of a projection's weights and activations and f its
FLOPs, rows padded to 64 and columns to 128 (`Projections` has the other names)

    linear   = |(w + a) / (bandwidth_fraction bandwidth), f / (peak_fraction peak)|                      (U3)
    f        = 2 x 64 x 128 k max(tiles, sms),  tiles = ceil(m / 64) ceil(n / 128)
    module   = kernel + launch_us + m (token_us + head_us heads) + sum of linear                         (U4)

with |a, b| = sqrt(a^2 + b^2). What stands between the projections is few bytes and many launches: norms,
rope, concatenation, quantisation.

Kernels were fitted to rows of one query; a verification step's band is wider by what its growth with queries
errs on public rows of other benchmarks, and its source is `extrapolated`.
"""

from __future__ import annotations

import numpy as np

from medusa_sim.arrays import FloatArray, as_float, in_quadrature
from medusa_sim.gpus.fitted_attention import LatentKernel, Projections
from medusa_sim.gpus.gpu import Gpu
from medusa_sim.latency.attention import AttentionRun
from medusa_sim.latency.bands import KernelParts, calibrated_time, less_certain
from medusa_sim.latency.operator_time import OperatorTime, Source
from medusa_sim.latency.roofline import roofline_time_us
from medusa_sim.operators.gemm import Gemm
from medusa_sim.operators.latent import LatentAttention
from medusa_sim.units import US_PER_S

_TILE_ROWS = 64.0
_TILE_COLUMNS = 128.0
_GROWTH_ERROR = 0.2
"""Mean error of T(q) / T(1) on public rows of FlashMLA, 2 to 128 queries; FlashAttention-3: 0.14."""


def latent_time(
    gpu: Gpu, kernel: LatentKernel, operator: LatentAttention, *, cold: bool = True
) -> OperatorTime:
    """Time of a kernel or module for every shape that `operator` holds (A1 to A4, U3, U4).

    cold: the cache comes from HBM; then the kernel is never below its roofline. low and high are the 80 %
    band of held-out residuals for the range of q_len x batch, wider for verification. Raises SpecError where
    the GPU has no peak for the operator's dtype.
    """
    alone = operator.kernel_alone
    parts = AttentionRun(gpu=gpu, operator=alone, cold=cold).by_kernel(kernel)
    time_us = np.maximum(parts.time_us, roofline_time_us(gpu, alone)) if cold else parts.time_us
    fixed_us, memory_us, work_us = parts.fixed_us, parts.memory_us, parts.work_us
    if kernel.projections is not None and operator.projections:
        linear = [_linear_us(gpu, kernel.projections, projection) for projection in operator.projections]
        memory_us = memory_us + sum(memory for memory, _ in linear)
        work_us = work_us + sum(work for _, work in linear)
        token_us = kernel.projections.token_us + kernel.projections.head_us * as_float(operator.heads)
        around_us = kernel.projections.launch_us + token_us * operator.size
        fixed_us = fixed_us + around_us
        time_us = time_us + around_us + sum(in_quadrature(*times) for times in linear)
    kernel_parts = KernelParts(time_us, fixed_us, memory_us, work_us)
    time = calibrated_time(gpu, [(kernel.fit, operator)], kernel_parts)
    if not operator.is_absorbed:
        return time
    several = as_float(operator.q_len) > 1.0
    return less_certain(time, _GROWTH_ERROR, Source.EXTRAPOLATED, several)


def _linear_us(gpu: Gpu, projections: Projections, linear: Gemm) -> tuple[FloatArray, FloatArray]:
    """Memory and arithmetic of one projection, us (U3)."""
    memory_us = linear.bytes / (projections.bandwidth_fraction * gpu.bandwidth_bytes_per_s) * US_PER_S
    tiles = np.ceil(as_float(linear.m) / _TILE_ROWS) * np.ceil(as_float(linear.n) / _TILE_COLUMNS)
    flops = 2.0 * _TILE_ROWS * _TILE_COLUMNS * as_float(linear.k) * np.maximum(tiles, gpu.sms)
    return memory_us, flops / (projections.peak_fraction * gpu.peak(linear.dtype)) * US_PER_S
