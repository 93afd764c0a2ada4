"""How often each guess of each head is right, and what a tree of guesses is worth.

`a_k^(i)` of the Medusa paper (2.3.3): the probability that rank i of head k is exactly the token that
the target emits. Heads and ranks are 0-based, head 0 guesses the token after the root.

The best tree of every size in one pass (2.3.3 and appendix C): a node adds exactly its own probability to the
expected tokens, and no child is likelier than its parent, so taking the likeliest node next gives the best
tree of each size: a heap, not a search.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from medusa_sim.acceptance.tree import CandidateTree, Path, TreeOrder
from medusa_sim.arrays import FloatArray
from medusa_sim.errors import CoverageError, SpecError

NORMAL_90TH = 1.2815515655446004
"""Standard normal quantile at 0.9: mean +- this many standard errors holds 80 %."""
SUM_TOLERANCE = 1e-6
"""Accuracies are read from text with six digits or so; a head's sum may exceed 1 by this much."""


@dataclass(frozen=True)
class HeadAccuracy:
    """Accuracies `a[k, i]` of exactly rank i of head k, zero where a head has fewer ranks.

    `labels`: (heads,) tokens each head was scored on (later heads have fewer), or None if unknown.
    `correlation`: the lift rho per earlier correct head, see `conditional`.
    `shared`: every depth has the accuracies of one measurement (a draft model's children).
    """

    accuracy: FloatArray
    labels: FloatArray | None = None
    correlation: float = 0.0
    shared: bool = False

    @classmethod
    def checked(
        cls,
        accuracy: npt.ArrayLike,
        labels: npt.ArrayLike | None = None,
        *,
        correlation: float = 0.0,
        where: str = "head accuracies",
    ) -> HeadAccuracy:
        """Accuracies (heads, ranks) after checking them.

        Raises:
            SpecError: no rows, a value outside [0, 1] or NaN, a head summing beyond 1, bad labels, or a
                correlation that would push a head's total probability above 1.
        """
        a = np.array(accuracy, dtype=np.float64)
        if a.ndim != 2 or a.size == 0:
            raise SpecError(
                f"{where}: a table of heads x ranks with at least one entry is needed, given {a.shape}"
            )
        outside = ~((a >= 0.0) & (a <= 1.0))
        if np.any(outside):
            k, i = (int(index[0]) for index in np.nonzero(outside))
            raise SpecError(f"{where}: head {k} rank {i} is {a[k, i]:g}, an accuracy lies in 0..1")
        total = a.sum(axis=1)
        if np.any(total > 1.0 + SUM_TOLERANCE):
            k = int(np.argmax(total))
            raise SpecError(
                f"{where}: head {k} sums to {total[k]:.6g}, at most one rank can be right; "
                "give the accuracy of exactly each rank (cumulative tables have their own loader)"
            )
        counts = None
        if labels is not None:
            counts = np.array(labels, dtype=np.float64)
            if counts.shape != (a.shape[0],) or not np.all(np.isfinite(counts) & (counts >= 1.0)):
                raise SpecError(f"{where}: labels must be one count from 1 per head ({a.shape[0]} heads)")
        heads = cls(a, counts)
        return heads.with_correlation(correlation, where=where) if correlation else heads

    @classmethod
    def from_cumulative(
        cls, top_k: npt.ArrayLike, labels: npt.ArrayLike | None = None, *, where: str = "head accuracies"
    ) -> HeadAccuracy:
        """From (heads, ranks) top-1, top-2, ... accuracies: rank i alone is top-(i+1) minus top-i (2.3.3).

        Raises:
            SpecError: a row that falls (then it is not cumulative) or leaves [0, 1].
        """
        c = np.array(top_k, dtype=np.float64)
        if c.ndim == 2 and c.shape[1] > 1 and np.any(np.diff(c, axis=1) < 0.0):
            k = int(np.nonzero(np.diff(c, axis=1) < 0.0)[0][0])
            raise SpecError(f"{where}: head {k} falls from one top-k to the next; cumulative accuracies rise")
        return cls.checked(np.diff(c, axis=1, prepend=0.0) if c.ndim == 2 else c, labels, where=where)

    @property
    def depth(self) -> int:
        """Number of heads: the longest path of a tree over them."""
        return int(self.accuracy.shape[0])

    @property
    def ranks(self) -> int:
        """Number of ranks per head, a fitted tail included."""
        return int(self.accuracy.shape[1])

    @property
    def correlation_max(self) -> float:
        """Largest correlation that keeps every head's total probability at 1 or below: min_k -ln C_k / k.

        C_k is the sum over ranks of head k (its coverage).
        """
        coverage = self.accuracy.sum(axis=1)[1:]
        later = np.arange(1, self.depth)
        used = coverage > 0.0
        return float(np.min(-np.log(np.minimum(coverage[used], 1.0)) / later[used], initial=np.inf))

    def with_correlation(self, correlation: float, *, where: str = "head accuracies") -> HeadAccuracy:
        """The same heads with lift `correlation` (0: independent, the paper's assumption).

        Raises:
            SpecError: negative, not finite, or beyond `correlation_max`.
        """
        if not 0.0 <= correlation <= self.correlation_max + SUM_TOLERANCE:
            raise SpecError(
                f"{where}: correlation {correlation:g} is outside 0..{self.correlation_max:.3f}; "
                "beyond it a head's total probability would exceed 1"
            )
        return replace(self, correlation=float(correlation))

    def first(self, heads: int) -> HeadAccuracy:
        """Only the first `heads` heads in use.

        Raises:
            CoverageError: more heads than there are, or none.
        """
        if not 1 <= heads <= self.depth:
            raise CoverageError(f"{heads} heads asked for, accuracies are known for 1..{self.depth}")
        labels = None if self.labels is None else self.labels[:heads]
        return replace(self, accuracy=self.accuracy[:heads], labels=labels)

    def conditional(self) -> FloatArray:
        """(heads, ranks) probability of each guess given that the path before it is right.

        `a_k^(i) exp(rho k)`: right guesses come together, because some contexts are easy for every
        head. A log-normal difficulty common to the heads of a step with variance rho multiplies the
        probability of a path of depth d by `exp(rho d (d - 1) / 2)`, which is this lift taken head
        by head; `correlation_max` bounds where it stays a probability. rho = 0 is the product of 2.3.3.
        """
        return np.asarray(self.accuracy * np.exp(self.correlation * np.arange(self.depth))[:, None])

    def with_tail(self, ranks: int) -> HeadAccuracy:
        """Extended to `ranks` by a power law `a^(i) = c (i + 1)^-s` per head, fitted after rank 0.

        Least squares on logarithms of ranks 1.. of each head; a head's sum is kept at or below 1 by
        scaling the added ranks. The share that the tail adds is E(with_tail) - E(with_zeros).

        Raises:
            CoverageError: fewer than three measured ranks with non-zero accuracy in a head.
        """
        if ranks <= self.ranks:
            return self
        positive = np.all(self.accuracy[:, 1:] > 0.0, axis=1)
        if self.ranks < 3 or not np.all(positive):
            raise CoverageError(
                f"a tail needs at least 3 measured ranks above 0 in every head, given {self.ranks}; "
                "measure more ranks or extend with zeros"
            )
        log_rank = np.log(np.arange(2, self.ranks + 1))
        log_a = np.log(self.accuracy[:, 1:])
        centred = log_rank - log_rank.mean()
        slope = np.minimum(log_a @ centred / (centred @ centred), 0.0)
        offset = log_a.mean(axis=1) - slope * log_rank.mean()
        new_rank = np.log(np.arange(self.ranks + 1, ranks + 1))
        tail = np.minimum(np.exp(offset[:, None] + slope[:, None] * new_rank), self.accuracy[:, -1:])
        room = np.maximum(1.0 - self.accuracy.sum(axis=1), 0.0)
        tail *= np.minimum(1.0, room / tail.sum(axis=1))[:, None]
        return replace(self, accuracy=np.hstack([self.accuracy, tail]))

    def with_zeros(self, ranks: int) -> HeadAccuracy:
        """Extended to `ranks` with zeros: the lower bound on what a wider tree gives."""
        missing = max(ranks - self.ranks, 0)
        return replace(self, accuracy=np.pad(self.accuracy, ((0, 0), (0, missing))))


