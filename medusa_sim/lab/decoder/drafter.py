"""What proposes the tree of each step; a drafter that proposes none."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from medusa_sim.lab.decoder.candidates import Draft, TreeShape
from medusa_sim.lab.decoder.distributions import Draws
from medusa_sim.lab.decoder.generation import Generation


class Drafter:
    """Proposes the tree of each step."""

    nodes: int
    """Tokens of the largest tree, root included."""

    def begin(self, prompts: Sequence[Sequence[int]], capacity: int, draws: Sequence[Draws]) -> None:
        """Called once, after the arguments were checked and before the first token."""

    def propose(self, roots: Tensor, hidden: Tensor, sequences: Sequence[Generation]) -> Draft:
        """A tree on each root (batch,); `hidden` (batch, hidden) is the target's, which yielded the root."""
        raise NotImplementedError

    def commit(self, paths: Sequence[Sequence[int]]) -> None:
        """Nodes of each tree that the target's cache kept (see `KVCache.keep`)."""


class NoDrafter(Drafter):
    """Autoregressive decoding: the root alone."""

    nodes = 1

    def __init__(self) -> None:
        self._shape = TreeShape([-1])
        self._alone: tuple[Tensor, Tensor] | None = None

    def propose(self, roots: Tensor, hidden: Tensor, sequences: Sequence[Generation]) -> Draft:
        """As `Drafter.propose`."""
        if self._alone is None:
            depths = torch.zeros(1, dtype=torch.long, device=roots.device)
            self._alone = depths, torch.ones(1, 1, dtype=torch.bool, device=roots.device)
        depths, mask = self._alone
        return Draft(tokens=roots.unsqueeze(1), trees=[self._shape] * len(roots), depths=depths, mask=mask)
