"""The feed-forward part of a layer: a dense MLP, or a mixture of experts of which a token takes a few."""

from __future__ import annotations

from typing import Annotated, Self

import msgspec
from msgspec import Meta

from medusa_sim.errors import UsageError
from medusa_sim.models.parallel import Parallel, divisors, share

_Count = Annotated[int, Meta(ge=1, le=100_000)]
_Width = Annotated[int, Meta(ge=1, le=1_000_000)]


class Mlp(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind", tag="mlp"):
    """A dense MLP."""

    width: _Width
    gated: bool = True
    """Whether it has gate, up and down (else up and down)."""
    bias: bool = False
    form: str | None = None
    """Format of its linear layers (`units`); None: the model's."""

    def weights(self, hidden: int) -> int:
        """Weights of its linear layers."""
        return (3 if self.gated else 2) * hidden * self.width

    def other_parameters(self, hidden: int) -> int:
        """Biases."""
        return self.bias * ((2 if self.gated else 1) * self.width + hidden)

    @property
    def widest(self) -> int:
        """Activations of one token that lie in memory together."""
        return (3 if self.gated else 2) * self.width

    def on_one_gpu(self, parallel: Parallel, model: str) -> Self:
        """A share of the width. Raises UsageError where it cannot be split."""
        return msgspec.structs.replace(
            self, width=share(model, "the width of the MLP", self.width, parallel.tp)
        )


class MoE(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind", tag="experts"
):
    """A mixture of experts, as one GPU holds it."""

    experts: _Count
    """Routed experts of the whole layer."""
    topk: _Count
    """Routed experts that a token takes."""
    inter: _Width
    """Width of one routed expert."""
    shared: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    """Width of the experts that every token takes, together."""
    shared_gate: bool = False
    """Whether a gate of width 1 scales the shared experts."""
    biases: bool = False
    """Of router and experts."""
    latent: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    """Width on which routed experts act, between projections that all GPUs hold (None: the model's)."""
    gated: bool = True
    form: str | None = None
    """Format of the routed experts; None: the model's (gpt-oss: mxfp4)."""
    shared_form: str | None = None
    """Format of the shared experts; None: the model's."""
    local_experts: int | None = None
    """Experts that one GPU holds under expert parallelism (None: all)."""

    @property
    def held(self) -> int:
        """Experts that one GPU holds."""
        return self.experts if self.local_experts is None else self.local_experts

    @property
    def shared_mlp(self) -> Mlp:
        """The shared experts as one MLP; asked of mixtures that have any."""
        return Mlp(width=self.shared, gated=self.gated, form=self.shared_form)

    def expert_weights(self, hidden: int) -> int:
        """Weights of one routed expert, without biases."""
        return (3 if self.gated else 2) * (self.latent or hidden) * self.inter

    def other_parameters(self, hidden: int) -> int:
        """The router with the gate of its shared experts, the projections around latent experts, and biases
        of router and held experts.
        """
        router = hidden * (self.experts + self.shared_gate)
        wide = (2 if self.gated else 1) * self.inter + hidden
        biases = self.biases * (self.experts + self.held * wide)
        return router + 2 * hidden * (self.latent or 0) + biases

    @property
    def widest(self) -> int:
        """Activations of one token that lie in memory together."""
        return (3 if self.gated else 2) * (self.topk * self.inter + self.shared)

    def on_one_gpu(self, parallel: Parallel, model: str) -> Self:
        """Whole experts over `ep`, their widths over the rest. Raises UsageError for what cannot be split."""
        if self.experts % parallel.ep:
            raise UsageError(
                f"{model}: {self.experts} experts cannot be split over ep {parallel.ep}; "
                f"{divisors(self.experts, 'ep')}"
            )
        return msgspec.structs.replace(
            self,
            local_experts=self.experts // parallel.ep,
            inter=share(model, "the width of an expert", self.inter, parallel.expert_tp),
            shared=self.shared
            if parallel.exchanges_experts
            else share(model, "the width of shared experts", self.shared, parallel.tp),
        )


FeedForward = Mlp | MoE
"""Every kind of feed-forward part, told apart by `kind` in a file."""