def node_probabilities(tree: CandidateTree, heads: HeadAccuracy) -> FloatArray:
    """(candidates,) probability that each node is accepted; 1 for the root.

    The product of `a_k^(i)` along the path (2.3.3), lifted by the correlation if there is one.

    Raises:
        CoverageError: the tree is deeper than the heads or uses a rank without an accuracy.
    """
    if tree.depth > heads.depth:
        raise CoverageError(f"the tree has depth {tree.depth}, accuracies are known for {heads.depth} heads")
    if tree.ranks_used > heads.ranks:
        raise CoverageError(
            f"the tree uses rank {tree.ranks_used - 1}, accuracies are known for ranks 0..{heads.ranks - 1}; "
            "extend them with --tail fit or zeros"
        )
    accuracy = np.ones(tree.candidates)
    accuracy[1:] = heads.conditional()[tree.depths[1:] - 1, tree.ranks[1:]]
    probability = accuracy
    for level in range(1, tree.depth + 1):
        nodes = np.flatnonzero(tree.depths == level)
        probability[nodes] *= probability[tree.parents[nodes]]
    return probability


def expected_tokens_per_step(tree: CandidateTree, heads: HeadAccuracy) -> float:
    """1 + sum over nodes of their probability (2.3.3): tokens emitted per step, the root's own included.

    Raises:
        CoverageError: see `node_probabilities`.
    """
    return float(node_probabilities(tree, heads).sum())


