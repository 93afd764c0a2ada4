"""What every latency model returns, and how a fitted kernel's parts become it.

The simplest is the ideal roofline: max(FLOPs / peak, bytes / bandwidth). A floor, not a prediction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from medusa_sim.arrays import BoolArray, FloatArray, IntArray, as_float
from medusa_sim.errors import CoverageError, SpecError
from medusa_sim.operators.operator import Operator
from medusa_sim.specs.fitted import UNSEEN_TOGETHER, Fit, Residual
from medusa_sim.specs.gpu import Gpu
from medusa_sim.specs.inheritance import TRANSFER_ERROR, widen_band
from medusa_sim.units import HALVES, US_PER_S

CodeArray: TypeAlias = npt.NDArray[np.int8]


class Bound(IntEnum):
    """What bounds the time of a kernel."""

    MEMORY = 0
    COMPUTE = 1
    LATENCY = 2
    """The fixed ramp of starting and draining kernels, or the gaps between them, take the largest share."""
    HOST = 3
    """The host cannot launch kernels as fast as the device finishes them (whole steps only)."""


class Source(IntEnum):
    """Where a time comes from, most trustworthy first. Merging takes the worst. Never defaulted."""

    MEASURED = 0
    INTERPOLATED = 1
    CALIBRATED = 2
    BORROWED = 3
    """Fitted to another GPU, or to another library's kernel, whose efficiencies are carried over
    (`specs.inheritance`)."""
    EXTRAPOLATED = 4
    """A fitted kernel beyond what its rows had: weights or K and V stored in another width, whose unpacking
    nobody measured; experts spread over several GPUs; several queries of latent attention."""
    ROOFLINE = 5


def labels(codes: CodeArray, of: type[Bound | Source]) -> npt.NDArray[np.str_]:
    """The names of codes in lower case."""
    return np.asarray([code.name.lower() for code in of])[codes]


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorTime:
    """Time of one launch of an operator, for every shape it holds; arrays broadcast against that shape."""

    time_us: FloatArray
    """Predicted time."""
    low_us: FloatArray
    """Lower end of the band that holds 80 % of the held-out residuals."""
    high_us: FloatArray
    """Upper end."""
    bound: CodeArray
    """`Bound` codes."""
    source: CodeArray
    """`Source` codes."""
    kernels: str = ""
    """Place of the fitted kernel, `set:key`, where it was chosen among several (`latency.choice.choose`)."""
    device_half: float = 0.0
    """Half-width, relative and within the band, by which all kernels of the device are off alike, so that no
    ratio of their times has it; what is left of such a kernel's band is that of all of them, too."""
    together: float = UNSEEN_TOGETHER
    """Of a borrowed kernel, by which part of its band all of its kind are off alike (`Fit.together`)."""

    def at(self, index: IntArray) -> OperatorTime:
        """The time of sizes along one axis, at an index into them."""
        shape = (self.time_us.size,)
        return replace(
            self,
            time_us=self.time_us[index],
            low_us=self.low_us[index],
            high_us=self.high_us[index],
            bound=np.broadcast_to(self.bound, shape)[index],
            source=np.broadcast_to(self.source, shape)[index],
        )

    def joined(self, other: OperatorTime) -> OperatorTime:
        """Times of one kernel along one axis, the other's behind them."""
        one, two = (each.at(np.arange(each.time_us.size)) for each in (self, other))
        return replace(
            self,
            time_us=np.concatenate([one.time_us, two.time_us]),
            low_us=np.concatenate([one.low_us, two.low_us]),
            high_us=np.concatenate([one.high_us, two.high_us]),
            bound=np.concatenate([one.bound, two.bound]),
            source=np.concatenate([one.source, two.source]),
        )

    def mapped(self, change: Callable[[FloatArray], FloatArray]) -> OperatorTime:
        """With the time and both ends of its band replaced by what `change` makes of them."""
        return replace(
            self, time_us=change(self.time_us), low_us=change(self.low_us), high_us=change(self.high_us)
        )


