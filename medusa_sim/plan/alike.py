"""Configurations beside one another: the best that speculates, those of one kind, the best chain."""

from __future__ import annotations

import numpy as np

from medusa_sim.arrays import FloatArray, IntArray, among
from medusa_sim.plan.cells import Cells
from medusa_sim.plan.configurations import PLAIN, Configurations
from medusa_sim.plan.draft_options import DraftOption


def best_speculative(every: Cells, at: int, s: int, configuration: int) -> int:
    """The configuration itself, or for plain decoding the best one that speculates at this place."""
    if configuration != PLAIN:
        return configuration
    return 1 + int(np.argmax(every.speedup[at, s, 1:]))


def same_option(configurations: Configurations, configuration: int) -> IntArray:
    """Configurations that differ from this one in size alone, by count: the same option, or the chains."""
    option = configurations.option_of(configuration)
    assert option is not None  # noqa: S101  # callers pass configurations that speculate
    if option.candidates.size > 1:
        return np.flatnonzero(configurations.option == configurations.option[configuration])
    alike = [
        i for i, other in enumerate(configurations.options)
        if other.candidates.size == 1 and (other.chain, other.width) == (option.chain, option.width)
    ]  # fmt: skip
    members = np.flatnonzero(among(configurations.option, alike))
    return members[np.argsort(configurations.candidates[members], kind="stable")]


def is_chain(option: DraftOption, candidates: int) -> bool:
    """Whether the option's tree of that count has one path."""
    tree = option.tree(candidates)
    return option.chain or (tree is not None and tree.depth == candidates - 1)


def best_chain(every: Cells, speedup: FloatArray) -> int | None:
    """The fastest chain by speedup (J,); None where shapes are unknown."""
    chains = [i for i, option in enumerate(every.configurations.options) if option.chain]
    members = np.flatnonzero(among(every.configurations.option, chains))
    return int(members[np.argmax(speedup[members])]) if members.size else None


def required_factor(every: Cells, configuration: int, required: float) -> float | None:
    """Factor on every accuracy at which a configuration emits `required` tokens; None where none does."""
    option = every.configurations.option_of(configuration)
    assert option is not None  # noqa: S101  # callers pass configurations that speculate
    return option.factor_for(int(every.configurations.candidates[configuration]), required)
