"""Equal blocks of work on the SMs of a GPU, in waves, beside the memory traffic they share."""

from __future__ import annotations

import numpy as np

from medusa_sim.arrays import FloatArray, in_quadrature, root
from medusa_sim.gpus.fitted_attention import AttentionPath
from medusa_sim.gpus.fitted_experts import ExpertKernel
from medusa_sim.gpus.gpu import Gpu
from medusa_sim.gpus.kernels import ElementwiseKernel, StreamKernel
from medusa_sim.units import US_PER_S

_TINY = 1e-9
_LOST = 1e-18
"""Beside 1.0; smaller powers would end in numbers that are slow to compute with."""
_FAR_BEYOND = 1e3
"""A footprint so far beyond L2 that none of it is left there; keeps the power finite."""


def norm_max(first: FloatArray, second: FloatArray, norm: float) -> FloatArray:
    """(a^p + b^p)^(1/p), never below max(a, b); written on the ratio so that large values do not overflow."""
    larger, smaller = np.maximum(first, second), np.minimum(first, second)
    share = np.maximum(smaller / np.where(larger > 0.0, larger, 1.0), _LOST ** (1.0 / norm))
    smooth: FloatArray = larger * (1.0 + share**norm) ** (1.0 / norm)
    return smooth


def shared_waves(per_sm: FloatArray, contention: float, rounding: float) -> FloatArray:
    """Waves of so many blocks an SM: whole ones or shared out; shorter than one on a chip that is not full.

    Written without a choice between the two, which takes longer than either.
    """
    several = np.maximum(per_sm, 1.0)
    waves: FloatArray = rounding * np.ceil(several) + (1.0 - rounding - contention) * several
    return waves + contention * per_sm


def waves_us(
    load: FloatArray,
    resident: int,
    sharing: float,
    block_us: tuple[FloatArray | float, FloatArray],
    memory_us: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Time of `load` blocks an SM, `resident` of them at once, and the same without the memory traffic.

        t(a)  = fixed + work (1 + sharing (a - 1))          a blocks at once on an SM
        waves = floor(load / c) |t(c), memory c| + |t(a), memory a'|
                c = resident; a' = load mod c; a = ceil(a') blocks in the last wave

    block_us: (fixed, work) of one block that has its SM to itself. A busier SM does not slow the fixed part.
    memory_us: of one block an SM. On a grid it knows no batch, as the blocks' own time: what is left of the
    full shape are few products.
    """
    fixed_us, work_us = block_us
    full = np.floor(load / resident + _TINY)
    rest = load - full * resident
    last = rest > _TINY
    rest = last * rest
    full_us = fixed_us + work_us * (1.0 + sharing * (resident - 1))
    if resident > 1:
        busy = last * (1.0 + sharing * (np.maximum(np.ceil(rest - _TINY), 1.0) - 1.0))
        rest_us = last * fixed_us + busy * work_us
        rest_square, walk_us = rest_us * rest_us, full * full_us + rest_us
    else:
        rest_square, walk_us = last * (full_us * full_us), (full + last) * full_us
    body = full * in_quadrature(full_us, resident * memory_us)
    body += root(rest_square, (rest * rest) * (memory_us * memory_us))
    return body, walk_us


def balanced_us(
    load: FloatArray,
    resident: int,
    sharing: float,
    block_us: tuple[FloatArray | float, FloatArray],
    memory_us: FloatArray,
    turns: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Time of blocks of unequal length that start as places fall free, and the same without memory traffic.

        time = |turns t(min(max(a, 1), c)), memory a|         a = load, c = resident, t of `waves_us`

    turns: blocks that an SM takes one after another in each place, max(a / c, 1) where they are planned; else
    see `turns_unplanned`.

    Other arguments and results are those of `waves_us`. Blocks that are planned meet it where waves are whole
    (and with room to spare within the first of blocks that have an SM to themselves); in between their time
    rises evenly where that of equal blocks steps up. FlashMLA's plan of a batch gives each SM as many blocks
    of keys as the next, FlashAttention-3's splits the longer sequences and takes them by length.
    """
    fixed_us, work_us = block_us
    at_once = np.clip(load, 1.0, resident)
    walk_us = turns * (fixed_us + work_us * (1.0 + sharing * (at_once - 1.0)))
    return in_quadrature(walk_us, load * memory_us), walk_us


def turns_unplanned(turns: FloatArray, requests: FloatArray, spread: float) -> FloatArray:
    """How many blocks of mean length an SM takes one after another where nobody plans them.

        turns    = max(L(b), a - m + L(b (1 - 1 / a)) for a > 1)             a = `turns`, b = `requests`
        L(n)     = 1 + w (n - 1) / (n + 1),  m = (1 + w^2 / 3) / 2           w = `spread`

    Lengths of requests are even on 1 +- w; L(n) is that of the longest of n, on average, m what is left of a
    block when a place falls free. Blocks start in the order of requests, each where one has ended, so that
    the last to start ends beyond an even share. Draws of that lie within 15 %.
    """
    at_least = np.maximum(turns, 1.0)
    late = requests * (1.0 - 1.0 / at_least)
    left = (1.0 + spread**2 / 3.0) / 2.0
    longest, of_late = (1.0 + spread * (count - 1.0) / (count + 1.0) for count in (requests, late))
    return np.maximum(longest, at_least - left + of_late)


def byte_us(
    gpu: Gpu, kernel: AttentionPath | ElementwiseKernel | ExpertKernel, moved_bytes: FloatArray, *, cold: bool
) -> FloatArray:
    """Microseconds a byte, 1 / (bandwidth_fraction bandwidth), less where `moved_bytes` were left in L2.

    cold: everything comes from HBM.
    """
    hbm_us = US_PER_S / (kernel.bandwidth_fraction * gpu.bandwidth_bytes_per_s)
    return np.asarray(hbm_us) if cold else hbm_us * left_in_l2(kernel, moved_bytes / gpu.l2_bytes)


def left_in_l2(
    kernel: AttentionPath | ElementwiseKernel | ExpertKernel | StreamKernel, footprint: FloatArray
) -> FloatArray:
    """Share of its time from HBM that reading takes, of bytes that the launch before has left in L2.

        hit   = 1 / (1 + (footprint / l2_fill)^l2_sharpness)              share still read from L2
        share = 1 - hit + hit / l2_ratio

    footprint: bytes, over the size of L2.
    """
    hit = 1.0 / (1.0 + np.minimum(footprint / kernel.l2_fill, _FAR_BEYOND) ** kernel.l2_sharpness)
    return np.asarray(1.0 - hit + hit / kernel.l2_ratio)
