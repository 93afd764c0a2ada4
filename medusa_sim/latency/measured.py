"""A look-up of measured rows: exact where a shape was recorded, interpolated between, labelled outside."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from medusa_sim.errors import CoverageError
from medusa_sim.latency.base import LatencyModel, OperatorTime, Source, filled
from medusa_sim.latency.profile import Profile, Reading, reading
from medusa_sim.latency.roofline import roofline_bound
from medusa_sim.operators.operator import Operator
from medusa_sim.specs.gpu import Gpu


class MeasuredLatency:
    """Times from a profile; outside its coverage from another model, or a CoverageError.

    fallback: the model that answers (and labels its answers) where nothing was recorded. None refuses.
    """

    name = "measured"

    def __init__(self, gpu: Gpu, profile: Profile, fallback: LatencyModel | None) -> None:
        self.gpu = gpu
        self.profile = profile
        self.fallback = fallback

    def time(self, operator: Operator) -> OperatorTime:
        """Time of one launch, us.

        Raises CoverageError for the first shape that was not recorded, unless there is another model.
        """
        exact = operator.key
        arrays = np.broadcast_arrays(*(np.asarray(entry) for entry in (*exact, *operator.axes)))
        shape = arrays[0].shape
        read = _read(self.profile, [array.ravel() for array in arrays], len(exact))
        missing = np.isnan(read.time_us).reshape(shape)
        if missing.any() and self.fallback is None:
            first = int(np.argmax(missing.ravel()))
            raise CoverageError(self._uncovered(operator, [array.ravel()[first] for array in arrays]))
        source = np.where(read.exact, np.int8(Source.MEASURED), np.int8(Source.INTERPOLATED))
        found = OperatorTime(
            time_us=read.time_us.reshape(shape),
            low_us=read.low_us.reshape(shape),
            high_us=read.high_us.reshape(shape),
            bound=np.broadcast_to(roofline_bound(self.gpu, operator), shape).astype(np.int8),
            source=source.reshape(shape).astype(np.int8),
        )
        if not missing.any() or self.fallback is None:
            return found
        return filled(found, self.fallback.time(operator), missing)

    def _uncovered(self, operator: Operator, values: list[Any]) -> str:
        """What was asked for and where it lies. values: of the key, then of the axes."""
        keys = len(operator.key)
        fixed = [name for name in operator.COLUMNS if name not in operator.AXES]
        sizes = [f"{name} {size}" for name, size in zip(fixed, values[keys - len(fixed) : keys], strict=True)]
        what = ", ".join(dict.fromkeys([operator.dtype, operator.stored_dtype, *sizes]))
        place = ", ".join(f"{name} {at}" for name, at in zip(operator.AXES, values[keys:], strict=True))
        recorded = _key(tuple(values[:keys])) in self.profile.levels
        near = "shapes of this kind" if recorded else "this kind of operator"
        return (
            f"{operator.kind} ({what}) at {place} lies outside what was measured on "
            f"{self.profile.name!r}, which does not cover {near}; measure it (`medusa-sim measure`) or allow "
            "the calibrated model there (--fallback calibrated)"
        )


def _key(entries: tuple[Any, ...]) -> tuple[str | float, ...]:
    return tuple(entry if isinstance(entry, str) else float(entry) for entry in entries)


def _read(profile: Profile, columns: list[npt.NDArray[Any]], keys: int) -> Reading:
    """One reading per element: elements that share key and outer axes are read together."""
    size = columns[0].size
    time_us, low_us, high_us = (np.full(size, np.nan) for _ in range(3))
    exact = np.zeros(size, dtype=bool)
    outer = [np.unique(column, return_inverse=True) for column in columns[:-1]]
    group = np.zeros(size, dtype=np.int64)
    for values, inverse in outer:
        group = group * values.size + inverse
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    for rows in np.split(order, starts[1:]) if size else ():
        entries = tuple(column[rows[0]].item() for column in columns[:-1])
        levels = profile.levels.get(_key(entries[:keys]))
        if levels is None:
            continue
        part = reading(levels, entries[keys:], columns[-1][rows].astype(np.float64))
        time_us[rows], low_us[rows], high_us[rows] = part.time_us, part.low_us, part.high_us
        exact[rows] = part.exact
    return Reading(time_us, low_us, high_us, exact)
