"""The best searched tree as an engine grows it: a depth, children kept a level and a size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from medusa_sim.export.chains import ChainPlan, drafts_by_batch
from medusa_sim.plan.recommendation import Recommendation


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
    surface, grid = answer.surface, plan.grid
    if answer.scenario.chain_only:
        return None
    columns = np.flatnonzero(
        np.isin(surface.option, [i for i, option in enumerate(surface.options) if option.width > 1])
    )
    if not columns.size:
        return None
    at = np.searchsorted(surface.batch, grid.batch)
    value = np.log(surface.speedup[at][..., columns]).mean(axis=1)
    fits = np.asarray(np.all(surface.fits[at][..., columns], axis=(0, 1)))
    chains = np.take_along_axis(
        grid.log_speedup, np.searchsorted(grid.drafts, drafts_by_batch(grid, plan.tiers))[:, None], axis=1
    )
    pays = np.flatnonzero(np.maximum(grid.log_speedup.max(axis=1), value.max(axis=1)) > 0.0)
    gain = np.average((value - chains)[pays], axis=0, weights=grid.weight[pays])
    for j in np.argsort(-np.where(fits, gain, -np.inf), kind="stable"):
        if not fits[j] or gain[j] <= np.log1p(answer.question.switching_gain):
            return None
        option = surface.options[int(surface.option[columns[j]])]
        shape = TreeShape(
            option.depth, option.width, int(surface.candidates[columns[j]]), float(np.expm1(gain[j]))
        )
        if allowed(shape):
            return shape
    return None


def tree_notes(shape: TreeShape) -> tuple[str, ...]:
    """What a reader must know of a tree that the engine grows itself."""
    return (
        f"a tree of {shape.candidates} candidates (root included), depth {shape.depth}, {shape.width} a "
        f"level: {shape.gain:+.1%} over chains, one setting for every batch",
        "the engine grows the tree of this depth, top-k and size at run time from the drafter's own scores; "
        "the paths that were priced cannot be given to it",
    )
