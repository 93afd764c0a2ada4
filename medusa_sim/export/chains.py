"""The searched chains as an engine runs them: drafts by batch, never rising, switching on captured sizes.

A schedule of our own may rise and fall from batch to batch, because the time of a step does at the edges
of a kernel's tiles. Engines capture one graph a number of drafts, pad a batch to a captured size, and pay
for a switch, so what is exported falls only, switches where graphs end, and switches only for a gain.

A tree is exported as an engine grows it: a depth, children kept a level and a size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from medusa_sim.arrays import BoolArray, FloatArray, IntArray
from medusa_sim.engines.runtime import load_runtime
from medusa_sim.errors import UsageError
from medusa_sim.plan.recommendation import Recommendation, schedule_all_lengths
from medusa_sim.plan.schedule import scheduled_counts
from medusa_sim.plan.verdict import runs_of_equals

_NEVER = -1e9
"""Score of what an engine cannot do."""


@dataclass(frozen=True, slots=True)
class Tier:
    """Batches `batch_min..batch_max` (inclusive) that draft `drafts` tokens a step; 0 is plain decoding."""

    batch_min: int
    batch_max: int
    drafts: int


@dataclass(frozen=True, slots=True, eq=False)
class ChainGrid:
    """Speedup of every chain at every searched batch that fits in memory, over all lengths (geometric mean).

    batch: (B,), at which every chain fits. drafts: (K,), 0 first. log_speedup: (B, K), plain decoding 0.
    max_batch: (K,) largest batch that fits with each, at every length. searched_to: the largest batch asked
    about. rates: unconditional acceptance rate of every position of the longest chain.
    """

    batch: IntArray
    drafts: IntArray
    log_speedup: FloatArray
    max_batch: IntArray
    searched_to: int
    rates: FloatArray

    @property
    def weight(self) -> FloatArray:
        """(B,) weight of each batch: doublings of the batch that it stands for, so that sizes count alike."""
        before = np.concatenate([[self.batch[0] - 1], self.batch[:-1]])
        return np.asarray((self.batch - before) / (self.batch * np.log(2.0)))

    def with_idle(self, cost: Callable[[int], float] | None) -> ChainGrid:
        """With a loaded drafter, whose plain step costs that share more by batch; None: it cannot stop."""
        idle = [_NEVER if cost is None else -np.log1p(cost(int(batch))) for batch in self.batch]
        return replace(self, log_speedup=np.column_stack([idle, self.log_speedup[:, 1:]]))

    def speedup(self, batch: int, drafts: int) -> float:
        """At one searched batch."""
        row, column = np.searchsorted(self.batch, batch), np.searchsorted(self.drafts, drafts)
        return float(np.exp(self.log_speedup[row, column]))

    def mean_gain(self, drafts: IntArray) -> float:
        """Mean log speedup over the batches, with `drafts` (B,) tokens drafted at each."""
        return float(np.average(self.log_speedup_of(drafts), weights=self.weight))

    def log_speedup_of(self, drafts: IntArray) -> FloatArray:
        """(B,) with `drafts` (B,) tokens drafted at each batch."""
        columns = np.searchsorted(self.drafts, drafts)
        return np.asarray(np.take_along_axis(self.log_speedup, columns[:, None], axis=1)[:, 0])


def chain_grid(answer: Recommendation) -> ChainGrid:
    """Every chain that was searched.

    Raises UsageError where the acceptance profile knows no chains, or no batch fits in memory with them.
    """
    cells = answer.cells
    surface, configurations = cells.surface, cells.configurations
    chains = {option.depth: i for i, option in enumerate(configurations.options) if option.chain}
    if not chains:
        raise UsageError(
            f"acceptance {answer.scenario.profile.name} is a curve of tree sizes and knows no chains, which "
            "is what engines run; give accuracies per head and rank, or per position, with --acceptance FILE"
        )
    depths = sorted(chains)
    columns = [0, *(configurations.option_slices[chains[depth]].start for depth in depths)]
    log_speedup = np.log(cells.speedup[..., columns]).mean(axis=1)
    fits = cells.fits[..., columns].all(axis=(1, 2))
    if not fits.any():
        raise UsageError(
            f"nothing to export: no batch from {surface.batch[0]} fits in the memory of "
            f"{answer.scenario.gpu.name}"
        )
    longest = configurations.options[chains[depths[-1]]]
    assert longest.order is not None  # noqa: S101  # chains are built from accuracies
    gains = np.asarray(longest.order.gains, dtype=np.float64)
    scale = (longest.tokens(depths[-1] + 1) - 1.0) / max(gains.sum(), 1e-12)
    return ChainGrid(
        batch=surface.batch[fits],
        drafts=np.asarray([0, *depths]),
        log_speedup=log_speedup[fits],
        max_batch=surface.max_batch[:, columns].min(axis=0),
        searched_to=int(surface.batch[-1]),
        rates=np.minimum.accumulate(np.clip(gains * scale, 0.0, 1.0)),
    )


def best_static(grid: ChainGrid) -> int:
    """The one number of drafts for a range of batches: nowhere far from the best number of that batch.

    Where speculating pays at all it loses least against the best number there, at the batch where it loses
    most: a mean over batches would give the largest ones away, whose steps are dear.
    Raises UsageError where no chain pays at any batch.
    """
    pays = grid.log_speedup[:, 1:].max(axis=1) > 0.0
    if not pays.any():
        raise UsageError(
            f"nothing to export: no chain pays at batch {grid.batch[0]}..{grid.batch[-1]}; "
            "leave speculation off"
        )
    values = grid.log_speedup[pays, 1:]
    least = (values - values.max(axis=1, keepdims=True)).min(axis=0)
    return int(grid.drafts[1 + np.argmax(least)])


def scheduled_numbers(answer: Recommendation) -> set[int]:
    """Numbers of drafts in the schedule of an answer about chains, over the batches that fit; 0 is off.

    Empty where trees were searched: a row of candidates is then no number of drafts.
    """
    if not answer.chains:
        return set()
    return {row.drafts for row in schedule_all_lengths(answer) if row.fits_memory}


def best_tiers(
    grid: ChainGrid, captured: Iterable[int], *, gain: float, idle_cost: Callable[[int], float] | None
) -> tuple[Tier, ...]:
    """Drafts by batch that never rise, switch above a captured size only, and gain by every switch.

    captured: batch sizes that the engine captures graphs of, ascending. gain: what a switch must bring over
    one doubling of the batch (0.03: 3 %). idle_cost: what a loaded drafter that drafts nothing costs at a
    batch (0.1: 10 %), None where the engine cannot switch off. (N14), by dynamic programming over the sizes.
    """
    ends = [size for size in captured if grid.batch[0] <= size < grid.batch[-1]]
    edges = [int(grid.batch[0]) - 1, *ends, int(grid.batch[-1])]
    value = grid.with_idle(idle_cost).log_speedup
    score = np.array(
        [
            (value * grid.weight[:, None])[(grid.batch > low) & (grid.batch <= high)].sum(axis=0)
            for low, high in pairwise(edges)
        ]
    )
    chosen = _falling_path(score, np.log1p(gain))
    tiers: list[Tier] = []
    for (low, high), column in zip(pairwise(edges), chosen, strict=True):
        drafts = int(grid.drafts[column])
        if tiers and tiers[-1].drafts == drafts:
            tiers[-1] = Tier(tiers[-1].batch_min, high, drafts)
        else:
            tiers.append(Tier(low + 1, high, drafts))
    return tuple(tiers)


def _falling_path(score: FloatArray, switch: float) -> list[int]:
    """The columns (one a row, never rising) with the largest sum of scores less `switch` a change."""
    rows, columns = score.shape
    best = score[0].copy()
    came_from = np.zeros((rows, columns), dtype=np.int64)
    for row in range(1, rows):
        after = np.empty(columns)
        for column in range(columns):
            reach = best[column:] - switch * (np.arange(columns - column) > 0)
            source = int(np.argmax(reach))
            came_from[row, column] = column + source
            after[column] = reach[source] + score[row, column]
        best = after
    path = [int(np.argmax(best))]
    for row in range(rows - 1, 0, -1):
        path.append(int(came_from[row, path[-1]]))
    return path[::-1]


def drafts_by_batch(grid: ChainGrid, tiers: tuple[Tier, ...]) -> IntArray:
    """(B,) drafts at each searched batch."""
    starts = np.asarray([tier.batch_min for tier in tiers])
    counts = np.asarray([tier.drafts for tier in tiers])
    return counts[np.searchsorted(starts, grid.batch, side="right") - 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainPlan:
    """One number of drafts for an engine, or tiers by batch where these gain more than they cost.

    drafts: the most drafted at any batch. tiers: one where the number is fixed. best_schedule: the tiers that
    gain most, whether they are used or not, and gain: their mean gain over the best fixed number. loses:
    every (first, last) of the searched batches at which the plan drafts and is no faster than without.
    unsure: those at which it drafts and gains, while the answer's own schedule leaves drafts off because the
    gain is within its doubt. rates: unconditional acceptance rates by position up to `drafts`.
    """

    grid: ChainGrid
    drafts: int
    tiers: tuple[Tier, ...]
    best_schedule: tuple[Tier, ...]
    gain: float
    loses: tuple[tuple[int, int], ...]
    unsure: tuple[tuple[int, int], ...]
    rates: tuple[float, ...]

    @property
    def dynamic(self) -> bool:
        """Whether the number of drafts follows the batch."""
        return len(self.tiers) > 1

    @property
    def max_batch(self) -> int:
        """Largest batch that fits with the most drafts of the plan."""
        return int(self.grid.max_batch[np.searchsorted(self.grid.drafts, self.drafts)])

    @property
    def largest_loss(self) -> tuple[int, int, float, float]:
        """(batch, the best number there, its speedup, the plan's) where the plan loses most against it."""
        values = self.grid.log_speedup_of(drafts_by_batch(self.grid, self.tiers))
        row = int(np.argmin(values - self.grid.log_speedup.max(axis=1)))
        best = int(np.argmax(self.grid.log_speedup[row]))
        found = (float(np.exp(each)) for each in (self.grid.log_speedup[row, best], values[row]))
        return (int(self.grid.batch[row]), int(self.grid.drafts[best]), *found)  # type: ignore[return-value]  # two

    def drafts_at(self, batch: int) -> int:
        """Drafts at a batch; above the last tier the last one's."""
        return next((tier.drafts for tier in self.tiers if batch <= tier.batch_max), self.tiers[-1].drafts)


def chain_plan(
    answer: Recommendation,
    captured: Iterable[int],
    *,
    scheduled: bool,
    margin: float,
    idle_cost: Callable[[int], float] | None = None,
) -> ChainPlan:
    """The plan for one engine: tiers only if it runs them and they gain `margin` over one fixed number.

    An answer that drafts one number wherever it drafts is written with that number.
    Raises UsageError where no chain pays at any batch or the profile knows no chains.
    """
    grid = chain_grid(answer)
    if answer.chains and not any(row.candidates > 1 for row in answer.schedule):
        raise UsageError(
            f"nothing to export: no chain pays for certain at batch {grid.batch[0]}..{grid.batch[-1]}; "
            "leave speculation off"
        )
    numbers = scheduled_numbers(answer)
    drafted = sorted(numbers - {0})
    static = drafted[0] if len(drafted) == 1 else best_static(grid)
    schedule = best_tiers(grid, captured, gain=answer.question.switching_gain, idle_cost=idle_cost)
    switched = grid.with_idle(idle_cost).mean_gain(drafts_by_batch(grid, schedule))
    gain = float(np.expm1(switched - grid.mean_gain(np.full(grid.batch.size, static))))
    use = scheduled and len(numbers) != 1 and len(schedule) > 1 and schedule[0].drafts > 0 and gain >= margin
    whole = (Tier(int(grid.batch[0]), int(grid.batch[-1]), static),)
    tiers = schedule if use else whole
    drafts = max(tier.drafts for tier in tiers)
    by_batch = drafts_by_batch(grid, tiers)
    slower = (by_batch > 0) & (grid.log_speedup_of(by_batch) <= 0.0)
    return ChainPlan(
        grid=grid,
        drafts=drafts,
        tiers=tiers,
        best_schedule=schedule,
        gain=gain,
        loses=_spans(grid.batch, slower),
        unsure=_spans(grid.batch, (by_batch > 0) & ~slower & ~speculates(answer, grid.batch)),
        rates=tuple(float(rate) for rate in grid.rates[:drafts]),
    )


def speculates(answer: Recommendation, batch: IntArray) -> BoolArray:
    """(B,) whether the answer's schedule drafts at each searched batch, at any length."""
    counts = [scheduled_counts(answer.rows_at(length)) for length in answer.cells.surface.seq_len.tolist()]
    return np.array([any(each[size] > 1 for each in counts) for size in batch.tolist()])


def _spans(batch: IntArray, where: BoolArray) -> tuple[tuple[int, int], ...]:
    """(first, last) of neighbouring batches at which `where` holds."""
    return tuple(span for holds, span in runs_of_equals(batch, where.tolist()) if holds)


def graph_sizes(engine: str) -> tuple[int, ...]:
    """Batches that an engine captures graphs of: a switch between two of them saves no padding."""
    terms = load_runtime(engine).engine
    assert terms is not None  # noqa: S101  # names without a version stand for engines
    return terms.graph_sizes


def idle_cost(answer: Recommendation) -> Callable[[int], float]:
    """Share by which a loaded drafter lengthens a plain step, by requests."""
    surface = answer.cells.surface
    share = surface.idle_share.mean(axis=1)
    return lambda batch: float(np.interp(batch, surface.batch, share))


@dataclass(frozen=True, slots=True)
class TreeShape:
    """A tree grown level by level: `drafts` = candidates - 1 nodes below the root. gain: over the chains."""

    depth: int
    width: int
    candidates: int
    gain: float


def best_tree(
    answer: Recommendation, plan: ChainPlan, allowed: Callable[[TreeShape], bool]
) -> TreeShape | None:
    """The one tree that gains most over the plan's chains, where that is worth the switching gain.

    Over the batches that fit and at which the tree or a chain pays, all lengths alike. None where chains were
    asked for, or no tree that the engine allows gains enough.
    """
    cells, grid = answer.cells, plan.grid
    surface, configurations = cells.surface, cells.configurations
    if answer.scenario.chain_only:
        return None
    wide = [i for i, option in enumerate(configurations.options) if option.width > 1]
    columns = np.flatnonzero(np.isin(configurations.option, wide))
    if not columns.size:
        return None
    at = np.searchsorted(surface.batch, grid.batch)
    value = np.log(cells.speedup[at][..., columns]).mean(axis=1)
    fits = np.asarray(np.all(cells.fits[at][..., columns], axis=(0, 1)))
    chains = grid.log_speedup_of(drafts_by_batch(grid, plan.tiers))[:, None]
    pays = np.flatnonzero(np.maximum(grid.log_speedup.max(axis=1), value.max(axis=1)) > 0.0)
    gain = np.average((value - chains)[pays], axis=0, weights=grid.weight[pays])
    for j in np.argsort(-np.where(fits, gain, -np.inf), kind="stable"):
        if not fits[j] or gain[j] <= np.log1p(answer.question.switching_gain):
            return None
        option = configurations.option_of(int(columns[j]))
        assert option is not None  # noqa: S101  # these have a width
        count = int(configurations.candidates[columns[j]])
        shape = TreeShape(option.depth, option.width, count, float(np.expm1(gain[j])))
        if allowed(shape):
            return shape
    return None


def tree_notes(shape: TreeShape) -> tuple[str, ...]:
    """Notes on a tree that the engine grows itself."""
    return (
        f"a tree of {shape.candidates} candidates (root included), depth {shape.depth}, {shape.width} a "
        f"level: {100.0 * shape.gain:+.1f} % over chains, one setting for every batch",
        "the engine grows the tree of this depth, top-k and size at run time from the drafter's own scores; "
        "the paths that were priced cannot be given to it",
    )
