"""What each way of drafting adds to a step, and which is best for each count.

The best is the one with the least time per token of those that fit in memory. Without a host to wait for it
is a line in the time of verification,

    (V + d) / tau          d what drafting adds, tau the tokens of a step

and the best option of a count is the lowest line. `Lines` are the lowest ones with where they cross, found
once for all lengths of a grid, which then only ask which crossings they are beyond.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from medusa_sim.arrays import FloatArray, IntArray
from medusa_sim.plan.draft_options import DraftOption
from medusa_sim.step.compose import Cost
from medusa_sim.step.step import StepTime

T = TypeVar("T", bound=np.generic)
Field = Callable[[StepTime], npt.NDArray[Any]]
Table: TypeAlias = npt.NDArray[Any] | list[npt.NDArray[Any]]
"""(O, B, S, 1 + C) numbers of O options, 1 along axes that none knows; a list where some know all axes."""
Chosen: TypeAlias = npt.NDArray[np.unsignedinteger[Any]]
"""Index of an option for every cell."""

_TIE = 1e-12
"""By which an option must beat the one before it: times that differ by rounding alone are the same."""
_ALWAYS_LAST = 1e9
"""Moves what does not fit behind whatever does, in the same order."""


class Room(NamedTuple):
    """Largest batches that fit.

    each: (O, S, 1 + C) with each option, NO_LIMIT off its counts. fewest, most: (S,) with any of them.
    """

    each: IntArray
    fewest: IntArray
    most: IntArray


class Lines(NamedTuple):
    """The options' lines and the lowest of them.

    slope, start: (O, 1 or B, 1, 1 + C), infinite off an option's counts. first: (B, 1, 1 + C) the lowest
    where verification takes no time. crossings: (time beyond which another is, its index less that before).
    """

    slope: FloatArray
    start: FloatArray
    first: Chosen
    crossings: tuple[tuple[FloatArray, Chosen], ...]

    def at(self, verify_us: FloatArray) -> Chosen:
        """(B, S, 1 + C) indices."""
        chosen = np.broadcast_to(self.first, verify_us.shape).copy()
        for beyond_us, change in self.crossings:
            chosen += (verify_us > beyond_us) * change
        return chosen

    def rows(self, rows: slice) -> Lines:
        """Of some of the batches."""
        crossings = tuple((of_rows(rows, beyond), of_rows(rows, change)) for beyond, change in self.crossings)
        start = self.start[:, rows] if self.start.shape[1] > 1 else self.start
        return Lines(self.slope, start, of_rows(rows, self.first), crossings)


class Drafted:
    """The drafting of each option, its fields laid out in tables that are made once.

    steps: None where a drafter costs nothing. places: of the counts of each option among 1 + C columns, of
    which the first is plain decoding's.
    """

    def __init__(
        self,
        options: tuple[DraftOption, ...],
        steps: Sequence[StepTime | None],
        places: tuple[slice, ...],
        columns: int,
    ) -> None:
        self.options, self.steps, self.places, self.columns = options, steps, places, columns
        self.kind: np.dtype[Any] = np.min_scalar_type(len(options))
        self._tables: dict[str, Table] = {}
        self._whole: Drafted | None = None
        self._rows = slice(None)
        self.lines: Lines | None = None

    def rows(self, rows: slice) -> Drafted:
        """Some of the batches, with `lines` where there are any."""
        part = Drafted(self.options, self.steps, self.places, self.columns)
        part._whole, part._rows = self, rows
        part.lines = None if self._lines is None else self._lines.rows(rows)
        return part

    def table(self, name: str, field: Field | Sequence[npt.NDArray[Any]]) -> Table:
        """Of each option what a field gives, 0 where a drafter costs nothing, or values; kept by a name."""
        if name not in self._tables:
            if self._whole is not None:
                table = self._whole.table(name, field)
                if isinstance(table, list):
                    self._tables[name] = [of_rows(self._rows, value) for value in table]
                else:
                    self._tables[name] = table[:, self._rows] if table.shape[1:2] > (1,) else table
            elif callable(field):
                self._tables[name] = self._laid_out(
                    [np.zeros(()) if step is None else field(step) for step in self.steps]
                )
            else:
                self._tables[name] = self._laid_out(field)
        return self._tables[name]

    def _laid_out(self, values: Sequence[npt.NDArray[Any]]) -> Table:
        """Arrays of each option, which broadcast with (B, S, its counts), as one table."""
        if not values or all((value == values[0].flat[0]).all() for value in values):
            first: npt.NDArray[Any] = values[0].flat[:1] if values else np.zeros(1)
            return first.reshape(1, 1, 1, 1)
        cubes = [value.reshape((1,) * (3 - value.ndim) + value.shape) for value in values]
        sizes = [max(cube.shape[axis] for cube in cubes) for axis in range(3)]
        if sizes[1] > 1 and sizes[2] > 1:
            return cubes
        columns = self.columns if sizes[1] == 1 else 1
        table = np.zeros((len(cubes), sizes[0], sizes[1], columns), dtype=values[0].dtype)
        for row, cube, place in zip(table, cubes, self.places, strict=True):
            own = cube[..., place] if cube.shape[2] == self.columns else cube  # of all columns, or its own
            row[..., place if columns > 1 else slice(None)] = own
        return table

    def best(self, verify: Cost, batch: IntArray, room: Room) -> Chosen:
        """(B, S, 1 + C) for each count the fastest that fits; if none fits, the fastest. Ties: the first."""
        shape = (batch.size, *room.each.shape[1:])
        if len(self.options) < 2:
            return np.zeros(shape, dtype=self.kind)
        # where memory decides: some options and counts fit and some do not
        b, s = np.nonzero((batch[:, None] > room.fewest) & (batch[:, None] <= room.most))
        late = np.where(batch[b, None] > room.each[:, s], _ALWAYS_LAST, 1.0)
        lines = self.lines
        if lines is None or verify.host_us.any() or verify.time_us.shape != shape:
            return self._one_by_one(verify, shape, (b, s), late)
        chosen = lines.at(verify.time_us)
        if b.size:
            starts = lines.start[:, b if lines.start.shape[1] > 1 else [0], 0]
            per_token = lines.slope[:, 0] * verify.time_us[b, s] + starts
            chosen[b, s] = (per_token * late).argmin(axis=0)
        return chosen

    def _one_by_one(
        self, verify: Cost, shape: tuple[int, ...], cells: tuple[IntArray, IntArray], late: FloatArray
    ) -> Chosen:
        """The best with times of any form; late: (O, cells, 1 + C) factors at some batches and lengths."""
        chosen, least = np.zeros(shape, dtype=self.kind), np.full(shape, np.inf)
        take = partial(of_rows, self._rows)
        for index, (step, place) in enumerate(zip(self.steps, self.places, strict=True)):
            held, of = least[..., place], chosen[..., place]
            time_us = verify.time_with(None if step is None else step.cost.each(take), place)
            per_token = np.multiply(time_us, self._weight(index), out=np.empty(held.shape))
            per_token[cells] *= late[index][:, place]
            np.maximum(of, (per_token < held) * self.kind.type(index), out=of)
            np.minimum(held, per_token, out=held)
        return chosen

    def _weight(self, index: int) -> FloatArray:
        """What the time of a step is multiplied with, by count of an option."""
        return np.asarray((1.0 + _TIE * index) / self.options[index].tokens_per_step)

    @cached_property
    def _lines(self) -> Lines | None:
        """None where a host waits, or drafting knows the length: times are then no such lines."""
        device, host, exposed = (self.table(name, cost_field(name)) for name in _TIMES)
        if isinstance(device, list) or isinstance(host, list) or isinstance(exposed, list) or host.any():
            return None
        added = device + exposed
        if len(self.options) < 2 or added.shape[2] > 1 or self._whole is not None:
            return None
        slope = np.full((len(self.options), 1, 1, self.columns), np.inf)
        slope[0, ..., 0] = 1.0  # plain decoding's column
        for index, place in enumerate(self.places):
            slope[index, ..., place] = self._weight(index)
        start = np.where(np.isfinite(slope), added, np.inf) * slope
        best = start.argmin(axis=0)[None]
        first = best[0].astype(self.kind)
        crossings: list[tuple[FloatArray, Chosen]] = []
        while True:
            own, lowest = np.take_along_axis(slope, best, axis=0), np.take_along_axis(start, best, axis=0)
            falls = slope < own
            if not falls.any():
                return Lines(slope, start, first, tuple(crossings))
            with np.errstate(invalid="ignore", divide="ignore"):
                beyond = np.where(falls, (start - lowest) / (own - slope), np.inf)
            other = beyond.argmin(axis=0)[None]
            crossed = np.take_along_axis(beyond, other, axis=0)
            other = np.where(np.isfinite(crossed), other, best)
            crossings.append((crossed[0], (other - best)[0].astype(self.kind)))
            best = other


_TIMES = ("device_us", "host_us", "exposed_us")


def cost_field(name: str) -> Field:
    """One of a step's cost (`COST_FIELDS`)."""

    def field(step: StepTime) -> FloatArray:
        values: FloatArray = getattr(step.cost, name)
        return values

    return field


def of_rows(rows: slice, values: npt.NDArray[T]) -> npt.NDArray[T]:
    """Those of the first of three axes; what has fewer, or is the same along it, stays as it is."""
    return values[rows] if values.ndim == 3 and values.shape[0] > 1 else values
