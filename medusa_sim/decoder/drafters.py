"""Drafters without a model of their own: Medusa heads over a fixed candidate tree, and prompt lookup.

The heads are those of the Medusa paper (sections 2.1.1 and 2.1.2); prompt lookup finds the text in itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import numpy as np
import torch
from torch import Tensor

from medusa_sim.acceptance.tree import CandidateTree
from medusa_sim.arrays import IntArray
from medusa_sim.decoder.accept import Draft, Draws, TreeShape
from medusa_sim.decoder.arguments import Match
from medusa_sim.decoder.generate import Generation
from medusa_sim.decoder.heads import MedusaHeads
from medusa_sim.decoder.model import Llama
from medusa_sim.errors import UsageError


class MedusaDrafter:
    """Node (r_0, ..., r_k) of the tree carries rank r_k of head k at the root's hidden state."""

    def __init__(self, model: Llama, heads: MedusaHeads, tree: CandidateTree) -> None:
        check_tree(tree, heads=heads.count, vocab=model.config.vocab_size)
        self.model, self.heads, self.tree = model, heads, tree
        device = model.device
        self.shape = TreeShape(tree.parents.tolist())
        self.depths = torch.from_numpy(tree.depths).to(device)
        self.mask = torch.from_numpy(tree.mask).to(device)
        # Where a node's token lies among (heads x ranks) guesses.
        self._guess = (self.depths[1:] - 1) * tree.ranks_used + torch.from_numpy(tree.ranks).to(device)[1:]

    @property
    def nodes(self) -> int:
        """Candidates of the tree."""
        return self.tree.candidates

    def begin(self, prompts: Sequence[Sequence[int]], capacity: int, draws: Sequence[Draws]) -> None:
        """Nothing to prepare."""

    def propose(self, roots: Tensor, hidden: Tensor, sequences: Sequence[Generation]) -> Draft:
        """The tree filled with the heads' best guesses."""
        tokens = roots.unsqueeze(1)
        if self.nodes > 1:
            logits = self.heads(hidden, self.model.lm_head, self.tree.depth)  # (heads, batch, vocab)
            best = logits.topk(self.tree.ranks_used, dim=-1).indices.transpose(0, 1).flatten(1)
            tokens = torch.cat((tokens, best.index_select(1, self._guess)), dim=1)
        return Draft(tokens=tokens, parents=self.shape, depths=self.depths, mask=self.mask)

    def commit(self, paths: Sequence[Sequence[int]]) -> None:
        """The heads keep no state."""


def check_tree(tree: CandidateTree, *, heads: int, vocab: int) -> None:
    """Raises UsageError for a tree deeper than there are heads or wider than the vocabulary."""
    if tree.depth > heads:
        raise UsageError(
            f"the tree is {tree.depth} deep, the checkpoint has {heads} Medusa heads; "
            f"use a tree of depth {heads} or less (medusa-sim tree) or another checkpoint"
        )
    if tree.ranks_used > vocab:
        raise UsageError(f"the tree uses rank {tree.ranks_used - 1}, the vocabulary has {vocab} tokens")


class NgramDrafter:
    """What followed an earlier copy of the text's last n tokens, longest n first.

    `match`: which copy. The earliest (as transformers has it) has the longer continuation, the latest
    may be cut off by the end of the text.
    """

    def __init__(self, *, length: int, ngram_max: int = 3, match: Match = "earliest") -> None:
        if length < 1 or ngram_max < 1:
            raise UsageError(f"n-gram length {length} and size {ngram_max} must be at least 1")
        if match not in get_args(Match):
            raise UsageError(f"match {match!r}: earliest or latest is needed")
        self.length, self.ngram_max, self.match = length, ngram_max, match
        self.tree = CandidateTree.chain(length)
        self._texts: list[IntArray] = []
        self._lengths: list[int] = []

    @property
    def nodes(self) -> int:
        """Nodes of the chain, root included."""
        return self.length + 1

    def begin(self, prompts: Sequence[Sequence[int]], capacity: int, draws: Sequence[Draws]) -> None:
        """Copies the prompts into arrays that the texts grow in."""
        self._texts = [np.zeros(capacity, dtype=np.int64) for _ in prompts]
        for text, prompt in zip(self._texts, prompts, strict=True):
            text[: len(prompt)] = prompt
        self._lengths = [len(prompt) for prompt in prompts]

    def propose(self, roots: Tensor, hidden: Tensor, sequences: Sequence[Generation]) -> Draft:
        """A chain per sequence; unused nodes where nothing was found."""
        found = [
            continuation(self._text(b, sequence), self.length, self.ngram_max, self.match)
            for b, sequence in enumerate(sequences)
        ]
        device = roots.device
        drafted = torch.tensor([f + [0] * (self.length - len(f)) for f in found], device=device)
        lengths = torch.tensor([len(f) for f in found], device=device)
        order = torch.arange(self.length + 1, device=device)
        parents = torch.where(order <= lengths[:, None], order - 1, torch.full_like(order, -1))
        mask = torch.from_numpy(self.tree.mask).to(device)
        return Draft(tokens=torch.cat((roots[:, None], drafted), 1), parents=parents, depths=order, mask=mask)

    def commit(self, paths: Sequence[Sequence[int]]) -> None:
        """The text is all there is."""

    def _text(self, b: int, sequence: Generation) -> IntArray:
        """Prompt and new tokens of a sequence, those copied that came since the last step."""
        known = self._lengths[b] - len(sequence.prompt)
        new = sequence.token_ids[known:]
        text, length = self._texts[b], self._lengths[b]
        text[length : length + len(new)] = new
        self._lengths[b] += len(new)
        return text[: self._lengths[b]]


def continuation(
    text: Sequence[int] | IntArray, length: int, ngram_max: int, match: Match = "earliest"
) -> list[int]:
    """Up to `length` tokens that followed an earlier copy of the last n tokens, largest n first."""
    tokens = np.asarray(text, dtype=np.int64)
    for size in range(min(ngram_max, len(tokens) - 1), 0, -1):
        last = len(tokens) - size  # where the pattern itself starts
        is_copy = tokens[:last] == tokens[last]
        for i in range(1, size):
            is_copy &= tokens[i : last + i] == tokens[last + i]
        first = int(is_copy.argmax()) if match == "earliest" else last - 1 - int(is_copy[::-1].argmax())
        if is_copy[first]:
            return [int(token) for token in tokens[first + size : first + size + length]]
    return []
