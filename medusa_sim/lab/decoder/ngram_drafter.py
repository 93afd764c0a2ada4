"""Drafting by look-up: what followed an earlier copy of the text's last tokens (prompt look-up)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import numpy as np
import torch
from torch import Tensor

from medusa_sim.acceptance.tree import CandidateTree
from medusa_sim.errors import UsageError
from medusa_sim.lab.decoder.arguments import Match
from medusa_sim.lab.decoder.candidates import Draft, TreeShape
from medusa_sim.lab.decoder.drafter import Drafter
from medusa_sim.lab.decoder.generation import Generation


class NgramDrafter(Drafter):
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
        self.tree, self.nodes = CandidateTree.chain(length), length + 1

    def propose(self, roots: Tensor, hidden: Tensor, sequences: Sequence[Generation]) -> Draft:
        """A chain per sequence; unused nodes where nothing was found."""
        matches = [
            continuation(each.prompt + each.token_ids, self.length, self.ngram_max, self.match)
            for each in sequences
        ]
        for sequence, drafts in zip(sequences, matches, strict=True):
            sequence.found_lengths.append(len(drafts))
        device = roots.device
        drafted = torch.tensor([f + [0] * (self.length - len(f)) for f in matches], device=device)
        trees = [
            TreeShape([node - 1 if node <= len(f) else -1 for node in range(self.nodes)]) for f in matches
        ]
        order = torch.arange(self.nodes, device=device)
        mask = torch.from_numpy(self.tree.mask).to(device)
        return Draft(tokens=torch.cat((roots[:, None], drafted), 1), trees=trees, depths=order, mask=mask)


def continuation(text: Sequence[int], length: int, ngram_max: int, match: Match = "earliest") -> list[int]:
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
