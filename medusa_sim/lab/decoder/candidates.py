"""The candidates of one step: drafted tokens in a tree, and what they were drawn from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from medusa_sim.lab.decoder.attention import ancestor_mask

RejectionRule = Literal["recursive", "multi-round", "k-seq"]


class TreeShape:
    """A tree on the host: the parent of every node, and its children as they are to be tried.

    -1 is the parent of the root and of unused nodes; a parent comes before its children.
    """

    __slots__ = ("children", "parents")

    def __init__(self, parents: list[int]) -> None:
        self.parents = parents
        self.children: list[list[int]] = [[] for _ in parents]
        for node, parent in enumerate(parents):
            if parent >= 0:
                self.children[parent].append(node)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """Candidates of one step: n nodes, the root (already emitted, not yet in the cache) first."""

    tokens: Tensor
    """(batch, n)."""
    trees: Sequence[TreeShape]
    """Of each sequence."""
    depths: Tensor
    """(batch, n), or (n,) where all trees are alike."""
    mask: Tensor
    """(batch, n, n), or (n, n): which nodes each node sees."""
    distributions: Tensor | None = None
    """(batch, n, vocab) fp64: what the children of a node were drawn from; None: drafts are certain."""
    rejection_rule: RejectionRule = "recursive"
    """How acceptance by rejection treats siblings."""


def draft_of(
    tokens: Tensor,
    parents: Tensor,
    distributions: Tensor | None = None,
    rejection_rule: RejectionRule = "recursive",
) -> Draft:
    """A draft whose trees differ between sequences: mask and depths from the parents (batch, n)."""
    mask = ancestor_mask(parents)
    return Draft(
        tokens=tokens,
        trees=[TreeShape(each) for each in parents.tolist()],
        depths=mask.sum(-1) - 1,
        mask=mask,
        distributions=distributions,
        rejection_rule=rejection_rule,
    )
