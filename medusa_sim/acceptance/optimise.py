"""The best candidate tree of every size in one pass (Medusa paper 2.3.3 and appendix C).

A node adds exactly its own probability to the expected tokens, and no child is likelier than its
parent, so taking the likeliest node next gives the best tree of each size: a heap, not a search.

`ShapedAcceptance`: a profile that knows shapes, so that the best tree of each size is known as well.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from medusa_sim.acceptance.curve import checked_candidates
from medusa_sim.acceptance.heads import SUM_TOLERANCE, HeadAccuracy, token_errors
from medusa_sim.acceptance.tree import CandidateTree, Path
from medusa_sim.arrays import FloatArray
from medusa_sim.errors import CoverageError


@dataclass(frozen=True)
class TreeOrder:
    """The nodes of the optimal trees, in the order in which a growing tree takes them.

    The first c - 1 nodes are the optimal tree of c candidates. `tokens_per_step[c - 1]` is its
    expected tokens per step (1 for the root alone), `gains[n]` what node n adds.
    """

    paths: tuple[Path, ...]
    gains: FloatArray

    @property
    def candidates_max(self) -> int:
        """Candidates of the largest tree (all nodes that can be accepted at all, if fewer were found)."""
        return len(self.paths) + 1

    @property
    def tokens_per_step(self) -> FloatArray:
        """(candidates_max,) expected tokens per step of the optimal tree of 1, 2, ... candidates."""
        return np.concatenate([[1.0], 1.0 + np.cumsum(self.gains)])

    def tree(self, candidates: int) -> CandidateTree:
        """The optimal tree of that many candidates (root included).

        Raises:
            CoverageError: more candidates than the order holds.
        """
        if not 1 <= candidates <= self.candidates_max:
            raise CoverageError(
                f"{candidates} candidates asked for, these accuracies allow trees of 1..{self.candidates_max}"
            )
        return CandidateTree(tuple(sorted(self.paths[: candidates - 1], key=lambda p: (len(p), p))))


def optimal_order(heads: HeadAccuracy, candidates_max: int) -> TreeOrder:
    """Every optimal tree up to `candidates_max` candidates, in O(candidates log candidates).

    Guesses with zero accuracy are never taken, so the order may end earlier. Ties go to the shallower
    path, then to the smaller ranks.

    Raises:
        CoverageError: a conditional accuracy above 1, for which the greedy order proves nothing.
    """
    conditional = heads.conditional()
    if np.any(conditional.sum(axis=1) > 1.0 + SUM_TOLERANCE):
        raise CoverageError("conditional accuracies of a head sum to more than 1; lower the correlation")
    by_gain = np.argsort(-conditional, axis=1, kind="stable")
    sorted_gain = np.take_along_axis(conditional, by_gain, axis=1)
    ranks: list[list[int]] = by_gain.tolist()
    accuracy: list[list[float]] = sorted_gain.tolist()
    depth_max, ranks_max = heads.heads, heads.ranks

    # entry: (-probability, depth, path, place of the last guess among its head's, parent's probability)
    heap: list[tuple[float, int, Path, int, float]] = [(-accuracy[0][0], 1, (ranks[0][0],), 0, 1.0)]
    paths: list[Path] = []
    gains: list[float] = []
    while heap and len(paths) < candidates_max - 1:
        negative, depth, path, place, above = heapq.heappop(heap)
        if negative == 0.0:
            break
        paths.append(path)
        gains.append(-negative)
        if place + 1 < ranks_max:  # the next sibling
            level = depth - 1
            sibling = (*path[:-1], ranks[level][place + 1])
            heapq.heappush(heap, (-above * accuracy[level][place + 1], depth, sibling, place + 1, above))
        if depth < depth_max:  # the first child
            child = (*path, ranks[depth][0])
            heapq.heappush(heap, (negative * accuracy[depth][0], depth + 1, child, 0, -negative))
    return TreeOrder(tuple(paths), np.array(gains, dtype=np.float64))


def chain_tokens_per_step(heads: HeadAccuracy) -> FloatArray:
    """(heads + 1,) expected tokens per step of the best chain of 0, 1, ... guesses (one per head)."""
    return np.concatenate([[1.0], 1.0 + np.cumsum(np.cumprod(heads.conditional().max(axis=1)))])


def best_chain(heads: HeadAccuracy, length: int) -> CandidateTree:
    """The likeliest guess of each of the first `length` heads, as a tree without branches.

    Raises:
        CoverageError: more guesses than heads.
    """
    if not 0 <= length <= heads.heads:
        raise CoverageError(f"a chain of {length} asked for, accuracies are known for 0..{heads.heads} heads")
    path = tuple(int(rank) for rank in heads.conditional().argmax(axis=1)[:length])
    return CandidateTree(tuple(path[:depth] for depth in range(1, length + 1)))


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

    @cached_property
    def _errors(self) -> FloatArray:
        return token_errors(self.order.paths, self.order.gains, self.heads)

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
        half = np.hypot(self._errors[counts - 1], self.model_error * (value - 1.0))
        most = np.minimum(counts, self.heads.heads + 1.0)
        return np.asarray(np.maximum(value - half, 1.0)), np.asarray(np.minimum(value + half, most))


def tokens_per_step_by_heads(heads: HeadAccuracy, candidates: int) -> FloatArray:
    """(heads,) expected tokens per step of the optimal tree of that size from the first 1, 2, ... heads.

    Fewer heads than candidates can use give a smaller tree; its value is what counts.
    """
    return np.array(
        [
            optimal_order(heads.first(count), candidates).tokens_per_step[-1]
            for count in range(1, heads.heads + 1)
        ]
    )


def heads_worth_running(heads: HeadAccuracy, candidates: int) -> int:
    """Fewest heads whose optimal tree is within 1 % of what all heads give.

    The rest cost nothing if they are not run (the paper: five at most, three or four may be enough).
    """
    tokens = tokens_per_step_by_heads(heads, candidates)
    return int(np.argmax(tokens >= 0.99 * tokens[-1])) + 1
