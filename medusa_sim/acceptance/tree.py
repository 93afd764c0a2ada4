"""Candidate trees: which continuations one verification step carries (Medusa paper 2.1.2, 2.3.3).

A path is a tuple of 0-based ranks, one per head from the first: `(0, 2)` is the best guess of head 0
followed by the third-best of head 1. The root (the token the target itself emits) is implied and
never listed, so a tree of 63 paths verifies 64 candidates.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from medusa_sim.arrays import BoolArray, FloatArray, IntArray
from medusa_sim.errors import CoverageError, SpecError
from medusa_sim.outside.limits import POSITIONS, TREE_NODES

Path = tuple[int, ...]

SHOWN_PATH_ITEMS = 12
"""A path in an error message is cut after this many ranks so that the message stays one line."""
MOST_RANK = 4095
"""No head is asked for more guesses; a file with a larger rank is wrong, and its tables would fill memory."""


def _shown(path: Sequence[object]) -> str:
    items = ", ".join(str(rank) for rank in path[:SHOWN_PATH_ITEMS])
    return f"[{items}{', ...' if len(path) > SHOWN_PATH_ITEMS else ''}]"


def _checked_path(path: object, where: str) -> Path:
    if not isinstance(path, list | tuple) or not path:
        raise SpecError(
            f"{where}: a path is a non-empty list of ranks, given {str(path)[:60]}; the root is implied"
        )
    for rank in path:
        if isinstance(rank, bool) or not isinstance(rank, int | np.integer) or rank < 0:
            raise SpecError(
                f"{where}: path {_shown(path)} must hold whole ranks from 0, given {str(rank)[:20]}"
            )
        if rank > MOST_RANK:
            raise SpecError(f"{where}: rank {str(rank)[:20]}; at most {MOST_RANK:,} is allowed")
    return tuple(int(rank) for rank in path)


def check_size(nodes: int, depth: int, where: str) -> None:
    """Raises SpecError for a tree that no engine verifies: its paths would fill memory."""
    if nodes > TREE_NODES:
        raise SpecError(f"{where}: {nodes:,} candidates; at most {TREE_NODES:,} are allowed")
    if depth > POSITIONS:
        raise SpecError(f"{where}: a path of {depth:,} drafts; at most {POSITIONS} in a row are allowed")


@dataclass(frozen=True)
class CandidateTree:
    """A prefix-closed set of paths, in breadth-first order (by depth, then by rank).

    Node 0 is the root; node i + 1 is `paths[i]`. Build one with `from_paths`, `cartesian` or `chain`:
    they check; the constructor does not.
    """

    paths: tuple[Path, ...]

    @classmethod
    def from_paths(
        cls,
        paths: Iterable[Sequence[int]],
        *,
        leaves_only: bool = False,
        where: str = "tree",
    ) -> CandidateTree:
        """The tree of those paths, in any order; no path at all is the root alone.

        `leaves_only`: the list names leaves and the prefixes are to be added (some engines write it
        so); without it a missing prefix is an error, because a silently grown tree costs more
        candidates than its author counted. `where` names the file in errors.

        Raises:
            SpecError: not a list of ranks, a duplicate, a missing prefix, a rank or depth too large.
        """
        checked = [_checked_path(path, where) for path in paths]
        check_size(len(checked), max(map(len, checked), default=0), where)
        unique = set(checked)
        if len(unique) < len(checked):
            double = next(path for path, times in Counter(checked).items() if times > 1)
            raise SpecError(f"{where}: path {_shown(double)} is listed twice; list each candidate once")
        if leaves_only:
            unique = {path[:length] for path in unique for length in range(1, len(path) + 1)}
            check_size(len(unique), 0, where)
        for path in sorted(unique, key=lambda p: (len(p), p)):
            if len(path) > 1 and path[:-1] not in unique:
                raise SpecError(
                    f"{where}: path {_shown(path)} lacks its prefix {_shown(path[:-1])}; "
                    "list it, or add --leaves-only where the list names leaves alone"
                )
        return cls(tuple(sorted(unique, key=lambda p: (len(p), p))))

    @classmethod
    def cartesian(cls, branches: Sequence[int]) -> CandidateTree:
        """All combinations of the best `branches[k]` guesses of head k: `s_1 x ... x s_K` (2.1.2).

        Raises:
            SpecError: a branching factor below 1.
        """
        if any(isinstance(s, bool) or not isinstance(s, int | np.integer) or s < 1 for s in branches):
            raise SpecError(f"branching factors {_shown(branches)}: whole numbers from 1 are allowed")
        levels = (
            itertools.product(*(range(s) for s in branches[:depth])) for depth in range(1, len(branches) + 1)
        )
        return cls(tuple(path for level in levels for path in level))

    @classmethod
    def chain(cls, length: int) -> CandidateTree:
        """The best guess of each of the first `length` heads; `length` = 0 is plain decoding.

        Raises:
            SpecError: a negative length.
        """
        if length < 0:
            raise SpecError(f"chain length {length}: whole numbers from 0 are allowed")
        return cls.cartesian([1] * length)

    @property
    def candidates(self) -> int:
        """Tokens that one verification step processes: nodes and the root."""
        return len(self.paths) + 1

    @property
    def depth(self) -> int:
        """Length of the longest path; the number of heads that the tree uses."""
        return len(self.paths[-1]) if self.paths else 0

    @property
    def ranks_used(self) -> int:
        """One more than the largest rank in the tree."""
        return max((max(path) for path in self.paths), default=-1) + 1

    @cached_property
    def parents(self) -> IntArray:
        """(candidates,) index of each node's parent; -1 for the root."""
        index = {path: i for i, path in enumerate(((), *self.paths))}
        return np.array([-1, *(index[path[:-1]] for path in self.paths)], dtype=np.int64)

    @property
    def children(self) -> list[list[int]]:
        """Nodes below each node, best guess first."""
        below: list[list[int]] = [[] for _ in range(self.candidates)]
        for node, parent in enumerate(self.parents[1:].tolist(), 1):
            below[parent].append(node)
        return below

    @cached_property
    def depths(self) -> IntArray:
        """(candidates,) distance from the root. Also the offset of each node's position id."""
        return np.array([0, *(len(path) for path in self.paths)], dtype=np.int64)

    @cached_property
    def ranks(self) -> IntArray:
        """(candidates,) rank of each node among its head's guesses; -1 for the root."""
        return np.array([-1, *(path[-1] for path in self.paths)], dtype=np.int64)

    @cached_property
    def mask(self) -> BoolArray:
        """(candidates, candidates) True where a row's node sees a column's: itself and its ancestors."""
        mask = np.eye(self.candidates, dtype=np.bool_)
        for level in range(1, self.depth + 1):
            nodes = np.flatnonzero(self.depths == level)
            mask[nodes] |= mask[self.parents[nodes]]
        return mask

    @cached_property
    def leaves(self) -> IntArray:
        """(leaves,) indices of the nodes without children; the root itself in an empty tree."""
        has_child = np.zeros(self.candidates, dtype=np.bool_)
        has_child[self.parents[1:]] = True
        return np.flatnonzero(~has_child)

    @cached_property
    def nodes_per_depth(self) -> IntArray:
        """(depth + 1,) number of nodes at each depth, the root first."""
        return np.bincount(self.depths, minlength=self.depth + 1).astype(np.int64)


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
