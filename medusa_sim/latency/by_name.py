"""The latency models by the names that users give them, and one that computes each operator once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt

from medusa_sim.arrays import FloatArray, IntArray, as_float
from medusa_sim.data import DataDir
from medusa_sim.errors import SpecError, UsageError, unknown_name
from medusa_sim.latency.base import CodeArray, LatencyModel, OperatorTime
from medusa_sim.operators.operator import Operator, Size
from medusa_sim.specs.gpu import Gpu

LatencyName = Literal["calibrated", "roofline", "measured"]
Fallback = Literal["refuse", "calibrated"]

LATENCIES: tuple[LatencyName, ...] = ("calibrated", "roofline", "measured")


def latency_model(
    gpu: Gpu,
    latency: LatencyName,
    kernels: str,
    *,
    cold: bool = True,
    fallback: Fallback = "refuse",
    data_dir: DataDir = None,
    library: str = "",
    engine: str = "",
    kernel: str = "",
    serves: str = "",
) -> LatencyModel:
    """The latency model of that name for one GPU.

    kernels: kernel set of `calibrated`. cold: operands come from HBM (always so in a step). fallback:
    what `measured` does beyond its profile: refuse, or ask the calibrated model. library, engine, kernel:
    whose fitted kernels (`latency.choice.choose`). serves: the engine whose attention verifies.
    Raises SpecError (no such kernel set or profile), UsageError (an unknown latency model).
    """
    if latency == "roofline":
        from medusa_sim.latency.base import RooflineLatency

        return RooflineLatency(gpu)
    if latency not in LATENCIES:
        raise UsageError(unknown_name("latency model", latency, LATENCIES))
    fitted: LatencyModel | None = None
    if latency == "calibrated" or fallback == "calibrated":
        from medusa_sim.latency.calibrated import CalibratedLatency

        fitted = CalibratedLatency(
            gpu, kernels, cold=cold, library=library, engine=engine, kernel=kernel, serves=serves
        )
        if latency == "calibrated":
            return fitted
    from medusa_sim.latency.measured import MeasuredLatency, load_profile

    return MeasuredLatency(gpu, load_profile(gpu.name, data_dir), fitted)


T = TypeVar("T", np.float64, np.int8)


_KEPT = 1 << 15
"""Entries of an answer that is kept as it is: a larger one comes once, and would only fill the memory."""
_LOOKED_UP = 1 << 12
_ALL = 1 << 20
"""Entries of everything that is kept, some 40 MB; beyond them it begins anew."""


class Answers:
    """Answers of latency models that are kept for as long as this object lives.

    The depths of a drafter share their first passes, and Medusa heads differ in their number alone. An
    operator with one axis (a linear layer by its m, a norm by its rows) is computed once for each size along
    it, in whatever grid it comes: batch x candidates repeats, and an engine fills both up to few sizes.
    """

    def __init__(self) -> None:
        self.known: dict[Hashable, OperatorTime] = {}
        self._lines: dict[Hashable, _Line] = {}
        self._distinct: dict[Hashable, tuple[FloatArray, IntArray]] = {}
        self._entries = 0

    def keep(self, key: Hashable, time: OperatorTime) -> None:
        """A whole answer, unless it is large."""
        if time.time_us.size <= _KEPT:
            self._count(time.time_us.size)
            self.known[key] = time

    def line(self, key: Hashable) -> _Line:
        """What is known of an operator along its only axis."""
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = _Line()
        return line

    def distinct(self, axis: Size, place: Hashable) -> tuple[FloatArray, IntArray]:
        """(rising sizes, index into them) of an axis. place: what tells axes apart."""
        if place not in self._distinct:
            sizes, index = np.unique(as_float(axis), return_inverse=True)
            self._count(index.size)
            self._distinct[place] = sizes, index.reshape(np.shape(axis))
        return self._distinct[place]

    def _count(self, entries: int) -> None:
        self._entries += entries
        if self._entries > _ALL:
            for kept in (self.known, self._lines, self._distinct):
                kept.clear()
            self._entries = 0


class CachedLatency:
    """A latency model that computes each answer once.

    answers: those of several models of one GPU, which may share them where `whose` says that the same
    kernel answers (None: its own).
    """

    def __init__(
        self,
        latency: LatencyModel,
        answers: Answers | None = None,
        whose: Callable[[Operator], Hashable] | None = None,
    ) -> None:
        self._latency = latency
        self._answers = Answers() if answers is None else answers
        self._whose = whose
        self._keys: dict[Hashable, Hashable] = {}

    @property
    def name(self) -> str:
        """Name of the model that is asked."""
        return self._latency.name

    @property
    def gpu(self) -> Gpu:
        """The device of the model that is asked."""
        return self._latency.gpu

    def time(self, operator: Operator) -> OperatorTime:
        """Time of one launch, as the model that is asked gives it."""
        sizes, axes = operator.key, operator.axes
        if sum(np.size(axis) for axis in axes) > _LOOKED_UP and not _is_line(sizes, axes):
            return self._latency.time(operator)  # too large to be kept, and slow to look up
        key, place = self._key(operator, sizes), tuple(map(_hashable, axes))
        time = self._answers.known.get((key, place))
        if time is None:
            time = (
                self._along(operator, key, place) if _is_line(sizes, place) else self._latency.time(operator)
            )
            self._answers.keep((key, place), time)
        return time

    def expect(self, operators: Iterable[Operator]) -> None:
        """What will be asked for: along an axis all sizes are computed with the first of them."""
        for operator in operators:
            sizes, axes = operator.key, operator.axes
            if _is_line(sizes, axes):
                distinct, _ = self._answers.distinct(axes[0], tuple(map(_hashable, axes)))
                try:
                    key = self._key(operator, sizes)
                except SpecError:  # told to who asks for it
                    continue
                self._answers.line(key).expected.append(distinct)

    def _key(self, operator: Operator, sizes: tuple[str | Size, ...]) -> Hashable:
        """Of an operator off its axes, with the kernel that answers."""
        own = tuple(map(_hashable, sizes))
        if self._whose is None:
            return own
        key = self._keys.get(own)
        if key is None:
            key = self._keys[own] = (self._whose(operator), own)
        return key

    def _along(self, operator: Operator, key: Hashable, place: Hashable) -> OperatorTime:
        """An operator with one axis, from what is known along it; only new sizes are computed."""
        (axis,) = operator.axes
        sizes, index = self._answers.distinct(axis, place)
        line = self._answers.line(key)
        new = line.missing(sizes)
        if new.size:
            if line.expected:
                new = line.missing(np.unique(np.concatenate([sizes, *line.expected])))
                line.expected.clear()
            line.add(new, self._latency.time(operator.with_columns(**{operator.AXES[0]: new})))
        return line.at(sizes, index)


def _is_line(sizes: tuple[str | Size, ...], axes: tuple[object, ...]) -> bool:
    """Whether an operator has one axis, and off it plain numbers."""
    return len(axes) == 1 and all(isinstance(size, _PLAIN) or np.ndim(size) == 0 for size in sizes)


_PLAIN = (str, int, float)


class _Line:
    """Times of an operator along its only axis: (N,) rising sizes, (3, N) times and (2, N) codes.

    expected: sizes that will be asked for.
    """

    def __init__(self) -> None:
        self.expected: list[FloatArray] = []
        self._sizes: FloatArray = np.empty(0)
        self._times: FloatArray = np.empty((3, 0))
        self._codes: CodeArray = np.empty((2, 0), dtype=np.int8)
        self._kernels = ""

    def missing(self, sizes: FloatArray) -> FloatArray:
        """Those of rising sizes that are not known."""
        if not self._sizes.size:
            return sizes
        place = np.minimum(np.searchsorted(self._sizes, sizes), self._sizes.size - 1)
        new: FloatArray = sizes[self._sizes[place] != sizes]
        return new

    def add(self, sizes: FloatArray, time: OperatorTime) -> None:
        """What was computed at sizes that were missing."""
        every = np.concatenate([self._sizes, sizes])
        is_rising = not self._sizes.size or sizes[0] > self._sizes[-1]
        order = slice(None) if is_rising else np.argsort(every, kind="stable")  # merges two rising runs
        self._sizes = every[order]
        self._times = _joined(self._times, sizes.shape, time.time_us, time.low_us, time.high_us)[:, order]
        self._codes = _joined(self._codes, sizes.shape, time.bound, time.source)[:, order]
        self._kernels = time.kernels

    def at(self, sizes: FloatArray, index: IntArray) -> OperatorTime:
        """Times at known sizes, laid out by an index into them."""
        place = np.searchsorted(self._sizes, sizes)[index]
        time_us, low_us, high_us = self._times.take(place, axis=1)
        bound, source = self._codes.take(place, axis=1)
        return OperatorTime(
            time_us=time_us, low_us=low_us, high_us=high_us, bound=bound, source=source, kernels=self._kernels
        )


def _joined(held: npt.NDArray[T], shape: tuple[int, ...], *rows: npt.NDArray[T]) -> npt.NDArray[T]:
    return np.concatenate(
        [held, [np.broadcast_to(np.ravel(row), shape) for row in rows]], axis=1, dtype=held.dtype
    )


def cached(latency: LatencyModel) -> CachedLatency:
    """The model with a cache; itself where it has one, so that searches can share it."""
    return latency if isinstance(latency, CachedLatency) else CachedLatency(latency)


def _hashable(value: Size | str) -> Hashable:
    if isinstance(value, _PLAIN):
        return value
    array = np.asarray(value)
    return array.shape, array.dtype.str, array.tobytes()
