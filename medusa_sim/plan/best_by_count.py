"""Every candidate count at every batch and length, each with the drafting that is best for it there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from medusa_sim.arrays import BoolArray, FloatArray, IntArray, in_quadrature
from medusa_sim.latency.base import Bound, CodeArray
from medusa_sim.operators.operator import Size
from medusa_sim.plan.draft_options import DraftOption
from medusa_sim.plan.drafted import Chosen, Drafted, Field, Table, cost_field
from medusa_sim.step.compose import COST_FIELDS, Cost, overhead_halves
from medusa_sim.step.kernels import WAITS
from medusa_sim.step.step import StepTime, bound_codes
from medusa_sim.step.workload import PARTS, Part
from medusa_sim.units import US_PER_S

T = TypeVar("T", np.float64, np.int8)


@dataclass(frozen=True, kw_only=True, eq=False)
class ByCount:
    """Steps and tokens by count: B batches, S lengths, 1 + C counts, the first of which is plain decoding.

    counts: (1 + C,). chosen: (B, S, 1 + C) index of the best option of each count from 2 up, 0 for plain
    decoding. max_batch: (S, 1 + C) that fits with any option. decode, verify, drafting: as in `Surface`.
    edges: the same at the batches whose bands no larger batch falls below (`opened`), unless they are among
    these; edge_batches: which.
    """

    counts: IntArray
    options: tuple[DraftOption, ...]
    chosen: Chosen
    batch: IntArray
    max_batch: IntArray
    decode: StepTime
    verify: StepTime
    drafted: Drafted
    edge_batches: IntArray | None = None
    edges: ByCount | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        """(B, S, 1 + C)."""
        return self.batch.size, *self.max_batch.shape

    @cached_property
    def fits(self) -> BoolArray:
        """(B, S, 1 + C) whether any option fits in memory."""
        return np.asarray(self.batch[:, None, None] <= self.max_batch)

    @cached_property
    def tokens_per_step(self) -> FloatArray:
        """(B, S, 1 + C)."""
        return self._per_configuration("tokens", 1.0, [option.tokens_per_step for option in self.options])

    @cached_property
    def token_halves(self) -> tuple[FloatArray, FloatArray]:
        """(fewer, more) half-widths of the 80 % interval of the tokens per step, on the logarithm."""
        fewer, more = (
            zip(*(option.halves for option in self.options), strict=True) if self.options else ((), ())
        )
        return self._per_configuration("fewer", 0.0, fewer), self._per_configuration("more", 0.0, more)

    @cached_property
    def drafts(self) -> IntArray:
        """Draft length (Medusa: heads run), shaped as the tokens per step; 0 for plain decoding."""
        depths = [np.full(option.candidates.size, option.depth) for option in self.options]
        return self._per_configuration("drafts", 0, depths)

    @cached_property
    def cost(self) -> Cost:
        """Of the plain step, then of verification and the drafting chosen; broadcasts with (B, S, 1 + C)."""
        plain, verify = self.decode.cost, self.verify.cost
        return Cost(
            **{
                name: self.whole(getattr(plain, name), getattr(verify, name), name, cost_field(name))
                for name in COST_FIELDS
            }
        )

    @cached_property
    def decode_us(self) -> FloatArray:
        """(B, S, 1) the plain step."""
        return np.asarray(np.broadcast_to(self.decode.time_us, (*self.shape[:2], 1)))

    @cached_property
    def step_us(self) -> FloatArray:
        """(B, S, 1 + C) the whole step; plain decoding first."""
        return np.broadcast_to(self.cost.time_us, self.shape)

    @cached_property
    def low_us(self) -> FloatArray:
        """(B, S, 1 + C) lower end of the 80 % band of the step."""
        return np.asarray(self.step_us * np.exp(-self._step_halves[0]))

    @cached_property
    def high_us(self) -> FloatArray:
        """(B, S, 1 + C) upper end."""
        return np.asarray(self.step_us * np.exp(self._step_halves[1]))

    @cached_property
    def _step_halves(self) -> tuple[FloatArray, FloatArray]:
        """(faster, slower) half-widths of the 80 % band of the step, on the logarithm."""
        cost = self.cost
        faster, slower = np.log(cost.time_us / cost.low_us), np.log(cost.high_us / cost.time_us)
        at = (None, None) if self.edges is None else self.edges._step_halves
        return self._opened(faster, at[0]), self._opened(slower, at[1])

    def _opened(self, half: FloatArray, at_edges: FloatArray | None) -> FloatArray:
        if self.edge_batches is None:
            return half
        return opened(np.broadcast_to(half, self.shape), self.batch, self.edge_batches, at_edges)

    @cached_property
    def overhead(self) -> FloatArray:
        """(B, S, 1 + C) the step over the plain one at the same batch and length."""
        return self.step_us / self.decode_us

    @cached_property
    def speedup(self) -> FloatArray:
        """(B, S, 1 + C) tokens per step over overhead."""
        return self.tokens_per_step / self.overhead

    @cached_property
    def band(self) -> tuple[FloatArray, FloatArray]:
        """(low, high) of the 80 % interval around the speedup."""
        return self.speedup_band(self.speedup)

    def speedup_band(self, value: FloatArray) -> tuple[FloatArray, FloatArray]:
        """(low, high) of the 80 % interval around a speedup of another baseline."""
        low, high = band(value, self.token_halves, self._overhead_halves)
        if any((option.tokens_per_step == 1.0).any() for option in self.options):  # exact, as plain decoding
            exact = self.tokens_per_step == 1.0
            return np.where(exact, value, low), np.where(exact, value, high)
        return low, high

    @cached_property
    def _overhead_halves(self) -> tuple[FloatArray, FloatArray]:
        """(slower, faster) half-widths of the 80 % band of the overhead, on the logarithm."""
        slower, faster = overhead_halves(self.cost, self.decode.cost)
        at = (None, None) if self.edges is None else self.edges._overhead_halves
        slower, faster = self._opened(slower, at[0]), self._opened(faster, at[1])
        for half in (slower, faster):
            half[..., 0] = 0.0  # a plain step over itself is exact
        return slower, faster

    @cached_property
    def bound(self) -> CodeArray:
        """`Bound` codes; broadcasts with (B, S, 1 + C)."""
        plain, verify = self.decode.waits_us, self.verify.waits_us
        waits = {code: self.whole(plain[code], verify[code], code.name, _waits(code)) for code in WAITS}
        return bound_codes(waits, self.cost)

    @cached_property
    def source(self) -> CodeArray:
        """Worst `Source` code of each step; broadcasts with (B, S, 1 + C)."""
        drafted = self._drafting("source", lambda step: step.source)
        return self._with_plain(self.decode.source, np.maximum(self.verify.source, drafted))

    @cached_property
    def parts_us(self) -> dict[Part, FloatArray]:
        """Slices of the step, (B, S, 1 + C) each, in the order in which they stack; launch gaps apart."""
        parts: dict[Part, FloatArray] = {}
        for part in PARTS:
            plain = self.decode.parts_us.get(part, np.zeros(()))
            verified = self.verify.parts_us.get(part, np.zeros(()))
            drafted = self._drafting("drafter", _drafter_us) if part == "drafter" else np.zeros(())
            if part == "drafter" or part in self.verify.parts_us or part in self.decode.parts_us:
                parts[part] = np.broadcast_to(self._with_plain(plain, verified + drafted), self.shape)
        return parts

    @cached_property
    def launch_us(self) -> FloatArray:
        """(B, S, 1 + C) gaps between kernels."""
        drafted = self._drafting("launch", lambda step: np.asarray(step.launch_us))
        plain, verify = np.asarray(self.decode.launch_us), np.asarray(self.verify.launch_us)
        return np.broadcast_to(self._with_plain(plain, verify + drafted), self.shape)

    def whole(self, plain: FloatArray, verify: FloatArray, name: str, drafting: Field) -> FloatArray:
        """What adds up over a step: of the plain one, of verification, and a drafting.

        Broadcasts with (B, S, 1 + C).
        """
        drafted = self._drafting(name, drafting)  # made for this: added to in place where it fills the grid
        out = drafted if drafted.shape == self.shape else None
        return self._with_plain(plain, np.add(verify, drafted, out=out))

    def option_at(self, at: int, s: int, column: int) -> DraftOption | None:
        """How a cell drafts; None for plain decoding (column 0)."""
        if column == 0:
            return None
        return self.options[int(self.chosen[at, s, column])]

    def by_option(self, values: Sequence[float]) -> FloatArray:
        """A number of each option, laid out over the cells; 0 for plain decoding."""
        numbers = np.asarray(values, dtype=np.float64)
        if not numbers.any():
            return np.zeros(())
        taken = numbers.take(self.chosen, mode="clip")
        taken[..., 0] = 0.0
        return taken

    def _per_configuration(
        self, name: str, plain: float, values: Sequence[npt.NDArray[Any]]
    ) -> npt.NDArray[Any]:
        """(B, S, 1 + C) numbers of each option at its counts; `plain` for plain decoding."""
        values_of = self._of_chosen(self.drafted.table(name, values))
        if values_of.ndim == 0:
            values_of = np.full(self.counts.size, values_of)
        values_of[..., 0] = plain
        return values_of

    def _drafting(self, name: str, field: Field) -> npt.NDArray[Any]:
        """A field of the best drafting, (B, S, 1 + C) with a placeholder in column 0, or one number."""
        return self._of_chosen(self.drafted.table(name, field))

    def _of_chosen(self, table: Table) -> npt.NDArray[Any]:
        """The cells of the chosen options."""
        chosen = self.chosen
        if isinstance(table, np.ndarray):
            if table.size == 1:
                return table.reshape(())
            by_length = table.shape[2] > 1
            axes = (chosen.shape[0], *((chosen.shape[1], 1) if by_length else (1, chosen.shape[2])))
            if by_length not in self._cells:
                places = np.arange(np.prod(axes)).reshape(axes)
                self._cells[by_length] = cells = chosen.astype(np.intp)
                cells *= places.size
                cells += places
            whole = table if table.shape[1:] == axes else np.broadcast_to(table, (len(table), *axes))
            return whole.take(self._cells[by_length], mode="clip")
        picked = np.zeros(chosen.shape)
        for index, (value, place) in enumerate(zip(table, self.drafted.places, strict=True)):
            np.copyto(picked[..., place], value, where=chosen[..., place] == index)
        return picked

    @cached_property
    def _cells(self) -> dict[bool, IntArray]:
        """(B, S, 1 + C) index of each cell in tables that know the count, or (True) the length."""
        return {}

    def _with_plain(self, plain: npt.NDArray[T], drafted: npt.NDArray[T]) -> npt.NDArray[T]:
        """The plain step's in the first column of what was made for this; in the smallest shape."""
        if plain.size == drafted.size == 1 and plain.flat[0] == drafted.flat[0]:
            return plain.reshape(())
        if self.counts.size == 1:
            return plain
        shape = np.broadcast_shapes(plain.shape, drafted.shape, self.counts.shape)
        joined = drafted if drafted.shape == shape else np.broadcast_to(drafted, shape).copy()
        joined[..., :1] = plain
        return joined


