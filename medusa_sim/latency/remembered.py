"""A latency model that computes each operator once, for searches that price the same kernels again."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import fields

import numpy as np

from medusa_sim.latency.base import LatencyModel, OperatorTime
from medusa_sim.operators.operator import Gemm, Operator, Size

_FEW = 64
"""Shapes below this many are computed as they are; above it, repeated token counts are merged."""


class RememberedLatency:
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

    def time(self, operator: Operator) -> OperatorTime:
        """Time of one launch, as the model that is asked gives it."""
        key = (
            type(operator),
            *(_key(getattr(operator, each.name)) for each in fields(operator) if each.name != "name"),
        )
        if key not in self._known:
            self._known[key] = self._fresh(operator)
        return self._known[key]

    def _fresh(self, operator: Operator) -> OperatorTime:
        if not isinstance(operator, Gemm) or np.size(operator.n) > 1 or np.size(operator.k) > 1:
            return self._latency.time(operator)
        tokens = np.asarray(operator.m)
        if tokens.size <= _FEW:
            return self._latency.time(operator)
        distinct, index = np.unique(tokens, return_inverse=True)
        index = index.reshape(tokens.shape)
        once = self._latency.time(
            Gemm(
                name=operator.name,
                m=distinct,
                n=operator.n,
                k=operator.k,
                dtype=operator.dtype,
                weight_dtype=operator.weight_dtype,
            )
        )
        return OperatorTime(
            time_us=once.time_us[index],
            low_us=once.low_us[index],
            high_us=once.high_us[index],
            bound=np.broadcast_to(once.bound, distinct.shape)[index],
            source=np.broadcast_to(once.source, distinct.shape)[index],
        )


def remembered(latency: LatencyModel) -> RememberedLatency:
    """The model itself if it remembers already, so that who keeps one shares it between searches."""
    return latency if isinstance(latency, RememberedLatency) else RememberedLatency(latency)


def _key(value: Size | str | None) -> Hashable:
    if value is None or isinstance(value, str | int | float):
        return value
    array = np.asarray(value)
    return array.shape, array.dtype.str, array.tobytes()
