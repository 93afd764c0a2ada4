"""A fitted kernel's parts -> its time, with its 80 % band, its bound and its source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from medusa_sim.arrays import BoolArray, FloatArray
from medusa_sim.gpus.fitted import UNSEEN_TOGETHER, Fit, Residual
from medusa_sim.gpus.gpu import Gpu
from medusa_sim.gpus.inheritance import TRANSFER_ERROR, widen_band
from medusa_sim.latency.operator_time import Bound, OperatorTime, Source
from medusa_sim.operators.operator import Operator
from medusa_sim.units import HALVES


class KernelParts(NamedTuple):
    """Microseconds of a fitted kernel: the whole, and the parts that decide what bounds it."""

    time_us: FloatArray
    fixed_us: FloatArray | float
    """Start, and what does not depend on size."""
    memory_us: FloatArray
    work_us: FloatArray
    """Arithmetic, or what else the SMs walk through."""


def calibrated_time(
    gpu: Gpu,
    fits: Sequence[tuple[Fit, Operator]],
    parts: KernelParts,
    *,
    work: Bound = Bound.COMPUTE,
    form: str = "",
) -> OperatorTime:
    """Time of a fitted kernel with what bounds it, its 80 % band and its source.

    The fixed part binds where it is more than half of the time, else memory where it is not shorter than the
    work, else `work`; a borrowed kernel takes `Fit.slower` times as long.

    fits: of the kernels that the time is made of, each with the operator that it times; their bands multiply,
    and the least trustworthy of their sources is the whole's. form: numeric format that the kernel was fitted
    in. A kernel that was fitted in another format, or without one unpacks, has a band as wide as one of
    another architecture's.
    """
    low: FloatArray | float = 1.0
    high: FloatArray | float = 1.0
    source = Source.CALIBRATED
    for fit, operator in fits:
        residuals = fit.residuals
        if fit.is_borrowed(gpu.name):
            source = max(source, Source.BORROWED)
        is_other_form = not same_form(form, operator.form) if form else operator.unpacks
        if is_other_form:
            source = Source.EXTRAPOLATED
            residuals = tuple(widen_band(residual, 1.0, TRANSFER_ERROR) for residual in residuals)
        fit_low, fit_high = residual_band(residuals, operator.size)
        low, high = low * fit_low, high * fit_high
    slower = max(fit.slower for fit, _ in fits)
    together = max((fit.together for fit, _ in fits if fit.is_borrowed(gpu.name)), default=UNSEEN_TOGETHER)
    bound = np.maximum(
        np.int8(work) * np.less(parts.memory_us, parts.work_us),
        np.int8(Bound.LATENCY) * np.greater(2.0 * np.asarray(parts.fixed_us), parts.time_us),
    )
    time_us = parts.time_us if slower == 1.0 else parts.time_us * slower
    return OperatorTime(
        time_us=time_us,
        low_us=time_us * low,
        high_us=time_us * high,
        bound=np.asarray(bound),
        source=np.broadcast_to(np.int8(source), np.shape(time_us)),
        together=together,
    )


def less_certain(
    time: OperatorTime, error: float, source: Source, where: BoolArray | bool = True
) -> OperatorTime:
    """The time with `error` added to its band's half-width in quadrature, in the logarithm, and that source.

    where: shapes that this holds for; the others stay as they are. A source that is worse already is kept.
    """
    at = np.broadcast_to(where, np.shape(time.time_us))
    if not at.any():
        return time
    centre = np.sqrt(time.low_us * time.high_us)
    half = np.hypot(0.5 * np.log(time.high_us / time.low_us), error)
    return replace(
        time,
        low_us=np.where(at, centre * np.exp(-half), time.low_us),
        high_us=np.where(at, centre * np.exp(half), time.high_us),
        source=np.where(at, np.maximum(time.source, np.int8(source)), time.source),
    )


def same_form(fitted: str, asked: str) -> bool:
    """Whether a kernel of one numeric format serves another as it is: 16-bit formats run alike."""
    return fitted == asked or {fitted, asked} <= set(HALVES)


def residual_band(residuals: tuple[Residual, ...], size: FloatArray) -> tuple[FloatArray, FloatArray]:
    """(low, high) factors on the predicted time for every size; beyond the last range its factors are kept.

    size: m of a GEMM, q_len x batch of an attention operator, m of an elementwise kernel.
    """
    edges = np.asarray([residual.size_max for residual in residuals])
    index = np.minimum(np.searchsorted(edges, size), len(edges) - 1)
    low = np.asarray([residual.low for residual in residuals])[index]
    high = np.asarray([residual.high for residual in residuals])[index]
    return low, high
