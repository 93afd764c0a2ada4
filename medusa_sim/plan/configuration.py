"""Configurations of a surface: the best that speculates, its option's others, what acceptance it needs."""

from __future__ import annotations

import numpy as np

from medusa_sim.arrays import FloatArray, IntArray
from medusa_sim.plan.draft_options import DraftOption
from medusa_sim.plan.surface import PLAIN, Surface


def best_speculative(surface: Surface, at: int, s: int, configuration: int) -> int:
    """The configuration itself, or for plain decoding the best one that speculates at this place."""
    if configuration != PLAIN:
        return configuration
    return 1 + int(np.argmax(surface.speedup[at, s, 1:]))


def same_option(surface: Surface, configuration: int) -> IntArray:
    """Configurations that differ from this one in size alone, by count: the same option, or the chains."""
    option = surface.option_of(configuration)
    assert option is not None  # noqa: S101  # callers pass configurations that speculate
    if option.candidates.size > 1:
        return np.flatnonzero(surface.option == surface.option[configuration])
    alike = [
        i for i, other in enumerate(surface.options)
        if other.candidates.size == 1 and (other.chain, other.width) == (option.chain, option.width)
    ]  # fmt: skip
    members = np.flatnonzero(np.isin(surface.option, alike))
    return members[np.argsort(surface.candidates[members], kind="stable")]


def is_chain(option: DraftOption, candidates: int) -> bool:
    """Whether the option's tree of that count has one path."""
    tree = option.tree(candidates)
    return option.chain or (tree is not None and tree.depth == candidates - 1)


def best_chain(surface: Surface, speedup: FloatArray) -> int | None:
    """The fastest chain by speedup (configurations,); None where shapes are unknown."""
    chains = [i for i, option in enumerate(surface.options) if option.chain]
    members = np.flatnonzero(np.isin(surface.option, chains))
    return int(members[np.argmax(speedup[members])]) if members.size else None


def scaled_speedup(surface: Surface, j: int, speedup: float, factor: float) -> float:
    """The speedup of configuration j if every accuracy were `factor` times as large."""
    option = surface.option_of(j)
    if option is None:
        return speedup
    count = int(surface.candidates[j])
    return speedup * option.scaled_tokens(count, factor) / option.tokens(count)


def required_factor(surface: Surface, j: int, required: float) -> float | None:
    """Factor on every accuracy at which configuration j breaks even, by bisection; None beyond 16."""
    option = surface.option_of(j)
    assert option is not None  # noqa: S101  # callers pass configurations that speculate
    count = int(surface.candidates[j])
    low, high = 0.0, 16.0
    if required <= 1.0:
        return 0.0
    if option.scaled_tokens(count, high) < required:
        return None
    for _ in range(40):
        middle = (low + high) / 2.0
        low, high = (middle, high) if option.scaled_tokens(count, middle) < required else (low, middle)
    return high
