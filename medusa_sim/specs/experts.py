"""A mixture of experts: which layers have one, how many experts a token takes, how wide they are."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

_Count = Annotated[int, Meta(ge=1, le=100_000)]
_Width = Annotated[int, Meta(ge=1, le=1_000_000)]


class MoE(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The feed-forward part of the mixture-of-experts layers of a model, as one GPU holds it.

    experts, topk: of the whole layer; inter: width of one expert; layers: how many of the model's layers
    have experts (the others are dense, `Model.intermediate` wide). shared: width of the experts that every
    token takes, together; shared_gate: a gate of width 1 scales them. biases: of router and experts.
    weight_dtype: of the routed experts where it is not the model's (gpt-oss: mxfp4). local_experts: those
    that one GPU holds under expert parallelism (None: all).
    """

    experts: _Count
    topk: _Count
    inter: _Width
    layers: Annotated[int, Meta(ge=1, le=1_000)]
    shared: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    shared_gate: bool = False
    biases: bool = False
    weight_dtype: str | None = None
    local_experts: int | None = None

    @property
    def held(self) -> int:
        """Experts that one GPU holds."""
        return self.experts if self.local_experts is None else self.local_experts

    def expert_weights(self, hidden: int, *, gated: bool) -> int:
        """Weights of one routed expert, without biases."""
        return (3 if gated else 2) * hidden * self.inter

    def shared_weights(self, hidden: int, *, gated: bool) -> int:
        """Weights of the shared experts of one layer."""
        return (3 if gated else 2) * hidden * self.shared

    def router_weights(self, hidden: int) -> int:
        """Weights of the router of one layer, with the gate of its shared experts."""
        return hidden * (self.experts + self.shared_gate)

    def bias_count(self, hidden: int, *, gated: bool) -> int:
        """Biases of router and held experts of one layer."""
        wide = (2 if gated else 1) * self.inter + hidden
        return self.biases * (self.experts + self.held * wide)
