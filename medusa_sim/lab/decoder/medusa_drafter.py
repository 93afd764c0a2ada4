"""Drafting by Medusa heads: the guesses of each head fill a fixed tree (sections 2.1.1 and 2.1.2)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from medusa_sim.acceptance.tree import CandidateTree
from medusa_sim.errors import UsageError
from medusa_sim.lab.decoder.candidates import Draft, TreeShape
from medusa_sim.lab.decoder.drafter import Drafter
from medusa_sim.lab.decoder.generation import Generation
from medusa_sim.lab.decoder.heads import MedusaHeads
from medusa_sim.lab.decoder.model import Llama


class MedusaDrafter(Drafter):
    """Node (r_0, ..., r_k) of the tree carries rank r_k of head k at the root's hidden state."""

    def __init__(self, model: Llama, heads: MedusaHeads, tree: CandidateTree) -> None:
        check_tree(tree, heads=heads.count, vocab=model.config.vocab_size)
        self.model, self.heads, self.tree, self.nodes = model, heads, tree, tree.candidates
        device = model.device
        self.shape = TreeShape(tree.parents.tolist())
        self.depths = torch.from_numpy(tree.depths).to(device)
        self.mask = torch.from_numpy(tree.mask).to(device)
        # Where a node's token lies among (heads x ranks) guesses.
        self._guess = (self.depths[1:] - 1) * tree.ranks_used + torch.from_numpy(tree.ranks).to(device)[1:]

    def propose(self, roots: Tensor, hidden: Tensor, sequences: Sequence[Generation]) -> Draft:
        """The tree filled with the heads' best guesses."""
        tokens = roots.unsqueeze(1)
        if self.nodes > 1:
            logits = self.heads(hidden, self.model.lm_head, self.tree.depth)  # (heads, batch, vocab)
            best = logits.topk(self.tree.ranks_used, dim=-1).indices.transpose(0, 1).flatten(1)
            tokens = torch.cat((tokens, best.index_select(1, self._guess)), dim=1)
        return Draft(tokens=tokens, trees=[self.shape] * len(roots), depths=self.depths, mask=self.mask)


def check_tree(tree: CandidateTree, *, heads: int, vocab: int) -> None:
    """Raises UsageError for a tree deeper than there are heads or wider than the vocabulary."""
    if tree.depth > heads:
        raise UsageError(
            f"the tree is {tree.depth} deep, the checkpoint has {heads} Medusa heads; "
            f"use a tree of depth {heads} or less (medusa-sim tree) or another checkpoint"
        )
    if tree.ranks_used > vocab:
        raise UsageError(f"the tree uses rank {tree.ranks_used - 1}, the vocabulary has {vocab} tokens")