def tokens_per_step_error(tree: CandidateTree, heads: HeadAccuracy) -> float:
    """80 % half width of `expected_tokens_per_step` from the sample sizes alone; 0 if they are unknown."""
    return float(token_errors(tree.paths, node_probabilities(tree, heads)[1:], heads)[-1])


def token_errors(paths: Sequence[Path], probability: FloatArray, heads: HeadAccuracy) -> FloatArray:
    """(nodes + 1,) `tokens_per_step_error` of the trees that grow from the root by these nodes in turn.

    probability: that each node is accepted. Delta method: the ranks of a head are multinomial with its own
    number of labels; heads are independent samples unless they share one. Model error (independence of
    positions) is not in it.
    """
    if heads.labels is None:
        return np.zeros(len(paths) + 1)
    # a node is a share of what every guess on its path gains
    places = [(node, level, rank) for node, path in enumerate(paths, 1) for level, rank in enumerate(path)]
    gain = np.zeros((len(paths) + 1, *heads.accuracy.shape))
    node, level, rank = np.asarray(places, dtype=np.int64).reshape(-1, 3).T
    gain[node, level, rank] = probability[node - 1]
    gain = gain.cumsum(axis=0)
    accuracy, labels = heads.accuracy, heads.labels
    if heads.shared:
        gain, accuracy, labels = gain.sum(axis=1, keepdims=True), accuracy[:1], labels[:1]
    # gain / a = dE/da; multinomial variance (sum g^2 a - (sum g a)^2) / labels, with g = gain / a
    slope = np.divide(gain, accuracy, out=np.zeros_like(gain), where=accuracy > 0.0)
    variance = ((slope**2 * accuracy).sum(axis=-1) - gain.sum(axis=-1) ** 2) / labels
    return np.asarray(NORMAL_90TH * np.sqrt(np.maximum(variance, 0.0).sum(axis=-1)))


def chain_accuracy(
    rates: Sequence[float], trials: Sequence[float] | None, *, conditional: bool, where: str
) -> HeadAccuracy:
    """A chain's rates as conditional accuracies (positions, 1).

    `trials`: per position, how often it was tried. Unconditional rates are all counted over the steps;
    position k is tried in `steps rate[k - 1]` of them.

    Raises:
        SpecError: a rate outside [0, 1], or unconditional rates that rise.
    """
    rate = np.array(rates, dtype=np.float64)
    if rate.size == 0 or not np.all((rate >= 0.0) & (rate <= 1.0)):
        raise SpecError(f"{where}: every position needs a rate in 0..1, given {list(rates)[:12]}")
    counts = None if trials is None else np.array(trials, dtype=np.float64)
    if not conditional:
        before = np.concatenate([[1.0], rate[:-1]])
        if np.any(rate > before):
            k = int(np.argmax(rate > before))
            raise SpecError(
                f"{where}: the share of steps rises from {before[k]:g} at draft {k} to {rate[k]:g} at draft "
                f"{k + 1}, which rates given the draft before may do and shares of steps never"
            )
        rate = np.divide(rate, before, out=np.zeros_like(rate), where=before > 0.0)
        counts = None if counts is None else np.maximum(counts * before, 1.0)
    return HeadAccuracy.checked(rate[:, None], counts, where=where)


