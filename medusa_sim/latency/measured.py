"""A look-up of measured rows: exact where a shape was recorded, interpolated between, labelled outside.

`Profile` holds the rows of one device, arranged so that a recorded shape reads back its time exactly.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from medusa_sim import data
from medusa_sim.arrays import FloatArray
from medusa_sim.errors import CoverageError, SpecError
from medusa_sim.latency.base import LatencyModel, OperatorTime, Source, filled, roofline_bound
from medusa_sim.operators.operator import Operator
from medusa_sim.operators.table import operators_of, read_rows
from medusa_sim.specs.gpu import Gpu
from medusa_sim.specs.measurement import check_meta

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd


Key: TypeAlias = tuple[str | float, ...]
OPERATOR_PROFILES = "profiles/operators"


@dataclass(frozen=True, slots=True)
class Line:
    """Times along the innermost axis (m, or kv_len), ascending, us; low and high are p10 and p90."""

    at: FloatArray
    time_us: FloatArray
    low_us: FloatArray
    high_us: FloatArray


Levels: TypeAlias = "dict[float, Levels] | Line"


@dataclass(frozen=True, slots=True)
class Profile:
    """Every recorded shape: by `Operator.key`, then by `Operator.axes` from outer to inner.

    name: the folder's name.
    """

    name: str
    levels: dict[Key, Levels]


def profile_names(data_dir: str | os.PathLike[str] | None = None) -> tuple[str, ...]:
    """Names of the recorded devices, the user's and the shipped ones."""
    folders = (root / OPERATOR_PROFILES for root in data.data_roots(data_dir))
    return tuple(sorted({path.name for folder in folders if folder.is_dir() for path in folder.iterdir()
                         if path.is_dir()}))  # fmt: skip


def load_profile(name: str, data_dir: str | os.PathLike[str] | None = None) -> Profile:
    """All rows of `profiles/operators/<name>/*.csv`.

    Raises SpecError where there is no such folder, DataError for malformed rows.
    """
    folder = data.find(OPERATOR_PROFILES, name, data_dir)
    paths = sorted(folder.glob("*.csv")) if folder is not None else []
    if not paths:
        known = ", ".join(profile_names(data_dir)) or "none"
        raise SpecError(
            f"no measured rows for {name!r} (profiles: {known}); measure the device with "
            "`medusa-sim measure`, or use --latency calibrated"
        )
    check_meta(paths[0].parent, [path.name for path in paths])
    return profile_of(name, paths)


def profile_of(name: str, paths: list[Path]) -> Profile:
    """A profile from files of operator rows. Shapes recorded more than once keep the median."""
    recorded: dict[tuple[Key, tuple[float, ...]], list[tuple[float, float, float]]] = {}
    for path in paths:
        frame = read_rows(path, need_time=True)
        times = _times(frame)
        for index, operator in operators_of(frame):
            keys = _rows(operator.key, index.size)
            places = _rows(operator.axes, index.size)
            for row, key, place in zip(index, keys, places, strict=True):
                recorded.setdefault((key, place), []).append(times[row])
    levels: dict[Key, dict[tuple[float, ...], tuple[float, float, float]]] = {}
    for (key, place), values in recorded.items():
        low, middle, high = np.median(np.asarray(values), axis=0)
        levels.setdefault(key, {})[place] = (float(low), float(middle), float(high))
    return Profile(name, {key: _nested(points) for key, points in levels.items()})


def _times(frame: pd.DataFrame) -> list[tuple[float, float, float]]:
    """(p10, median, p90) of every row; rows without a recorded spread have none."""
    median = frame["time_us"].to_numpy(dtype=np.float64)
    low, high = (
        frame[column].astype(float).to_numpy() if column in frame else median
        for column in ("p10_us", "p90_us")
    )
    return list(zip(low.tolist(), median.tolist(), high.tolist(), strict=True))


def _rows(entries: tuple[Any, ...], rows: int) -> list[tuple[Any, ...]]:
    arrays = [np.broadcast_to(np.asarray(entry), rows).tolist() for entry in entries]
    return list(zip(*arrays, strict=True))


def _nested(points: dict[tuple[float, ...], tuple[float, float, float]]) -> Levels:
    if len(next(iter(points))) == 1:
        ordered = sorted(points.items())
        low, middle, high = np.asarray([times for _, times in ordered]).T
        return Line(np.asarray([place[0] for place, _ in ordered]), middle, low, high)
    inner: dict[float, dict[tuple[float, ...], tuple[float, float, float]]] = {}
    for place, times in points.items():
        inner.setdefault(place[0], {})[place[1:]] = times
    return {outer: _nested(inner[outer]) for outer in sorted(inner)}


@dataclass(frozen=True, slots=True)
class Reading:
    """Times read from a profile; NaN where it covers nothing. exact: recorded rather than interpolated."""

    time_us: FloatArray
    low_us: FloatArray
    high_us: FloatArray
    exact: npt.NDArray[np.bool_]


def reading(levels: Levels, outer: tuple[float, ...], inner: FloatArray) -> Reading:
    """Times at one point of the outer axes and many of the innermost.

    Recorded points come back exactly; between two recorded values of an axis the time is linear, which
    is how bytes and FLOPs grow. Outside the recorded range, and between points that were not both
    recorded, there is nothing.
    """
    if isinstance(levels, Line):
        return _along(levels, inner)
    recorded = list(levels)
    place = bisect_left(recorded, outer[0])
    if place < len(recorded) and recorded[place] == outer[0]:
        return reading(levels[recorded[place]], outer[1:], inner)
    if place in (0, len(recorded)):
        nothing = np.full(inner.shape, np.nan)
        return Reading(nothing, nothing, nothing, np.zeros(inner.shape, dtype=bool))
    below, above = recorded[place - 1], recorded[place]
    share = (outer[0] - below) / (above - below)
    first = reading(levels[below], outer[1:], inner)
    second = reading(levels[above], outer[1:], inner)
    mixed = [(1.0 - share) * a + share * b for a, b in ((first.time_us, second.time_us),
             (first.low_us, second.low_us), (first.high_us, second.high_us))]  # fmt: skip
    return Reading(mixed[0], mixed[1], mixed[2], np.zeros(inner.shape, dtype=bool))


def _along(line: Line, at: FloatArray) -> Reading:
    def read(values: FloatArray) -> FloatArray:
        return np.interp(at, line.at, values, left=np.nan, right=np.nan)

    return Reading(read(line.time_us), read(line.low_us), read(line.high_us), np.isin(at, line.at))


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
        time = OperatorTime(
            time_us=read.time_us.reshape(shape),
            low_us=read.low_us.reshape(shape),
            high_us=read.high_us.reshape(shape),
            bound=np.broadcast_to(roofline_bound(self.gpu, operator), shape).astype(np.int8),
            source=source.reshape(shape).astype(np.int8),
        )
        if not missing.any() or self.fallback is None:
            return time
        return filled(time, self.fallback.time(operator), missing)

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
