"""Other counts than the one that a row of a schedule runs: the best, the next larger, quicker ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from medusa_sim.arrays import FloatArray, IntArray
from medusa_sim.grid.configurations import PLAIN
from medusa_sim.plan import count_curves
from medusa_sim.plan.range_cell import RangeCell

_NEIGHBOURS = 5
"""A cliff stands out from the counts around it; a few chain lengths have none."""

HeldBy = Literal["cost", "shared row", "memory", "end of the acceptance", "end of the search"]
"""Reasons that keep a row from a larger count: it costs more than it gives, it would pay more at the fullest
batch but the row is shared, it does not fit, its acceptance is unknown, or it was not searched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NextCount:
    """The next larger count of the same kind and what it would change: shares of tokens and of step time."""

    candidates: int
    tokens_gain: float
    step_cost: float


# The best of every count that fits.


def best_candidates(row: RangeCell) -> int:
    """The best count at the fullest batch alone; the row may run another, for its other batches."""
    return int(row.every.configurations.counts[_best_by_batch(row)[-1]])


def best_speedup(row: RangeCell) -> float:
    """Speedup of the best count at the fullest batch."""
    return float(row.every.by_count.speedup[row.b, row.s, _best_by_batch(row)[-1]])


def near_best(row: RangeCell) -> tuple[int, int]:
    """Smallest and largest count around the best one within 1 % of it."""
    by_count = row.every.by_count
    fits = by_count.spread(by_count.fits)[row.b, row.s]
    speedup, best = by_count.speedup[row.b, row.s], int(_best_by_batch(row)[-1])
    return count_curves.near_best(by_count.configurations.counts, speedup, fits, best)


def best_ends_profile(row: RangeCell) -> bool:
    """Whether the best count of some batch is the largest that the acceptance describes: more may pay."""
    last = row.every.configurations.counts.size - 1
    return last > 0 and bool((_best_by_batch(row) == last).any()) and row.surface.search_ends_profile


def _best_by_batch(row: RangeCell) -> IntArray:
    """Index of the best count that fits, at each of the row's batches."""
    return row.every.by_count.best_k()[row.batch_range.slice, row.s]


# The best chain.


def chain_candidates(row: RangeCell) -> int | None:
    """Candidates of the best chain that fits; None where there is none."""
    chain = _best_chain(row)
    return None if chain is None else int(row.every.configurations.candidates[chain])


def chain_speedup(row: RangeCell) -> float | None:
    """Speedup of the best chain that fits; None where there is none."""
    chain = _best_chain(row)
    return None if chain is None else float(row.speedups[chain])


def _best_chain(row: RangeCell) -> int | None:
    """The chain that gains most of those that fit; None where none does, or shapes are unknown."""
    configurations = row.every.configurations
    chains = [i for i, option in enumerate(configurations.options) if option.chain]
    fits = row.every.fits[row.b, row.s]
    members = np.flatnonzero(np.isin(configurations.option, chains) & fits)
    return int(members[np.argmax(row.speedups[members])]) if members.size else None


# More candidates.


def free_candidates(row: RangeCell) -> int:
    """The largest free count: up to it overhead stays within `free_within`; 1 where nothing is free."""
    by_count = row.every.by_count
    overhead = by_count.overhead[row.b, row.s]
    return int(count_curves.free_count(by_count.configurations.counts, overhead, row.question.free_within))


def next_count(row: RangeCell) -> NextCount | None:
    """Changes that the next larger count would make; None where there is none, or nothing is drafted."""
    larger = _larger(row)
    if row.configuration == PLAIN or not larger.size:
        return None
    tokens, here, following = row.every.configurations.tokens_per_step, row.configuration, int(larger[0])
    return NextCount(
        candidates=int(row.every.configurations.candidates[following]),
        tokens_gain=float(tokens[following] / tokens[here]) - 1.0,
        step_cost=float(row.steps_us[following] / row.steps_us[here]) - 1.0,
    )


def held_by(row: RangeCell) -> HeldBy | None:
    """The reason that keeps the row from more; None for a plain row."""
    option, larger = row.option, _larger(row)
    if option is None:
        return None
    if not larger.size:
        is_largest = row.candidates == row.every.configurations.counts[-1]
        heads = row.surface.scenario.profile.heads
        is_longest = option.chain and heads is not None and option.depth >= heads.depth  # that was measured
        ends = is_longest or (is_largest and row.surface.search_ends_profile)
        return "end of the acceptance" if ends else "end of the search"
    better = row.speedups[larger] > row.speedups[row.configuration]
    if (better & row.every.fits[row.b, row.s, larger]).any():
        return "shared row"
    return "memory" if better.any() else "cost"


def cliff_after(row: RangeCell) -> int | None:
    """The first count from the row's up after which the step jumps; None where none does."""
    sizes, step_us = _steps_by_count(row)
    if sizes.size <= _NEIGHBOURS:
        return None
    cliffs = sizes[count_curves.cliffs(step_us) - 1]
    ahead = cliffs[cliffs >= row.candidates]
    return int(ahead[0]) if ahead.size else None


def quicker_larger(row: RangeCell) -> tuple[tuple[int, int], ...]:
    """Pairs (count, larger count whose step is shorter) of plain decoding and the row's way of drafting."""
    return tuple(count_curves.quicker_pairs(*_steps_by_count(row)))


def _same_way(row: RangeCell) -> IntArray:
    """Configurations that draft as the row does, or would, by count."""
    return row.every.configurations.sizes_of(row.speculative.configuration)


def _larger(row: RangeCell) -> IntArray:
    """Configurations that draft as the row does with more candidates."""
    members = _same_way(row)
    return np.asarray(members[row.every.configurations.candidates[members] > row.candidates])


def _steps_by_count(row: RangeCell) -> tuple[IntArray, FloatArray]:
    """Counts of plain decoding and of the row's way of drafting, and the time of their steps."""
    compared = np.concatenate([[PLAIN], _same_way(row)])
    return row.every.configurations.candidates[compared], row.steps_us[compared]
