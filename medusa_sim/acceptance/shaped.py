"""Tokens per step from accuracies of heads: they know shapes, so that each size has its best tree."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from medusa_sim.acceptance.curve import checked_candidates
from medusa_sim.acceptance.heads import HeadAccuracy, optimal_order, token_errors
from medusa_sim.acceptance.tree import CandidateTree, TreeOrder
from medusa_sim.arrays import Band, FloatArray, IntArray

if TYPE_CHECKING:
    from medusa_sim.acceptance.deeper import Fall, Guess

CANDIDATES_MAX = 1024
"""Trees are grown to this many candidates; a verification step never pays beyond it."""


@dataclass(frozen=True)
class ShapedAcceptance:
    """Optimal trees over accuracies by depth and rank (for a chain or a draft model: one row per depth)."""

    name: str
    heads: HeadAccuracy
    model_error: float = 0.0
    """Relative 80 % half width of `tokens_per_step - 1` on top of the sample sizes, for what the independence
    of positions misses."""
    of_mean: bool = False
    """Whether a chain's rates (the first perhaps apart) are one number, solved from a mean length."""
    guess: Guess | None = None
    """From which draft on they were not measured."""

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

    def carried_on(self, fall: Fall) -> ShapedAcceptance:
        """With the guessed rates of further drafts (T9), where a chain's can be carried on."""
        from medusa_sim.acceptance.deeper import carried_on  # a tree needs none of it

        further = None if self.guess else carried_on(self.heads, fall, of_mean=self.of_mean)
        return self if further is None else replace(self, heads=further[0], guess=further[1])

    def full_errors(
        self, tokens_per_step: FloatArray, errors: FloatArray, drafts: IntArray
    ) -> tuple[FloatArray, FloatArray]:
        """Tokens (fewer, more) of 80 % of trees over these heads that emit so many tokens, `drafts` deep.

        errors: what sample sizes alone leave open; `model_error` and the guess of further drafts join it.
        """
        half = np.hypot(errors, self.model_error * (tokens_per_step - 1.0))
        fewer, more = (np.hypot(half, by[drafts]) for by in self._guessed)
        return fewer, more

    def band_of(self, tokens_per_step: FloatArray, errors: FloatArray, drafts: IntArray) -> Band:
        """The interval of `full_errors`, never above a token a draft and the target's own."""
        fewer, more = self.full_errors(tokens_per_step, errors, drafts)
        most = np.maximum(drafts + 1.0, tokens_per_step)
        return Band(np.maximum(tokens_per_step - fewer, 1.0), np.minimum(tokens_per_step + more, most))

    @cached_property
    def _guessed(self) -> tuple[FloatArray, FloatArray]:
        if self.guess is None:
            return (np.zeros(self.heads.depth + 1),) * 2
        from medusa_sim.acceptance.deeper import guessed_band

        return guessed_band(self.heads.conditional()[:, 0], self.guess)

    @cached_property
    def _errors(self) -> FloatArray:
        return token_errors(self.order.paths, self.order.gains, self.heads)

    def tokens_per_step(self, candidates: npt.ArrayLike) -> FloatArray:
        """Mean tokens emitted per step with the optimal tree, of the shape of `candidates`."""
        counts = checked_candidates(candidates, self.candidates_max, self.name)
        return np.asarray(self.order.tokens_per_step[counts.astype(np.int64) - 1])

    def band(self, candidates: npt.ArrayLike) -> Band:
        """80 % interval from the sample sizes and `model_error`; both exactly 1 at one candidate."""
        value = self.tokens_per_step(candidates)
        counts = np.asarray(candidates, dtype=np.int64)
        drafts = np.minimum(counts - 1, self.heads.depth)
        return self.band_of(value, self._errors[counts - 1], drafts)
