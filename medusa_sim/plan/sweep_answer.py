"""The answer of a sweep: the best count per batch and length, the free budget, where it stops paying."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from medusa_sim.arrays import FloatArray, IntArray
from medusa_sim.engines.runtime import load_runtime
from medusa_sim.grid.axes import Grid
from medusa_sim.grid.cells import Cells, price
from medusa_sim.grid.configurations import at_counts
from medusa_sim.grid.quantities import values
from medusa_sim.plan.break_even import BreakEven, break_even_batches
from medusa_sim.plan.coarse_search import at_few_counts, coarse_searches
from medusa_sim.plan.count_curves import free_count, near_best, quicker_pairs
from medusa_sim.plan.shortfall import Shortfall, shortfall
from medusa_sim.scenario.defaults import CANDIDATES_MAX, KERNELS_ALONE, RUNS_CHAINS
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.step.memory import MemoryParts


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeBudgets:
    """Free budgets at each batch and length, lengths innermost: of the whole step, and of verification alone.

    largest: the largest count searched.
    """

    whole: IntArray
    verification: IntArray
    largest: int


class QuickerCount(NamedTuple):
    """At this batch and length the larger count is faster than the smaller one."""

    batch: int
    seq_len: int
    smaller: int
    larger: int


@dataclass(frozen=True, kw_only=True, eq=False)
class SweepAnswer:
    """The answer of one scenario over a grid: a row each batch and length, lengths innermost.

    by_count: every count at every batch and length. counts: those that it answers about: all, or those of the
    grid. best: the best of them that fits; best_of_all: of every count. break_evens: where speculation pays,
    one a length. drafting_share: what drafting for two candidates adds to a plain step at the first batch and
    length (0 where the scope has no drafter). best_ends_profile: whether the best of all anywhere is the
    largest that the acceptance describes, so that more may pay. in_engine: the best chains of the engine that
    runs this drafter, where kernels alone were asked for. shortfall: of the first batch and length that do
    not fit even without speculation.
    """

    scenario: Scenario
    grid: Grid
    by_count: Cells
    counts: IntArray
    best: Cells
    best_of_all: Cells
    free: FreeBudgets
    break_evens: tuple[BreakEven, ...]
    drafting_share: float
    quicker: tuple[QuickerCount, ...]
    best_ends_profile: bool
    in_engine: Cells | None
    shortfall: Shortfall | None

    def column(self, name: str, cells: Cells | None = None) -> FloatArray:
        """(rows,) a quantity of the best, or of other cells."""
        cells = self.best if cells is None else cells
        return cells.spread(values(cells, [name])[name])[..., 0].ravel()

    @property
    def fits(self) -> tuple[bool, ...]:
        """(rows,) whether it fits in memory with its best count; all of scope `block` do."""
        fits: list[bool] = self.best.fits.ravel().tolist()
        return tuple(fits)

    @property
    def largest_count(self) -> int:
        """The largest count that is best anywhere; 2 where none drafts, which is about drafts too."""
        return max(int(self.best.candidates.max()), 2)

    @property
    def near_best(self) -> list[tuple[int, int]]:
        """(rows,) smallest and largest count around the best one within 1 % of its speedup."""
        by_count = self.by_count
        every = by_count.configurations.counts
        columns = np.isin(every, [1, *self.counts])
        counts, speedup = every[columns], by_count.speedup[..., columns]
        fits = by_count.spread(by_count.fits)[..., columns]
        best = np.searchsorted(counts, self.best.spread(self.best.candidates)[..., 0])
        return [
            near_best(counts, speedup[b, s], fits[b, s], int(best[b, s])) for b, s in np.ndindex(*best.shape)
        ]

    def memory(self, row: int) -> tuple[MemoryParts, int]:
        """Bytes on one GPU with the best count of a row, and its largest batch."""
        at = (*divmod(row, self.best.shape[1]), 0)
        parts = (self.best.spread(part)[at] for part in self.best.memory)
        return MemoryParts(*parts), int(self.best.spread(self.best.max_batch)[at])

    @property
    def gain(self) -> str:
        """The quantity that tells what the best gains: over plain decoding, or over a fixed baseline."""
        return "speedup" if self.scenario.baseline == "same" else "baseline_speedup"

    @property
    def gains(self) -> tuple[tuple[float, float, float], ...]:
        """(rows,) gain, low and high end of the best."""
        columns = (self.column(f"{self.gain}{end}").tolist() for end in ("", "_low", "_high"))
        return tuple(zip(*columns, strict=True))


def sweep_answer(scenario: Scenario, grid: Grid, *, grid_alone: bool = False) -> SweepAnswer:
    """Everything that a reader of the sweep wants to know first, over every count to CANDIDATES_MAX.

    grid_alone: answer about the grid's counts alone, unless the acceptance describes none that drafts.
    """
    options = scenario.options(max(CANDIDATES_MAX, int(grid.candidates.max())))
    by_count = price(scenario, grid.batch, grid.seq_len, options).by_count
    best_of_all, every = by_count.best(), by_count.configurations.counts
    asked = at_counts(options, grid.candidates) if grid_alone else ()
    counts = every[np.isin(every, grid.candidates)] if asked else every
    worth = np.where(np.isin(every, counts), by_count.speedup, -np.inf)
    coarse = coarse_searches(scenario, asked or at_few_counts(scenario.options()), grid.seq_len)
    return SweepAnswer(
        scenario=scenario,
        grid=grid,
        by_count=by_count,
        counts=counts,
        best=by_count.best(worth),
        best_of_all=best_of_all,
        free=_free(by_count),
        break_evens=break_even_batches(coarse),
        drafting_share=_drafting_share(by_count),
        quicker=tuple(_quicker(by_count, scenario.covered(grid.candidates))),
        best_ends_profile=bool((best_of_all.candidates == every[-1]).any())
        and by_count.surface.search_ends_profile,
        in_engine=in_engine(scenario, grid.batch, grid.seq_len),
        shortfall=_shortfall(by_count),
    )


def _shortfall(by_count: Cells) -> Shortfall | None:
    """Memory that is missing at the first batch and length that do not fit without speculation."""
    unfit = np.argwhere(~by_count.fits[..., 0]).tolist()
    if not unfit:
        return None
    (b, s), surface = unfit[0], by_count.surface
    return shortfall(by_count.scenario, int(surface.batch[b]), int(surface.seq_len[s]))


def _free(by_count: Cells) -> FreeBudgets:
    """The largest count that is free, at each batch and length."""
    counts, surface = by_count.configurations.counts, by_count.surface
    alone = by_count.spread(surface.verify.time_us / by_count.steps.decode_us).copy()
    alone[..., 0] = 1.0
    step, verification = (free_count(counts, overhead).ravel() for overhead in (by_count.overhead, alone))
    return FreeBudgets(whole=step, verification=verification, largest=int(counts[-1]))


def in_engine(scenario: Scenario, batch: IntArray, seq_len: IntArray) -> Cells | None:
    """The best of the newest engine of chains; None unless kernels alone run what it could run."""
    is_without_engine = scenario.runtime.name == KERNELS_ALONE and scenario.scope == "model"
    if not is_without_engine or scenario.chain_only:
        return None
    if scenario.profile.heads is None:
        return None  # a curve of tree sizes knows no chains
    engine = load_runtime(RUNS_CHAINS).engine
    if engine is None or scenario.drafting.method not in engine.drafters:
        return None
    served = scenario.but(runtime=RUNS_CHAINS, chain_only=True)
    return price(served, batch, seq_len).by_count.best()


def _drafting_share(by_count: Cells) -> float:
    """Drafting of the smallest count, over the plain step, at the first batch and length."""
    surface = by_count.surface
    configuration = by_count.configuration_at(0, 0, min(1, by_count.shape[-1] - 1))
    if configuration == 0 or surface.setting.scope == "block":
        return 0.0
    drafting = surface.drafting[int(by_count.configurations.option[configuration])]
    if drafting is None:
        return 0.0
    return float(np.ravel(drafting.time_us)[0] / np.ravel(surface.decode.time_us)[0])


def _quicker(by_count: Cells, candidates: IntArray) -> Iterator[QuickerCount]:
    """Pairs among plain decoding and some of the counts."""
    surface, counts = by_count.surface, by_count.configurations.counts
    columns = np.isin(counts, [1, *candidates])
    for i, s in np.ndindex(*by_count.shape[:2]):
        for less, more in quicker_pairs(counts[columns], by_count.steps.time_us[i, s, columns]):
            yield QuickerCount(int(surface.batch[i]), int(surface.seq_len[s]), less, more)