def calibrated_time(
    gpu: Gpu,
    fits: Sequence[tuple[Fit, Operator]],
    time_us: FloatArray,
    *,
    fixed_us: FloatArray | float,
    memory_us: FloatArray,
    work_us: FloatArray,
    work: Bound = Bound.COMPUTE,
    form: str = "",
) -> OperatorTime:
    """Time of a fitted kernel with what bounds it, its 80 % band and its source.

    fixed_us, memory_us, work_us: the kernel's parts. The fixed part binds where it is more than half of the
    time, else memory where it is not shorter than the work, else `work`; a borrowed kernel takes `Fit.slower`
    times as long.

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
        np.int8(work) * np.less(memory_us, work_us),
        np.int8(Bound.LATENCY) * np.greater(2.0 * np.asarray(fixed_us), time_us),
    )
    if slower != 1.0:
        time_us = time_us * slower
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


def filled(time: OperatorTime, other: OperatorTime, where: BoolArray) -> OperatorTime:
    """The time, with those of another where `where` holds; the shapes broadcast.

    Of two borrowed kernels the whole is off together with its kind as the more so of them is.
    """
    names = ("time_us", "low_us", "high_us", "bound", "source")
    chosen = {name: np.where(where, getattr(other, name), getattr(time, name)) for name in names}
    return replace(time, **chosen, together=max(time.together, other.together))


def known_time(latency: LatencyModel, operator: Operator) -> OperatorTime | None:
    """Time of one launch; None where the model has no kernel of it."""
    try:
        return latency.time(operator)
    except (SpecError, CoverageError):
        return None


def same_form(fitted: str, asked: str) -> bool:
    """Whether a kernel of one numeric format serves another as it is: 16-bit formats run alike."""
    return fitted == asked or {fitted, asked} <= set(HALVES)


@runtime_checkable
class LatencyModel(Protocol):
    """Anything that turns operators into times."""

    @property
    def name(self) -> str:
        """`roofline`, `calibrated` or `measured`."""
        ...

    @property
    def gpu(self) -> Gpu:
        """The device whose kernels are timed."""
        ...

    def time(self, operator: Operator) -> OperatorTime:
        """Time of one launch. Raises SpecError (no peak for the dtype) or CoverageError."""
        ...


def residual_band(residuals: tuple[Residual, ...], size: FloatArray) -> tuple[FloatArray, FloatArray]:
    """(low, high) factors on the predicted time for every size; beyond the last range its factors are kept.

    size: m of a GEMM, q_len x batch of an attention operator, m of an elementwise kernel.
    """
    edges = np.asarray([residual.size_max for residual in residuals])
    index = np.minimum(np.searchsorted(edges, size), len(edges) - 1)
    low = np.asarray([residual.low for residual in residuals])[index]
    high = np.asarray([residual.high for residual in residuals])[index]
    return low, high


def compute_time_us(gpu: Gpu, operator: Operator) -> FloatArray:
    """FLOPs / dense peak of the operator's dtype, us. Raises SpecError where the GPU lists no such peak."""
    return operator.flops * (US_PER_S / gpu.peak(operator.dtype))


def memory_time_us(gpu: Gpu, operator: Operator) -> FloatArray:
    """Bytes / datasheet bandwidth, us; of what is sent to other GPUs, at the link's, if that is longer."""
    memory_us: FloatArray = operator.bytes * (US_PER_S / gpu.bandwidth_bytes_per_s)
    sent = operator.link_bytes
    if sent is None:
        return memory_us
    return np.maximum(memory_us, sent / gpu.link_to(as_float(operator.peers)) * US_PER_S)


def roofline_time_us(gpu: Gpu, operator: Operator) -> FloatArray:
    """max(compute, memory), us: the time below which no kernel that reads from HBM can go."""
    return np.maximum(compute_time_us(gpu, operator), memory_time_us(gpu, operator))


def roofline_bound(gpu: Gpu, operator: Operator) -> CodeArray:
    """`Bound.MEMORY` where the bytes take as long as the FLOPs or longer, else `Bound.COMPUTE`."""
    memory_is_longer = memory_time_us(gpu, operator) >= compute_time_us(gpu, operator)
    return np.where(memory_is_longer, np.int8(Bound.MEMORY), np.int8(Bound.COMPUTE))


class RooflineLatency:
    """Every operator at the datasheet's limits. Low and high are the time itself: a bound has no error."""

    name = "roofline"

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu

    def time(self, operator: Operator) -> OperatorTime:
        """Roofline time of one launch, us. Raises SpecError where the GPU lists no peak for the dtype."""
        time_us = roofline_time_us(self.gpu, operator)
        return OperatorTime(
            time_us=time_us,
            low_us=time_us,
            high_us=time_us,
            bound=roofline_bound(self.gpu, operator),
            source=np.full(time_us.shape, Source.ROOFLINE, dtype=np.int8),
        )
