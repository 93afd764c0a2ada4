"""Profiles that know shapes: the tokens per step of the best tree of each size, and that tree."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from medusa_sim.acceptance.curve import checked_candidates
from medusa_sim.acceptance.heads import HeadAccuracy, tokens_per_step_error
from medusa_sim.acceptance.optimise import TreeOrder, chain_tokens_per_step, optimal_order
from medusa_sim.acceptance.tree import CandidateTree
from medusa_sim.arrays import FloatArray

CANDIDATES_MAX = 1024
"""Trees are grown to this many candidates; a verification step never pays beyond it."""


@dataclass(frozen=True)
class ShapedAcceptance:
    """Optimal trees over `heads` (for a chain or a draft model: one row of accuracies per depth).

    `model_error`: relative 80 % half width of `tokens_per_step - 1` beside the sample sizes, for what
    the independence of positions misses.
    """

    name: str
    heads: HeadAccuracy
    model_error: float = 0.0

    @cached_property
    def order(self) -> TreeOrder:
        """Nodes of the optimal trees in the order in which a growing tree takes them."""
        return optimal_order(self.heads, CANDIDATES_MAX)

    @property
    def candidates_max(self) -> int:
        """Candidates of the largest tree that these accuracies describe."""
        return self.order.candidates_max

    def tree(self, candidates: int) -> CandidateTree:
        """The optimal tree of that many candidates; CoverageError beyond `candidates_max`."""
        checked_candidates(candidates, self.candidates_max, self.name)
        return self.order.tree(candidates)

    def tokens_per_step(self, candidates: npt.ArrayLike) -> FloatArray:
        """Mean tokens emitted per step with the optimal tree, of the shape of `candidates`."""
        counts = checked_candidates(candidates, self.candidates_max, self.name)
        return np.asarray(self.order.tokens_per_step[counts.astype(np.int64) - 1])

    def chain_tokens_per_step(self) -> FloatArray:
        """(depths + 1,) tokens per step of the best chain of 0, 1, ... guesses."""
        return chain_tokens_per_step(self.heads)

    def band(self, candidates: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
        """80 % interval from the sample sizes and `model_error`; both exactly 1 at one candidate."""
        value = self.tokens_per_step(candidates)
        counts = np.asarray(candidates, dtype=np.int64)
        unique, inverse = np.unique(counts, return_inverse=True)
        from_labels = np.array([tokens_per_step_error(self.order.tree(int(n)), self.heads) for n in unique])
        half = np.hypot(from_labels[inverse].reshape(counts.shape), self.model_error * (value - 1.0))
        most = np.minimum(counts, self.heads.heads + 1.0)
        return np.asarray(np.maximum(value - half, 1.0)), np.asarray(np.minimum(value + half, most))
