"""Every candidate count at every batch and length, each with the drafting that is best for it there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from medusa_sim.arrays import BoolArray, FloatArray, IntArray, in_quadrature
from medusa_sim.latency.base import Bound, CodeArray
from medusa_sim.operators.operator import Size
from medusa_sim.plan.draft_options import DraftOption
from medusa_sim.step.compose import COST_FIELDS, Cost, overhead_halves
from medusa_sim.step.step import StepTime, bound_codes
from medusa_sim.step.workload import PARTS, Part
from medusa_sim.units import US_PER_S

Field = Callable[[StepTime], FloatArray]
Table: TypeAlias = FloatArray | list[FloatArray]
"""(O, B, S, C) numbers of O options, 1 along axes on which none depends; a list where they fill all axes."""


class Drafted:
    """The drafting of each option, its fields laid out in tables that are made once.

    steps: None where a drafter costs nothing. places: of the counts of each option among C counts.
    """

    def __init__(self, steps: Sequence[StepTime | None], places: tuple[slice, ...], counts: int) -> None:
        self.steps, self.places, self.counts = steps, places, counts
        self._tables: dict[str, Table] = {}
        self._whole: Drafted | None = None
        self._rows = slice(None)

    def rows(self, rows: slice) -> Drafted:
        """Some of the batches."""
        found = Drafted(self.steps, self.places, self.counts)
        found._whole, found._rows = self, rows
        return found

    def table(self, name: str, field: Field) -> Table:
        """What `field` gives of each option, 0 where a drafter costs nothing; kept by its name."""
        if name not in self._tables:
            if self._whole is None:
                values = [np.zeros(()) if step is None else field(step) for step in self.steps]
                self._tables[name] = self.laid_out(values)
            else:
                table = self._whole.table(name, field)
                if isinstance(table, list):
                    self._tables[name] = [of_rows(self._rows, value) for value in table]
                else:
                    self._tables[name] = table[:, self._rows] if table.shape[1:2] > (1,) else table
        return self._tables[name]

    def laid_out(self, values: Sequence[FloatArray]) -> Table:
        """Arrays of each option, which broadcast with (B, S, its counts), as one table."""
        if len(values) < 2:
            return list(values)
        if all((value == values[0].flat[0]).all() for value in values):
            return values[0].flat[:1].reshape(1, 1, 1, 1)
        cubes = [value.reshape((1,) * (3 - value.ndim) + value.shape) for value in values]
        sizes = [max(cube.shape[axis] for cube in cubes) for axis in range(3)]
        if sizes[1] > 1 and sizes[2] > 1:
            return list(values)
        columns = self.counts if sizes[2] > 1 else 1
        table = np.zeros((len(cubes), sizes[0], sizes[1], columns))
        for row, cube, place in zip(table, cubes, self.places, strict=True):
            row[..., place if columns > 1 else slice(None)] = cube
        return table


def of_rows(rows: slice, values: FloatArray) -> FloatArray:
    """Those of the first of three axes; what has fewer, or is the same along it, stays as it is."""
    return values[rows] if values.ndim == 3 and values.shape[0] > 1 else values


@dataclass(frozen=True, kw_only=True, eq=False)
class ByCount:
    """Steps and tokens by count: B batches, S lengths, 1 + C counts, the first of which is plain decoding.

    counts: (1 + C,). chosen: (B, S, C) index of the best option of each count from 2 up; None where there is
    one option. decode, verify, drafting: as in `Surface`.
    """

    counts: IntArray
    options: tuple[DraftOption, ...]
    chosen: npt.NDArray[np.unsignedinteger[Any]] | None
    fits: BoolArray
    decode: StepTime
    verify: StepTime
    drafted: Drafted
    shape: tuple[int, int]

    @cached_property
    def tokens_per_step(self) -> FloatArray:
        """(B, S, 1 + C), or (1 + C,) where one option covers all."""
        return self._per_configuration(1.0, [option.tokens_per_step for option in self.options])

    @cached_property
    def token_halves(self) -> tuple[FloatArray, FloatArray]:
        """(fewer, more) half-widths of the 80 % interval of the tokens per step, on the logarithm."""
        fewer, more = (
            zip(*(option.halves for option in self.options), strict=True) if self.options else ((), ())
        )
        return self._per_configuration(0.0, fewer), self._per_configuration(0.0, more)

    @cached_property
    def drafts(self) -> IntArray:
        """Draft length (Medusa: heads run), shaped as the tokens per step; 0 for plain decoding."""
        depths = [np.full(option.candidates.size, float(option.depth)) for option in self.options]
        return self._per_configuration(0.0, depths).astype(np.int64)

    @cached_property
    def cost(self) -> Cost:
        """(B, S, C) verification and the drafting chosen, counts from 2 up."""
        return self.verify.cost + Cost(**{name: self._drafting(name, _cost(name)) for name in COST_FIELDS})

    @cached_property
    def decode_us(self) -> FloatArray:
        """(B, S, 1) the plain step."""
        return np.asarray(np.broadcast_to(self.decode.time_us, (*self.shape, 1)))

    @cached_property
    def step_us(self) -> FloatArray:
        """(B, S, 1 + C) the whole step; plain decoding first."""
        return self._with_plain(self.decode.time_us, self.cost.time_us)

    @cached_property
    def low_us(self) -> FloatArray:
        """(B, S, 1 + C) lower end of the 80 % band of the step."""
        return self._with_plain(self.decode.low_us, self.cost.low_us)

    @cached_property
    def high_us(self) -> FloatArray:
        """(B, S, 1 + C) upper end."""
        return self._with_plain(self.decode.high_us, self.cost.high_us)

    @cached_property
    def speedup(self) -> FloatArray:
        """(B, S, 1 + C) tokens per step over overhead at the same batch and length."""
        gain: FloatArray = self.tokens_per_step * self.decode_us / self.step_us
        return gain

    @cached_property
    def band(self) -> tuple[FloatArray, FloatArray]:
        """(low, high) of the 80 % interval around the speedup."""
        return self.speedup_band(self.speedup)

    def speedup_band(self, value: FloatArray) -> tuple[FloatArray, FloatArray]:
        """(low, high) of the 80 % interval around a speedup of another baseline."""
        halves = overhead_halves(self.cost, self.decode.cost)
        slower, faster = (self._with_plain(np.zeros(()), half) for half in halves)
        low, high = band(value, self.token_halves, (slower, faster))
        if any((option.tokens_per_step == 1.0).any() for option in self.options):  # exact, as plain decoding
            exact = self.tokens_per_step == 1.0
            return np.where(exact, value, low), np.where(exact, value, high)
        return low, high

    @cached_property
    def bound(self) -> CodeArray:
        """(B, S, 1 + C) `Bound` codes."""
        waits = {
            code: self.verify.waits_us[code] + self._drafting(code.name, _waits(code))
            for code in (Bound.MEMORY, Bound.COMPUTE, Bound.LATENCY)
        }
        codes = bound_codes(waits, self.cost)
        return self._codes(self.decode.bound, codes)

    @cached_property
    def source(self) -> CodeArray:
        """(B, S, 1 + C) worst `Source` code of each step."""
        drafted = self._drafting("source", lambda step: step.source.astype(np.float64))
        worst = np.maximum(self.verify.source, drafted.astype(np.int8))
        return self._codes(self.decode.source, worst)

    @cached_property
    def parts_us(self) -> dict[Part, FloatArray]:
        """Slices of the step, (B, S, 1 + C) each, in the order in which they stack; launch gaps apart."""
        found: dict[Part, FloatArray] = {}
        for part in PARTS:
            plain = self.decode.parts_us.get(part, np.zeros(()))
            verified = self.verify.parts_us.get(part, np.zeros(()))
            if part == "drafter":
                verified = verified + self._drafting("drafter", _drafter_us)
            elif part not in self.verify.parts_us and part not in self.decode.parts_us:
                continue
            found[part] = self._with_plain(plain, verified)
        return found

    @cached_property
    def launch_us(self) -> FloatArray:
        """(B, S, 1 + C) gaps between kernels."""
        drafted = self._drafting("launch", lambda step: np.asarray(step.launch_us))
        return self._with_plain(np.asarray(self.decode.launch_us), self.verify.launch_us + drafted)

    def whole(self, plain: FloatArray, verify: FloatArray, name: str, drafting: Field) -> FloatArray:
        """(B, S, 1 + C) of what adds up over a step: of the plain one, of verification, and a drafting."""
        return self._with_plain(plain, verify + self._drafting(name, drafting))

    def option_at(self, at: int, s: int, column: int) -> DraftOption | None:
        """How a cell drafts; None for plain decoding (column 0)."""
        if column == 0:
            return None
        return self.options[0 if self.chosen is None else int(self.chosen[at, s, column - 1])]

    def by_option(self, values: Sequence[float]) -> FloatArray:
        """A number of each option, laid out over the cells; 0 for plain decoding."""
        numbers = np.asarray(values, dtype=np.float64)
        if not self.options:
            return np.zeros(1)
        inner = np.full(self.counts.size - 1, numbers[0])
        if self.chosen is not None and not (numbers == numbers[0]).all():
            inner = numbers.take(self.chosen)
        return np.concatenate([np.zeros((*inner.shape[:-1], 1)), inner], axis=-1)

    def _per_configuration(self, plain: float, values: Sequence[FloatArray]) -> FloatArray:
        """Numbers of each option's counts, laid out over the cells; `plain` for plain decoding."""
        if self.chosen is None:
            return np.concatenate([[plain], *values])
        return self._with_plain(np.asarray(plain), self._of_chosen(self.drafted.laid_out(values)))

    def _drafting(self, name: str, field: Field) -> FloatArray:
        """A field of the drafting chosen, (B, S, C) or smaller where it is the same everywhere."""
        return self._of_chosen(self.drafted.table(name, field))

    def _of_chosen(self, table: Table) -> FloatArray:
        """The cells of the chosen options."""
        chosen = self.chosen
        if chosen is None:
            return table[0] if len(table) else np.zeros(())
        if isinstance(table, np.ndarray):
            if table.size == 1:
                return table.reshape(())
            axes = table.shape[1:]
            if axes not in self._cells:
                first = chosen * np.intp(table[0].size)
                self._cells[axes] = first + np.arange(table[0].size).reshape(axes)
            return np.asarray(table.take(self._cells[axes]))
        found = np.zeros((*self.shape, self.counts.size - 1))
        for index, (value, place) in enumerate(zip(table, self.drafted.places, strict=True)):
            np.copyto(found[..., place], value, where=chosen[..., place] == index)
        return found

    @cached_property
    def _cells(self) -> dict[tuple[int, ...], IntArray]:
        """(B, S, C) index of each cell in tables of such shapes."""
        return {}

    def _with_plain(self, plain: FloatArray, rest: FloatArray) -> FloatArray:
        found = np.empty((*self.shape, self.counts.size))
        found[..., :1] = plain
        found[..., 1:] = rest
        return found

    def _codes(self, plain: CodeArray, rest: CodeArray) -> CodeArray:
        found = np.empty((*self.shape, self.counts.size), dtype=np.int8)
        found[..., :1] = plain
        found[..., 1:] = rest
        return found


