"""A latency model that computes each time once."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from medusa_sim.arrays import FloatArray, IntArray, as_float
from medusa_sim.gpus.gpu import Gpu
from medusa_sim.latency.model import LatencyModel
from medusa_sim.latency.operator_time import OperatorTime
from medusa_sim.operators.operator import Operator, Size

_LARGEST = 1 << 15
"""Entries of a time that is kept: a larger one comes once, and would only fill the memory."""
_MOST = 1 << 20
"""Entries of all that is kept, some 40 MB; beyond them it starts over."""

_STEPS = 64
"""Grids whose different sizes are kept."""


@dataclass(slots=True)
class Known:
    """Times that are known, of one model or of several of one GPU.

    shares_sizes: a line is asked for every size at once that another was asked for, since it will be, too:
    as in a search, where models and engines take turns.
    """

    shares_sizes: bool = False
    times: dict[Hashable, OperatorTime] = field(default_factory=dict)
    """By the kernel that answers, kind, dtypes and sizes."""
    lines: dict[Hashable, tuple[FloatArray, OperatorTime]] = field(default_factory=dict)
    """Rising sizes along the only axis of an operator, and their times; by the rest."""
    sizes: dict[str, FloatArray] = field(default_factory=dict)
    """Rising sizes that any line was asked for, by the name of its axis."""
    entries: int = 0

    def __reduce__(self) -> tuple[Any, ...]:
        """Empty in another process: keys name kernels by their places in this one's memory."""
        return Known, (self.shares_sizes,)

    def wanted(self, axis: str, sizes: FloatArray) -> FloatArray:
        """Rising sizes that a line is to be asked for where it does not know some of these."""
        if not self.shares_sizes:
            return sizes
        self.sizes[axis] = np.union1d(self.sizes.get(axis, sizes), sizes)
        return self.sizes[axis]

    def keep(self, key: Hashable, time: OperatorTime) -> None:
        """A time, unless it is large."""
        if time.time_us.size <= _LARGEST:
            self._make_room(time.time_us.size)
            self.times[key] = time

    def keep_line(self, key: Hashable, sizes: FloatArray, time: OperatorTime) -> None:
        """A line, in place of what was kept of it."""
        if key in self.lines:
            self.entries -= self.lines.pop(key)[0].size
        self._make_room(sizes.size)
        self.lines[key] = sizes, time

    def _make_room(self, entries: int) -> None:
        """For so many entries: beyond the most of all, what was kept goes."""
        self.entries += entries
        if self.entries > _MOST:
            self.entries = entries
            self.times.clear()
            self.lines.clear()


class CachedLatency:
    """A latency model that computes each time once.

    The depths of a drafter share their first passes, and Medusa heads differ in their number alone. An
    operator with one axis (a linear layer by its m, a norm by its rows) is computed once for each size along
    it: batch x candidates repeats, and an engine fills both up to few sizes.

    known: shared with other models of the same GPU, whose times are the same where `whose` says that the same
    kernel answers.
    """

    def __init__(
        self,
        latency: LatencyModel,
        known: Known | None = None,
        whose: Callable[[Operator], Hashable] | None = None,
    ) -> None:
        self.name: str = latency.name
        self.gpu: Gpu = latency.gpu
        self._latency, self._known, self._whose = latency, known or Known(), whose
        self._keys: dict[Hashable, Hashable] = {}
        self._distinct: dict[Hashable, tuple[FloatArray, IntArray]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        """Without its times, as `Known`."""
        return CachedLatency, (self._latency, self._known, self._whose)

    def time(self, operator: Operator) -> OperatorTime:
        """Time of one launch, as the model that is asked gives it."""
        off_axes, axes = operator.key, operator.axes
        is_line = len(axes) == 1 and not any(isinstance(axis, np.ndarray) and axis.ndim for axis in off_axes)
        if not is_line and sum(map(np.size, axes)) > _LARGEST:
            return self._latency.time(operator)
        off_key, place = tuple(map(_hashable, off_axes)), tuple(map(_hashable, axes))
        if off_key not in self._keys:
            self._keys[off_key] = (self._whose(operator) if self._whose else None, off_key)
        key = self._keys[off_key]
        time = self._known.times.get((key, place))
        if time is None:
            time = self._along(operator, key, place) if is_line else self._latency.time(operator)
            self._known.keep((key, place), time)
        return time

    def _along(self, operator: Operator, key: Hashable, place: Hashable) -> OperatorTime:
        """An operator with one axis; the model is asked for sizes along it that are not known."""
        sizes, index = self._distinct_sizes(operator.axes[0], place)
        timed, time = self._known.lines.get(key, (np.empty(0), None))
        places = np.searchsorted(timed, sizes)
        if time is None or (timed.take(places, mode="clip") != sizes).any():
            new = wanted = self._known.wanted(operator.AXES[0], sizes)
            if time is not None:
                new = wanted[timed.take(np.searchsorted(timed, wanted), mode="clip") != wanted]
            more = self._latency.time(operator.with_columns(**{operator.AXES[0]: new})).broadcast()
            time = more if time is None else time.joined(more)
            timed = np.concatenate([timed, new])
            order = np.argsort(timed, kind="stable")  # merges two rising runs
            timed, time = timed[order], time.every(lambda values: values[order])
            self._known.keep_line(key, timed, time)
            places = np.searchsorted(timed, sizes)
        at = places[index]
        return time.every(lambda values: values[at])

    def _distinct_sizes(self, axis: Size, place: Hashable) -> tuple[FloatArray, IntArray]:
        """(rising sizes, index into them in the axis' shape), once for all operators of a step."""
        if place not in self._distinct:
            if len(self._distinct) >= _STEPS:
                self._distinct.clear()
            sizes, index = np.unique(as_float(axis), return_inverse=True)
            self._distinct[place] = sizes, index.reshape(np.shape(axis))
        return self._distinct[place]


def cached(latency: LatencyModel) -> CachedLatency:
    """The model with a cache; itself where it has one, so that searches can share it."""
    return latency if isinstance(latency, CachedLatency) else CachedLatency(latency)


def _hashable(value: Size | str) -> Hashable:
    if isinstance(value, str | int | float):
        return value
    array = np.asarray(value)
    return array.shape, array.dtype.str, array.tobytes()
