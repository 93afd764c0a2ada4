"""What a sweep says first: the best count per batch and length, the free budget, where it stops paying.

Beside an engine's answer stand its kernels alone, and beside kernels alone what an engine would give. The
limit of an engine is its own kernels, merged and padded as it runs them, without the time of its host: no
step of it is shorter, and the distance is what the engine takes of the gain. The runtime `cuda-graph` is no
such limit: it launches norms, rope and activation one by one with a gap before each, and an engine that
merges them is up to 12 % quicker at batch 1.

What a curve over counts shows: what is free, cliffs, near the best.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from medusa_sim.arrays import BoolArray, FloatArray, IntArray, among, distinct
from medusa_sim.plan import CANDIDATES_MAX, FREE_WITHIN, RUNS_CHAINS, RUNS_TREES
from medusa_sim.plan.break_even import BreakEven, break_even_batches
from medusa_sim.plan.quantities import gain_column, values
from medusa_sim.plan.scenario import Scenario
from medusa_sim.plan.surface import Surface, grid_surface, price
from medusa_sim.specs.runtime import load_runtime
from medusa_sim.step.memory import MemoryParts, drafter_bytes, memory_parts
from medusa_sim.step.workload import Grid

if TYPE_CHECKING:
    from medusa_sim.plan.capacity import Shortfall

LIMIT = RUNS_TREES
"""The runtime of kernels without an engine."""
CLIFF = 0.05
"""Rise of the step between two neighbouring counts that is called a cliff."""
CHEAPER = 0.01
"""A larger count is called cheaper where its step is at least this share shorter."""
NEAR_BEST = 0.01
"""Speedups within this share of the best are as good: the model is not that exact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Best:
    """The best of every count that fits in memory, one entry per (batch, seq_len), length innermost.

    columns: its numbers by the names of a sweep's columns. near: (cases, 2) smallest and largest count
    around it within 1 % of its speedup. of_grid, of_grid_speedup: the best among the counts of the grid.
    plain_tokens_per_s, plain_joule_per_token: of plain decoding. kernels_speedup: of the
    same count with kernels alone; nan where the runtime is no engine.
    """

    columns: dict[str, npt.NDArray[np.generic]]
    near: IntArray
    of_grid: IntArray
    of_grid_speedup: FloatArray
    plain_tokens_per_s: FloatArray
    plain_joule_per_token: FloatArray
    kernels_speedup: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Free:
    """Free budgets, one entry per (batch, seq_len): of the whole step, and of verification without drafting.

    largest: the count to which was searched.
    """

    whole: IntArray
    verification: IntArray
    largest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InEngine:
    """The best chains of the engine that runs this drafter, one entry per (batch, seq_len), length innermost.

    candidates: 1 where plain decoding is best.
    """

    scenario: Scenario
    batch: IntArray
    seq_len: IntArray
    candidates: IntArray
    speedup: FloatArray


class CheaperCount(NamedTuple):
    """At this batch and length the larger count is faster than the smaller one."""

    batch: int
    seq_len: int
    smaller: int
    larger: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What one scenario gives over a grid; arrays have one entry per (batch, seq_len).

    paying: where speculation pays, one a length. drafting_share: what drafting for two candidates adds to a
    plain step at the first batch and length (0 where the scope has no drafter). ends_profile: whether the
    best count anywhere is the largest that the acceptance describes, so that more may pay. in_engine: the
    chains of the engine that runs this drafter, where kernels alone were asked for. shortfall: of the first
    batch and length that do not fit even without speculation.
    """

    scenario: Scenario
    grid: Grid
    surface: Surface
    best: Best
    free: Free
    paying: tuple[BreakEven, ...]
    drafting_share: float
    cheaper: tuple[CheaperCount, ...]
    ends_profile: bool
    in_engine: InEngine | None
    shortfall: Shortfall | None

    @property
    def fits(self) -> tuple[bool, ...]:
        """Whether each batch and length fits in memory with its best count; all of scope `block` do."""
        if self.scenario.scope == "block":
            return (True,) * len(self.best.near)
        fits: list[bool] = self.best.columns["fits_memory"].astype(bool).tolist()
        return tuple(fits)

    def memory(self, case: int) -> tuple[MemoryParts, int]:
        """What one GPU holds in a case with its best count, and the largest batch that would fit so."""
        i, s = divmod(case, self.surface.seq_len.size)
        count = int(self.best.columns["candidates"][case])
        option = self.surface.by_count.option_at(
            i, s, int(np.searchsorted(self.surface.by_count.counts, count))
        )
        drafter, shard = None if option is None else option.drafter, self.scenario.shard
        size, length = int(self.surface.batch[i]), int(self.surface.seq_len[s])
        parts = memory_parts(shard, *drafter_bytes(shard, drafter), size, length, count)
        return parts, int(self.surface.max_batch[s, self.surface.configuration_of(option, count)])

    @property
    def gains(self) -> tuple[tuple[float, float, float], ...]:
        """(speedup, low, high) by which the best was chosen: the server's where prompts are given."""
        name = gain_column(self.scenario)
        columns = (self.best.columns[f"{name}{end}"].tolist() for end in ("", "_low", "_high"))
        return tuple(zip(*columns, strict=True))


