"""A latency model that computes each operator once, for searches that price the same kernels again."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from medusa_sim.latency.base import LatencyModel, OperatorTime
from medusa_sim.operators.operator import Operator, Size
from medusa_sim.specs.gpu import Gpu

_FEW = 64
"""Shapes below this many are computed as they are; above it, repeated token counts are computed once."""


class CachedLatency:
    """Answers of another latency model, kept for as long as this object lives.

    The depths of a drafter share their first passes, and Medusa heads differ in their number alone.
    A linear layer is computed once for each distinct m: batch x candidates repeats on a grid.
    """

    def __init__(self, latency: LatencyModel) -> None:
        self._latency = latency
        self._known: dict[Hashable, OperatorTime] = {}

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
        key = tuple(_hashable(entry) for entry in (*operator.key, *operator.axes))
        if key not in self._known:
            self._known[key] = self._fresh(operator)
        return self._known[key]

    def _fresh(self, operator: Operator) -> OperatorTime:
        """Many token counts of one weight matrix: each distinct one once."""
        tokens = np.asarray(operator.axes[0])
        if operator.kind != "gemm" or tokens.size <= _FEW or any(np.size(size) > 1 for size in operator.key):
            return self._latency.time(operator)
        distinct, index = np.unique(tokens, return_inverse=True)
        index = index.reshape(tokens.shape)
        once = self._latency.time(operator.with_columns(m=distinct))
        return OperatorTime(
            time_us=once.time_us[index],
            low_us=once.low_us[index],
            high_us=once.high_us[index],
            bound=np.broadcast_to(once.bound, distinct.shape)[index],
            source=np.broadcast_to(once.source, distinct.shape)[index],
            kernels=once.kernels,
        )


def cached(latency: LatencyModel) -> CachedLatency:
    """The model with a cache; itself where it has one, so that searches can share it."""
    return latency if isinstance(latency, CachedLatency) else CachedLatency(latency)


def _hashable(value: Size | str) -> Hashable:
    if isinstance(value, str | int | float):
        return value
    array = np.asarray(value)
    return array.shape, array.dtype.str, array.tobytes()
