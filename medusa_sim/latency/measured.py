"""A look-up of measured rows: exact where a shape was recorded, interpolated between, labelled outside.

`Profile` holds the rows of one device, arranged so that a recorded shape reads back its time exactly.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from medusa_sim import data
from medusa_sim.arrays import BoolArray, FloatArray
from medusa_sim.errors import CoverageError, SpecError
from medusa_sim.gpus.gpu import Gpu
from medusa_sim.latency.measurement import check_meta
from medusa_sim.latency.model import LatencyModel
from medusa_sim.latency.operator_time import OperatorTime, Source, replaced_where
from medusa_sim.latency.roofline import roofline_bound
from medusa_sim.operators.operator import Operator
from medusa_sim.operators.table import operators_of, read_rows

if TYPE_CHECKING:
    from pathlib import Path


Key: TypeAlias = tuple[str | float, ...]
OPERATOR_PROFILES = "profiles/operators"


class Line(NamedTuple):
    """Times along the innermost axis (m, or kv_len), ascending; times_us: (3, N) p10, median and p90."""

    at: FloatArray
    times_us: FloatArray


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
        profiles = ", ".join(profile_names(data_dir)) or "none"
        raise SpecError(
            f"no measured rows for {name!r} (profiles: {profiles}); measure the device with "
            "`medusa-sim measure`, or use --latency calibrated"
        )
    check_meta(paths[0].parent, [path.name for path in paths])
    return profile_of(name, paths)


def profile_of(name: str, paths: list[Path]) -> Profile:
    """A profile from files of operator rows. Shapes recorded more than once keep the median."""
    recorded: dict[Key, dict[tuple[float, ...], list[FloatArray]]] = {}
    for path in paths:
        frame = read_rows(path, need_time=True)
        spread = (column if column in frame else "time_us" for column in ("p10_us", "time_us", "p90_us"))
        times_us = frame[list(spread)].to_numpy(dtype=np.float64)
        for index, operator in operators_of(frame):
            keys, places = _rows(operator.key, index.size), _rows(operator.axes, index.size)
            for row, key, place in zip(index, keys, places, strict=True):
                recorded.setdefault(key, {}).setdefault(place, []).append(times_us[row])
    medians = {
        key: {place: np.median(times, axis=0) for place, times in points.items()}
        for key, points in recorded.items()
    }
    return Profile(name, {key: _nested(points) for key, points in medians.items()})


def _rows(entries: tuple[Any, ...], rows: int) -> list[tuple[Any, ...]]:
    arrays = [np.broadcast_to(np.asarray(entry), rows).tolist() for entry in entries]
    return list(zip(*arrays, strict=True))


def _nested(points: dict[tuple[float, ...], FloatArray]) -> Levels:
    if len(next(iter(points))) == 1:
        places = sorted(points)
        return Line(np.asarray(places)[:, 0], np.asarray([points[place] for place in places]).T)
    inner: dict[float, dict[tuple[float, ...], FloatArray]] = {}
    for place, times_us in points.items():
        inner.setdefault(place[0], {})[place[1:]] = times_us
    return {outer: _nested(inner[outer]) for outer in sorted(inner)}


def reading(levels: Levels, outer: tuple[float, ...], inner: FloatArray) -> tuple[FloatArray, BoolArray]:
    """(3, N) times at one point of the outer axes and N of the innermost, and which of them were recorded.

    Recorded points come back exactly; between two recorded values of an axis the time is linear, which
    is how bytes and FLOPs grow. Outside the recorded range, and between points that were not both
    recorded, it is NaN.
    """
    if isinstance(levels, Line):
        read = [np.interp(inner, levels.at, row, left=np.nan, right=np.nan) for row in levels.times_us]
        return np.asarray(read), np.isin(inner, levels.at)
    recorded = list(levels)
    place = bisect_left(recorded, outer[0])
    if place < len(recorded) and recorded[place] == outer[0]:
        return reading(levels[recorded[place]], outer[1:], inner)
    none = np.zeros(inner.shape, dtype=bool)
    if place in (0, len(recorded)):
        return np.full((3, *inner.shape), np.nan), none
    below, above = recorded[place - 1 : place + 1]
    share = (outer[0] - below) / (above - below)
    first, second = (reading(levels[near], outer[1:], inner)[0] for near in (below, above))
    return (1.0 - share) * first + share * second, none


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
        times_us, is_recorded = _read(self.profile, [array.ravel() for array in arrays], len(exact))
        low_us, time_us, high_us = times_us.reshape(3, *shape)
        missing = np.isnan(time_us)
        if missing.any() and self.fallback is None:
            first = int(np.argmax(missing.ravel()))
            raise CoverageError(self._uncovered(operator, [array.ravel()[first] for array in arrays]))
        source = np.where(is_recorded, np.int8(Source.MEASURED), np.int8(Source.INTERPOLATED))
        time = OperatorTime(
            time_us=time_us,
            low_us=low_us,
            high_us=high_us,
            bound=np.broadcast_to(roofline_bound(self.gpu, operator), shape).astype(np.int8),
            source=source.reshape(shape),
        )
        if not missing.any() or self.fallback is None:
            return time
        return replaced_where(time, self.fallback.time(operator), missing)

    def _uncovered(self, operator: Operator, values: list[Any]) -> str:
        """What was asked for and where it lies. values: of the key, then of the axes."""
        keys = len(operator.key)
        fixed = [name for name in operator.COLUMNS if name not in operator.AXES]
        sizes = [f"{name} {size}" for name, size in zip(fixed, values[keys - len(fixed) : keys], strict=True)]
        what = ", ".join(dict.fromkeys([operator.dtype, operator.stored_dtype, *sizes]))
        place = ", ".join(f"{name} {at:g}" for name, at in zip(operator.AXES, values[keys:], strict=True))
        recorded = _key(tuple(values[:keys])) in self.profile.levels
        near = "shapes of this kind" if recorded else "this kind of operator"
        return (
            f"{operator.kind} ({what}) at {place} lies outside what was measured on "
            f"{self.profile.name!r}, which does not cover {near}; measure it (`medusa-sim measure`) or allow "
            "the calibrated model there (--fallback calibrated)"
        )


def _key(entries: tuple[Any, ...]) -> tuple[str | float, ...]:
    return tuple(entry if isinstance(entry, str) else float(entry) for entry in entries)


def _read(profile: Profile, columns: list[npt.NDArray[Any]], keys: int) -> tuple[FloatArray, BoolArray]:
    """`reading` of every element: those that share key and outer axes are read together."""
    size = columns[0].size
    times_us, is_recorded = np.full((3, size), np.nan), np.zeros(size, dtype=bool)
    group = np.zeros(size, dtype=np.int64)
    for column in columns[:-1]:
        values, inverse = np.unique(column, return_inverse=True)
        group = group * values.size + inverse
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    for rows in np.split(order, starts[1:]) if size else ():
        entries = tuple(column[rows[0]].item() for column in columns[:-1])
        levels = profile.levels.get(_key(entries[:keys]))
        if levels is not None:
            at = columns[-1][rows].astype(np.float64)
            times_us[:, rows], is_recorded[rows] = reading(levels, entries[keys:], at)
    return times_us, is_recorded