def answer(scenario: Scenario, grid: Grid) -> Answer:
    """Everything that a reader of the sweep wants to know first, over every count to CANDIDATES_MAX."""
    largest = max(CANDIDATES_MAX, int(grid.candidates.max()))
    surface = price(scenario, grid.batch, grid.seq_len, scenario.options(largest))
    missing, lacking = np.argwhere(~surface.by_count.fits[..., 0]).tolist(), None
    if missing:
        from medusa_sim.plan.capacity import shortfall

        lacking = shortfall(scenario, int(grid.batch[missing[0][0]]), int(grid.seq_len[missing[0][1]]))
    return Answer(
        scenario=scenario,
        grid=grid,
        surface=surface,
        best=_best(surface, grid),
        free=_free(surface),
        paying=break_even_batches(scenario, scenario.options(), grid.seq_len),
        drafting_share=_drafting_share(surface),
        cheaper=tuple(_cheaper(scenario, grid)),
        ends_profile=bool((best_columns(surface) == surface.by_count.counts.size - 1).any())
        and largest > int(surface.counts[-1]),
        in_engine=in_engine(scenario, grid.batch, grid.seq_len),
        shortfall=lacking,
    )


def best_columns(surface: Surface) -> IntArray:
    """(B, S) place of the best count that fits, the smallest of equals; plain decoding where nothing does."""
    gain = np.where(surface.by_count.fits, surface.gain_by_count, -np.inf)
    gain[~np.isfinite(gain).any(axis=-1), 0] = 1.0
    columns: IntArray = np.argmax(gain, axis=-1)
    return columns


def _best(surface: Surface, grid: Grid) -> Best:
    by_count, scenario = surface.by_count, surface.scenario
    width = by_count.counts.size
    columns, shape = best_columns(surface).ravel(), by_count.fits.shape
    rows = np.arange(columns.size)

    def cells(of: npt.NDArray[Any]) -> npt.NDArray[Any]:
        whole: npt.NDArray[Any] = np.broadcast_to(of, shape).reshape(-1, width)
        return whole

    def at(of: npt.NDArray[Any]) -> npt.NDArray[Any]:
        chosen: npt.NDArray[Any] = cells(of)[rows, columns]
        return chosen

    every = {name: each for name, each in values(surface).items() if not isinstance(each, str)}
    limit = limit_of(scenario) if scenario.scope == "model" else None
    alone = None if limit is None else price(limit, surface.batch, surface.seq_len, surface.options)
    gain, fits = cells(every[gain_column(scenario)]), cells(by_count.fits)
    on_grid = among(by_count.counts, grid.candidates)
    of_grid = np.argmax(np.where(on_grid & (fits | ~fits.any(axis=1, keepdims=True)), gain, -np.inf), axis=1)
    return Best(
        columns={name: at(each) for name, each in every.items()},
        near=np.asarray([near_best(by_count.counts, gain[i], fits[i], int(columns[i])) for i in rows]),
        of_grid=by_count.counts[of_grid],
        of_grid_speedup=gain[rows, of_grid],
        plain_tokens_per_s=cells(every["tokens_per_s"])[:, 0],
        plain_joule_per_token=cells(every["joule_per_token"])[:, 0],
        kernels_speedup=np.full(columns.size, np.nan) if alone is None else at(alone.by_count.speedup),
    )


def _free(surface: Surface) -> Free:
    counts, decode_us = surface.by_count.counts, surface.by_count.decode_us
    alone = surface.verify.time_us / decode_us
    alone[..., 0] = 1.0
    whole, verification = (
        counts[free_budget(overhead).ravel() - 1]
        for overhead in (surface.by_count.step_us / decode_us, alone)
    )
    return Free(whole=whole, verification=verification, largest=int(counts[-1]))


