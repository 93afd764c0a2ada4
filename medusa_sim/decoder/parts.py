"""Modules of which a model is made, called without hooks and looked up without a search.

Both cost as much as a small product, and a small model has some seventy parts a token.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from torch import Tensor, nn
from torch.nn import functional


class Part(nn.Module):
    """A module whose call is its forward, and nothing around it."""

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        if "forward" in vars(cls):
            cls.__call__ = vars(cls)["forward"]  # type: ignore[method-assign]

    @property
    def parts(self) -> Collection[Any]:
        """Its modules in the order in which they were made (an adapter takes the place of what it wraps)."""
        return self._modules.values()


class Linear(nn.Linear):
    """A linear layer whose call is the product."""

    def __call__(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        own: Any = self._parameters
        return functional.linear(x, own["weight"], own["bias"])


class Embedding(nn.Embedding):
    """An embedding whose call is the look-up."""

    def __call__(self, tokens: Tensor) -> Tensor:
        """(...) -> (..., hidden)."""
        own: Any = self._parameters
        return functional.embedding(tokens, own["weight"])
