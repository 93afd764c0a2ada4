"""Every candidate count at every batch and length, each with the drafting that is best for it there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from medusa_sim.arrays import BoolArray, FloatArray, IntArray
from medusa_sim.latency.base import Bound, CodeArray
from medusa_sim.plan.draft_options import DraftOption
from medusa_sim.plan.speedup import band
from medusa_sim.specs.costs import Power
from medusa_sim.specs.gpu import Gpu
from medusa_sim.step.compose import Cost, overhead_halves
from medusa_sim.step.power import work_joules
from medusa_sim.step.step import StepTime, bound_codes
from medusa_sim.step.workload import PARTS, Part

Field = Callable[[StepTime], FloatArray]


@dataclass(frozen=True, kw_only=True, eq=False)
class ByCount:
    """Steps and tokens by count: B batches, S lengths, 1 + C counts, the first of which is plain decoding.

    counts: (1 + C,). chosen: (B, S, C) index of the best option of each count from 2 up; None where there is
    one option. decode, verify, drafting: as in `Surface`.
    """

    counts: IntArray
    options: tuple[DraftOption, ...]
    places: tuple[slice, ...]
    chosen: IntArray | None
    fits: BoolArray
    decode: StepTime
    verify: StepTime
    drafting: tuple[StepTime | None, ...]
    shape: tuple[int, int]

    @cached_property
    def tokens_per_step(self) -> FloatArray:
        """(B, S, 1 + C), or (1 + C,) where one option covers all."""
        return self._per_configuration(1.0, [option.tokens_per_step for option in self.options])

    @cached_property
    def tokens_band(self) -> tuple[FloatArray, FloatArray]:
        """(low, high) of the 80 % interval of the tokens per step, shaped as they are."""
        ends = []
        for index, option in enumerate(self.options):
            values = np.ones((2, option.candidates.size))
            for column in self._used(index):
                values[:, column] = option.band(int(option.candidates[column]))
            ends.append(values)
        low, high = (self._per_configuration(1.0, [values[end] for values in ends]) for end in (0, 1))
        return low, high

    @cached_property
    def drafts(self) -> IntArray:
        """Draft length (Medusa: heads run), shaped as the tokens per step; 0 for plain decoding."""
        depths = [np.full(option.candidates.size, float(option.depth)) for option in self.options]
        return self._per_configuration(0.0, depths).astype(np.int64)

    @cached_property
    def cost(self) -> Cost:
        """(B, S, C) verification and the drafting chosen, counts from 2 up."""
        names = [entry.name for entry in fields(Cost)]
        return self.verify.cost + Cost(**{name: self._drafting(_cost(name)) for name in names})

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

    def speedup_band(self, value: FloatArray) -> tuple[FloatArray, FloatArray]:
        """(low, high) of the 80 % interval around a speedup (of any baseline)."""
        few, many = self.tokens_band
        halves = overhead_halves(self.cost, self.decode.cost)
        slower, faster = (self._with_plain(np.zeros(()), half) for half in halves)
        return band(value, (few, self.tokens_per_step, many), (slower, faster))

    @cached_property
    def bound(self) -> CodeArray:
        """(B, S, 1 + C) `Bound` codes."""
        waits = {
            code: self.verify.waits_us[code] + self._drafting(_waits(code))
            for code in (Bound.MEMORY, Bound.COMPUTE, Bound.LATENCY)
        }
        codes = bound_codes(waits, self.cost)
        return self._with_plain(self.decode.bound, codes).astype(np.int8)

    @cached_property
    def source(self) -> CodeArray:
        """(B, S, 1 + C) worst `Source` code of each step."""
        drafted = self._drafting(lambda step: step.source.astype(np.float64))
        worst = np.maximum(self.verify.source, drafted)
        return self._with_plain(self.decode.source, worst).astype(np.int8)

    @cached_property
    def parts_us(self) -> dict[Part, FloatArray]:
        """Slices of the step, (B, S, 1 + C) each, in the order in which they stack; launch gaps apart."""
        found: dict[Part, FloatArray] = {}
        for part in PARTS:
            plain = self.decode.parts_us.get(part, np.zeros(()))
            verified = self.verify.parts_us.get(part, np.zeros(()))
            if part == "drafter":
                verified = verified + self._drafting(_drafter_us)
            elif part not in self.verify.parts_us and part not in self.decode.parts_us:
                continue
            found[part] = self._with_plain(plain, verified)
        return found

    @cached_property
    def launch_us(self) -> FloatArray:
        """(B, S, 1 + C) gaps between kernels."""
        drafted = self._drafting(lambda step: np.asarray(step.launch_us))
        return self._with_plain(np.asarray(self.decode.launch_us), self.verify.launch_us + drafted)

    def joules(self, gpu: Gpu, power: Power) -> FloatArray:
        """(B, S, 1 + C) joules above idle of one GPU in the whole step."""
        drafted = self._drafting(lambda step: work_joules(gpu, power, step.works))
        verified = work_joules(gpu, power, self.verify.works) + drafted
        return self._with_plain(work_joules(gpu, power, self.decode.works), verified)

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
        inner = np.full(self.counts.size - 1, numbers[0]) if self.chosen is None else numbers[self.chosen]
        return np.concatenate([np.zeros((*inner.shape[:-1], 1)), inner], axis=-1)

    def _used(self, index: int) -> IntArray:
        """Columns of an option that are the best anywhere."""
        if self.chosen is None:
            return np.arange(self.options[index].candidates.size)
        return np.flatnonzero((self.chosen[..., self.places[index]] == index).any(axis=(0, 1)))

    def _per_configuration(self, plain: float, values: Sequence[FloatArray]) -> FloatArray:
        """Numbers of each option's counts, laid out over the cells; `plain` for plain decoding."""
        if self.chosen is None:
            return np.concatenate([[plain], *values])
        table = np.full((len(self.options), self.counts.size), plain)
        for row, (numbers, place) in enumerate(zip(values, self.places, strict=True)):
            table[row, 1 + place.start : 1 + place.stop] = numbers
        inner = table[self.chosen, np.arange(1, self.counts.size)]
        return np.concatenate([np.full((*self.shape, 1), plain), inner], axis=-1)

    def _drafting(self, field: Field) -> FloatArray:
        """A field of the drafting chosen, (B, S, C) or smaller where it is the same everywhere."""
        values = [np.zeros(()) if step is None else field(step) for step in self.drafting]
        if self.chosen is None:
            return values[0] if values else np.zeros(())
        if all(value.size == 1 and value.item() == values[0].item() for value in values):
            return values[0]
        found = np.zeros((*self.shape, self.counts.size - 1))
        for index, (value, place) in enumerate(zip(values, self.places, strict=True)):
            np.copyto(found[..., place], value, where=self.chosen[..., place] == index)
        return found

    def _with_plain(self, plain: FloatArray | CodeArray, rest: FloatArray | CodeArray) -> FloatArray:
        found = np.empty((*self.shape, self.counts.size))
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
    places: tuple[slice, ...],
    step_us: tuple[FloatArray, ...],
    fits: tuple[BoolArray, ...],
    *,
    decode: StepTime,
    verify: StepTime,
    drafting: tuple[StepTime | None, ...],
    counts: IntArray,
    shape: tuple[int, int],
    plain_fits: BoolArray,
) -> ByCount:
    """For each count, pick the fastest option that fits in memory; if none fits, the fastest.

    step_us, fits: (B, S, its counts) of each option; a single option needs no times. Ties go to the first.
    """
    whole = (*shape, counts.size)
    chosen: IntArray | None = None
    room = np.zeros(whole, dtype=np.bool_)
    if len(options) == 1:
        room[..., places[0]] = fits[0]
    elif options:
        chosen = np.zeros(whole, dtype=np.int64)
        best = np.full(whole, -np.inf)
        for index, (option, place) in enumerate(zip(options, places, strict=True)):
            rate: FloatArray = option.tokens_per_step / step_us[index]
            if not fits[index].all():
                rate = np.where(fits[index], rate, rate * _NEVER_FIRST)
            better = rate > best[..., place] * (1.0 + _TIE)
            np.copyto(best[..., place], rate, where=better)
            np.copyto(chosen[..., place], index, where=better)
            room[..., place] |= fits[index]
    return ByCount(
        counts=np.concatenate([[1], counts]).astype(np.int64),
        options=options,
        places=places,
        chosen=chosen,
        fits=np.concatenate([np.broadcast_to(plain_fits, shape)[..., None], room], axis=-1),
        decode=decode,
        verify=verify,
        drafting=drafting,
        shape=shape,
    )


_TIE = 1e-12
"""Rates that differ by rounding alone are the same: the first option is taken."""
_NEVER_FIRST = 1e-9
"""Moves what does not fit behind whatever does, in the same order."""