def in_engine(scenario: Scenario, batch: IntArray, seq_len: IntArray) -> InEngine | None:
    """What the newest engine of chains would give; None where nothing runs as kernels alone, or not there."""
    engine = load_runtime(RUNS_CHAINS)
    is_known = engine.engine is not None and scenario.drafting.method in engine.engine.drafters
    if scenario.runtime.name != LIMIT or scenario.scope != "model" or not is_known or scenario.chain_only:
        return None
    if scenario.profile.heads is None:
        return None  # a curve of tree sizes knows no chains
    served = scenario.but(runtime=RUNS_CHAINS, chain_only=True)
    surface = price(served, batch, seq_len)
    by_count = surface.by_count
    gain = np.where(by_count.fits, surface.gain_by_count, -np.inf).reshape(-1, by_count.counts.size)
    best = np.argmax(gain, axis=-1)
    return InEngine(
        scenario=served,
        batch=np.repeat(batch, seq_len.size),
        seq_len=np.tile(seq_len, batch.size),
        candidates=by_count.counts[best],
        speedup=gain[np.arange(best.size), best],
    )


def limit_of(scenario: Scenario) -> Scenario | None:
    """The scenario with the engine's own kernels alone; None where its runtime is no engine."""
    if scenario.runtime.engine is None:
        return None
    return scenario.but(runtime=scenario.runtime.kernels_alone, chain_only=scenario.chain_only)


def _drafting_share(surface: Surface) -> float:
    """Drafting of the smallest count, over the plain step, at the first batch and length."""
    option = surface.by_count.option_at(0, 0, min(1, surface.by_count.counts.size - 1))
    if option is None or surface.setting.scope == "block":
        return 0.0
    drafting = surface.drafting[surface.options.index(option)]
    if drafting is None:
        return 0.0
    return float(np.ravel(drafting.time_us)[0] / surface.decode_us[0, 0])


def _cheaper(scenario: Scenario, grid: Grid) -> Iterator[CheaperCount]:
    """Pairs among the counts of the grid."""
    counts = scenario.covered(grid.candidates)
    ordered = Grid(batch=grid.batch, seq_len=grid.seq_len, candidates=distinct(counts))
    by_count = grid_surface(scenario, ordered).by_count
    for (i, s), _ in np.ndenumerate(by_count.decode_us[..., 0]):
        for less, more in cheaper_pairs(by_count.counts, by_count.step_us[i, s]):
            yield CheaperCount(int(grid.batch[i]), int(grid.seq_len[s]), less, more)


def free_budget(overhead: FloatArray, within: float = FREE_WITHIN) -> IntArray:
    """Largest count such that every count up to it has overhead <= `within`.

    overhead: shape (..., counts) for counts 1, 2, 3, ... ; the result has shape (...).
    """
    beyond = overhead > within * (1.0 + 1e-12)
    first = np.argmax(beyond, axis=-1)
    budget: IntArray = np.where(beyond.any(axis=-1), first, overhead.shape[-1]).astype(np.int64)
    return budget


def cliffs(verify_us: FloatArray) -> IntArray:
    """Counts n (from 1) after which the next one costs at least CLIFF more, out of line with its neighbours.

    verify_us by count from 1. A steady climb, where every token costs as much, has no cliffs.
    """
    growth = verify_us[1:] / verify_us[:-1] - 1.0
    near = _sum_of_five(np.abs(growth)) - np.abs(growth)
    neighbours = _sum_of_five(np.ones_like(growth)) - 1.0
    return np.flatnonzero((growth >= CLIFF) & (growth * neighbours > 2.0 * near)) + 1


def _sum_of_five(values: FloatArray) -> FloatArray:
    """Each value with up to two neighbours on either side."""
    return np.convolve(values, np.ones(5))[2 : 2 + values.size] if values.size else values


def cheaper_pairs(candidates: IntArray, verify_us: FloatArray) -> list[tuple[int, int]]:
    """(count, larger count that costs at least 1 % less), for counts in ascending order."""
    least = np.minimum.accumulate(verify_us[::-1])[::-1]  # of a count and those behind it
    pairs = []
    for i in np.flatnonzero(least < verify_us * (1.0 - CHEAPER)):
        last = np.flatnonzero(verify_us[i + 1 :] < verify_us[i] * (1.0 - CHEAPER))[-1]
        pairs.append((int(candidates[i]), int(candidates[i + 1 + last])))
    return pairs


def near_best(counts: IntArray, speedup: FloatArray, fits: BoolArray, best: int) -> tuple[int, int]:
    """(smallest, largest) count around the `best` one whose speedups all lie within NEAR_BEST of it.

    counts ascending, speedup and fits by count; best: its place. Plain decoding stands alone.
    """
    good = (speedup >= speedup[best] * (1.0 - NEAR_BEST)) & fits & (counts > 1)
    if not good[best]:
        return int(counts[best]), int(counts[best])
    ends = np.flatnonzero(~good)
    place = int(np.searchsorted(ends, best))
    low = int(ends[place - 1]) + 1 if place else 0
    high = int(ends[place]) - 1 if place < ends.size else counts.size - 1
    return int(counts[low]), int(counts[high])
