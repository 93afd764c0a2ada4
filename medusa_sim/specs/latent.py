"""Multi-head latent attention: one compressed K/V vector for all heads (arXiv 2405.04434, section 2.1)."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

_Width = Annotated[int, Meta(ge=1, le=1_000_000)]


class Latent(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Widths of latent attention, with the paper's names.

    kv_rank d_c: of the compressed K and V, which is what the cache keeps; rope_dim d_R: of the rotated key
    beside it, shared by all heads. nope_dim, v_dim: of one head's unrotated key and of its value. q_rank:
    of compressed queries (None: they are not compressed).
    """

    kv_rank: _Width
    rope_dim: _Width
    nope_dim: _Width
    v_dim: _Width
    q_rank: _Width | None = None

    @property
    def qk_dim(self) -> int:
        """Width of a query or key of one head before absorption."""
        return self.nope_dim + self.rope_dim

    @property
    def cached(self) -> int:
        """Elements that the cache keeps for one token and layer, on every GPU of a tensor-parallel group."""
        return self.kv_rank + self.rope_dim

    @property
    def down_width(self) -> int:
        """Outputs of the compressing projections, which engines fuse and do not split over GPUs."""
        return (self.q_rank or 0) + self.cached

    def weights(self, hidden: int, heads: int) -> int:
        """Weights of one layer's attention with so many heads."""
        query = (self.q_rank or hidden) * heads * self.qk_dim
        expand = self.kv_rank * heads * (self.nope_dim + self.v_dim)
        return hidden * self.down_width + query + expand + heads * self.v_dim * hidden

    @property
    def norm_count(self) -> int:
        """Weights of the norms of the compressed vectors."""
        return (self.q_rank or 0) + self.kv_rank