def _cost(name: str) -> Field:
    def field(step: StepTime) -> FloatArray:
        values: FloatArray = getattr(step.cost, name)
        return values

    return field


def _waits(code: Bound) -> Field:
    return lambda step: step.waits_us[code]


def _drafter_us(step: StepTime) -> FloatArray:
    return step.parts_us.get("drafter", np.zeros(()))


def best_by_count(
    options: tuple[DraftOption, ...],
    step_us: tuple[FloatArray, ...],
    fits: tuple[BoolArray, ...],
    *,
    decode: StepTime,
    verify: StepTime,
    drafted: Drafted,
    counts: IntArray,
    shape: tuple[int, int],
    plain_fits: BoolArray,
    some_fit: BoolArray,
) -> ByCount:
    """For each count, pick the fastest option that fits in memory; if none fits, the fastest.

    step_us, fits: (B, S, its counts) of each option; a single option needs no times. some_fit: (B, S) where
    memory decides, for some options and counts fit and some do not. Ties go to the first.
    """
    whole = (*shape, counts.size)
    chosen: npt.NDArray[np.unsignedinteger[Any]] | None = None
    room = np.zeros(whole, dtype=np.bool_)
    if len(options) == 1:
        room[..., drafted.places[0]] = fits[0]
    elif options:
        kind = np.min_scalar_type(len(options))
        chosen = np.zeros(whole, dtype=kind)
        best = np.zeros(whole)
        for index, (option, place) in enumerate(zip(options, drafted.places, strict=True)):
            rate = np.empty((*shape, option.candidates.size))
            np.divide(option.tokens_per_step * (1.0 - _TIE * index), step_us[index], out=rate)
            rate[some_fit] *= np.maximum(fits[index][some_fit], _NEVER_FIRST)
            room[..., place] |= fits[index]
            held, of = best[..., place], chosen[..., place]
            np.maximum(of, (rate > held) * kind.type(index), out=of)
            np.maximum(held, rate, out=held)
    return ByCount(
        counts=np.concatenate([[1], counts]).astype(np.int64),
        options=options,
        chosen=chosen,
        fits=np.concatenate([np.broadcast_to(plain_fits, shape)[..., None], room], axis=-1),
        decode=decode,
        verify=verify,
        drafted=drafted,
        shape=shape,
    )


_TIE = 1e-12
"""By which an option must beat the one before it: rates that differ by rounding alone are the same."""
_NEVER_FIRST = 1e-9
"""Moves what does not fit behind whatever does, in the same order."""


def band(
    value: FloatArray, tokens: tuple[FloatArray, FloatArray], overhead: tuple[FloatArray, FloatArray]
) -> tuple[FloatArray, FloatArray]:
    """(low, high) of a speedup, 80 %, from half-widths of tokens per step and of the overhead.

    tokens: (fewer, more), overhead: (slower, faster), both on the logarithm (`DraftOption.halves`,
    `step.compose.overhead_halves`). The two in quadrature.
    """
    low, high = (in_quadrature(*halves) for halves in zip(overhead, tokens, strict=True))
    return value * np.exp(-low), value * np.exp(high)


def tokens_per_s(batch: Size, tokens_per_step: FloatArray, step_us: FloatArray) -> FloatArray:
    """Tokens per second of the whole batch."""
    return np.asarray(batch) * tokens_per_step / step_us * US_PER_S