def optimal_order(heads: HeadAccuracy, candidates_max: int, width: int | None = None) -> TreeOrder:
    """Every optimal tree up to `candidates_max` candidates, in O(candidates log candidates).

    width: nodes of a level that have children, at most. The likeliest of each level have them, which is best
    at every size: a child's gain is its parent's times one that all parents share. It is the tree that
    SGLang grows with this eagle-topk (select_top_k_tokens and organize_draft_results of srt/speculative).

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
    depth_max, ranks_max = heads.depth, heads.ranks

    # entry: (-probability, depth, path, place of the last guess among its head's, parent's probability)
    heap: list[tuple[float, int, Path, int, float]] = [(-accuracy[0][0], 1, (ranks[0][0],), 0, 1.0)]
    paths: list[Path] = []
    gains: list[float] = []
    unexpanded = [candidates_max if width is None else width] * depth_max  # nodes that may have children yet
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
        if depth < depth_max and unexpanded[depth]:  # the first child
            unexpanded[depth] -= 1
            child = (*path, ranks[depth][0])
            heapq.heappush(heap, (negative * accuracy[depth][0], depth + 1, child, 0, -negative))
    return TreeOrder(tuple(paths), np.array(gains, dtype=np.float64))


def chain_tokens_per_step(heads: HeadAccuracy) -> FloatArray:
    """(heads + 1,) expected tokens per step of the best chain of 0, 1, ... guesses (one per head)."""
    return np.concatenate([[1.0], 1.0 + np.cumsum(np.cumprod(heads.conditional().max(axis=1)))])


def rates_of_mean(tokens_per_step: float, drafts: int, first: float | None = None) -> FloatArray:
    """(drafts,) conditional rates, the same of every draft, of a chain that emits so many tokens a step.

    Solved from 1 + r + ... + r^drafts = tokens_per_step, at most 1. first: the first draft's own rate.

    >>> rates_of_mean(1.75, 2), rates_of_mean(1.84, 2, first=0.6)
    (array([0.5, 0.5]), array([0.6, 0.4]))
    """
    from scipy.optimize import brentq

    def rates(rate: float) -> FloatArray:
        return np.array([rate if first is None else first, *[rate] * (drafts - 1)])

    def beyond(rate: float) -> float:
        return 1.0 + float(rates(rate).cumprod().sum()) - tokens_per_step

    return rates(1.0 if beyond(1.0) <= 0.0 else float(brentq(beyond, 0.0, 1.0, xtol=1e-15)))


def best_chain(heads: HeadAccuracy, length: int) -> CandidateTree:
    """The likeliest guess of each of the first `length` heads, as a tree without branches.

    Raises:
        CoverageError: more guesses than heads.
    """
    if not 0 <= length <= heads.depth:
        raise CoverageError(f"a chain of {length} asked for, accuracies are known for 0..{heads.depth} heads")
    path = tuple(int(rank) for rank in heads.conditional().argmax(axis=1)[:length])
    return CandidateTree(tuple(path[:depth] for depth in range(1, length + 1)))


def tokens_per_step_by_heads(heads: HeadAccuracy, candidates: int) -> FloatArray:
    """(heads,) expected tokens per step of the optimal tree of that size from the first 1, 2, ... heads.

    Fewer heads than candidates can use give a smaller tree; its value is what counts.
    """
    return np.array(
        [
            optimal_order(heads.first(count), candidates).tokens_per_step[-1]
            for count in range(1, heads.depth + 1)
        ]
    )


def heads_worth_running(heads: HeadAccuracy, candidates: int) -> int:
    """Fewest heads whose optimal tree is within 1 % of what all heads give.

    The rest cost nothing if they are not run (the paper: five at most, three or four may be enough).
    """
    tokens = tokens_per_step_by_heads(heads, candidates)
    return int(np.argmax(tokens >= 0.99 * tokens[-1])) + 1