def opened(
    half: FloatArray, batch: IntArray, edges: IntArray, at_edges: FloatArray | None = None
) -> FloatArray:
    """(B, ...) half-widths of a band, not below those at any of the rising `edges` that a batch lies beyond.

    at_edges: (E, ...); None: the edges are among the batches. What an engine adds was measured to so many
    requests; its share of a step falls beyond, and what is known about it does not grow.
    """
    if at_edges is None:
        at_edges = half[[int(np.flatnonzero(batch == edge)[0]) for edge in edges]]
    place = np.searchsorted(edges, batch, side="left") - 1
    least = np.maximum.accumulate(at_edges, axis=0)[np.maximum(place, 0)]
    is_beyond = (place >= 0).reshape(-1, *(1,) * (at_edges.ndim - 1))
    return np.where(is_beyond, np.maximum(half, least), half)


def _waits(code: Bound) -> Field:
    return lambda step: step.waits_us[code]


def _drafter_us(step: StepTime) -> FloatArray:
    return step.parts_us.get("drafter", np.zeros(()))


def band(
    value: FloatArray, tokens: tuple[FloatArray, FloatArray], overhead: tuple[FloatArray, FloatArray]
) -> tuple[FloatArray, FloatArray]:
    """(low, high) of a speedup, 80 %, from half-widths of tokens per step and of the overhead.

    tokens: (fewer, more), overhead: (slower, faster), both on the logarithm (`DraftOption.halves`,
    `step.compose.overhead_halves`). The two in quadrature.
    """
    low, high = (in_quadrature(*halves) for halves in zip(overhead, tokens, strict=True))
    return value / np.exp(low, out=low), value * np.exp(high, out=high)


def tokens_per_s(batch: Size, tokens_per_step: FloatArray, step_us: FloatArray) -> FloatArray:
    """Tokens per second of the whole batch."""
    return np.asarray(batch) * US_PER_S * tokens_per_step / step_us
