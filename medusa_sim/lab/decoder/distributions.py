"""Distributions over tokens, and what is drawn from them.

They are fp64 on the CPU: acceptance must not be decided in half precision. Random decisions of drafting and
acceptance all go through one object, `Draws`, so that tests can enumerate them.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def distribution(logits: Tensor, temperature: float) -> Tensor:
    """softmax(logits / temperature) in fp64 on the CPU; the one-hot argmax at temperature 0.

    logits: (..., vocab).
    """
    wide = logits.detach().to(device="cpu", dtype=torch.float64)
    if temperature == 0.0:
        return torch.zeros_like(wide).scatter_(-1, wide.argmax(-1, keepdim=True), 1.0)
    # Shifted first: a tiny temperature must not make infinities of finite logits.
    return torch.softmax((wide - wide.amax(-1, keepdim=True)) / temperature, dim=-1)


def padded_top(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest values (..., n) in order and their places; -inf and -1 where there are no more."""
    top = values.topk(min(count, values.shape[-1]), dim=-1)
    padding = (0, count - top.values.shape[-1])
    best = functional.pad(top.values, padding, value=-torch.inf)
    return best, functional.pad(top.indices, padding, value=-1).masked_fill(best.isneginf(), -1)


class Draws:
    """Random decisions of one sequence. Each sequence has its own, so a batch does not change its text."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def happens(self, probability: float) -> bool:
        """True with that probability."""
        return float(torch.rand((), dtype=torch.float64, generator=self.generator)) < probability

    def token(self, p: Tensor) -> int:
        """One token from the distribution p (vocab,)."""
        return int(torch.multinomial(p, 1, generator=self.generator))

    def tokens_with_replacement(self, distributions: Tensor, count: int) -> Tensor:
        """(rows, count) independent tokens from each row of distributions (rows, vocab)."""
        return torch.multinomial(distributions, count, replacement=True, generator=self.generator)

    def tokens_without_replacement(self, distributions: Tensor, count: int) -> Tensor:
        """(rows, count) distinct tokens in the order drawn (Gumbel top-k); -1 behind the support's end."""
        return padded_top(distributions.log() + self.gumbel(distributions.shape), count)[1]

    def gumbel(self, shape: torch.Size) -> Tensor:
        """Standard Gumbel variables, fp64."""
        uniform = torch.rand(shape, dtype=torch.float64, generator=self.generator)
        tiny = torch.finfo(torch.float64).tiny
        return -(-uniform.clamp(min=tiny).log()).clamp(min=tiny).log()
