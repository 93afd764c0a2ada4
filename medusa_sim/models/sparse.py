"""Mixers that attend to chosen or compressed keys: MiniMax-M3's blocks, DeepSeek-V4's compression."""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
from msgspec import Meta

from medusa_sim.arrays import FloatArray
from medusa_sim.models.mixers import Grouped, Indexer, Mixer, Width, Window
from medusa_sim.units import BYTES_PER_ELEMENT


class BlockSparse(Grouped, frozen=True, kw_only=True, tag="block_sparse"):
    """Grouped attention to chosen blocks of keys (MiniMax-M3, arXiv 2606.13392): one choice a K/V head."""

    COPIED: ClassVar = {**Grouped.COPIED, "index_heads": "index heads"}

    index_heads: Width
    index_dim: Width
    block: Width
    """Keys of a block."""
    blocks: Width
    """Blocks that a query attends to, its own included."""

    @property
    def chooses_keys(self) -> bool:
        """Blocks of them."""
        return True

    @property
    def index_width(self) -> int:
        """Index queries and the one index key, which come out of the same projection as Q, K and V."""
        return (self.index_heads + 1) * self.index_dim

    def weights(self, hidden: int) -> int:
        """Weights of grouped attention and of the index projections."""
        return super().weights(hidden) + hidden * self.index_width

    def other_parameters(self, hidden: int) -> int:
        """The norms of index queries and keys too."""
        return super().other_parameters(hidden) + 2 * self.index_dim

    def token_bytes(self, dtype: str) -> float:
        """K, V, and the index key in 16 bits."""
        return super().token_bytes(dtype) + 2.0 * self.index_dim

    @property
    def reach(self) -> int:
        """Keys that a query attends to at most."""
        return self.block * self.blocks


class Compressed(Mixer, frozen=True, kw_only=True, tag="compressed"):
    """DeepSeek-V4's attention: one head that is K and V, the last tokens as they are, older ones compressed.

    Weights after github.com/ai-dynamo/aiconfigurator (deepseek_v4): queries and outputs through low ranks.
    """

    SPLIT: ClassVar = {"heads": "heads", "o_groups": "output groups"}

    heads: Width
    head_dim: Width
    rope_dim: Width
    q_rank: Width
    o_rank: Width
    o_groups: Width
    """Groups of heads whose outputs are projected to `o_rank` values each."""
    size: Window
    """Tokens that are kept as they are."""
    ratio: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    """Tokens that one compressed key stands for (0: none; the layer sees its window alone)."""
    overlap: bool = False
    """Whether neighbouring compressed keys share tokens (ratio 4)."""
    indexer: Indexer | None = None
    """Choice among the compressed keys (None: all are read)."""

    @property
    def chooses_keys(self) -> bool:
        """Compressed ones, and the last as they are."""
        return True

    @property
    def branches(self) -> int:
        """Projections of the compressor: K = V and its gate, twice where keys overlap."""
        return 2 * (1 + self.overlap) if self.ratio else 0

    def weights(self, hidden: int) -> int:
        """Low-rank queries, the K/V head, grouped output, compressors, the indexer's queries."""
        width = self.heads * self.head_dim
        query = hidden * self.q_rank + self.q_rank * width
        own = (
            query
            + hidden * self.head_dim
            + self.output_weights(hidden)
            + self.branches * hidden * self.head_dim
        )
        if self.indexer is not None:
            own += self.q_rank * self.indexer.heads * self.indexer.dim
            own += self.branches * hidden * self.indexer.dim
        return own

    def output_weights(self, hidden: int) -> int:
        """Each group of heads to `o_rank` values, and those to the model's width."""
        return self.heads * self.head_dim * self.o_rank + self.o_groups * self.o_rank * hidden

    def other_parameters(self, hidden: int) -> int:
        """Norms, sinks, the compressor's table of positions, weights of index heads."""
        table = self.branches // 2 * self.ratio * self.head_dim
        index = 0 if self.indexer is None else hidden * self.indexer.heads
        return self.q_rank + self.head_dim + self.heads + table + index

    def token_bytes(self, dtype: str) -> float:
        """The K/V row, while the window holds it, and its share of a compressed one."""
        return self.head_dim * BYTES_PER_ELEMENT[dtype] + self._kept(dtype)

    def _kept(self, dtype: str) -> float:
        if not self.ratio:
            return 0.0
        index = 0.0 if self.indexer is None else self.indexer.dim + 4.0
        return (self.head_dim * BYTES_PER_ELEMENT[dtype] + index) / self.ratio

    def cache_bytes(self, tokens: FloatArray, dtype: str) -> FloatArray:
        """The window, and compressed rows for all tokens."""
        near = np.minimum(tokens, float(self.size)) * (self.head_dim * BYTES_PER_ELEMENT[dtype])
        return np.asarray(near + tokens * self._kept(dtype))

    def state_bytes(self, dtype: str) -> float:
        """Bytes that the compressors gather: two blocks of tokens in fp32 (twice where keys overlap)."""
        del dtype
        kept = 2.0 * self.ratio * (1 + self.overlap) * 4.0 if self.ratio else 0.0
        return kept * (self.head_dim + (0 if self.indexer is None else self.indexer.dim))

    def keys(self, kv_len: FloatArray) -> FloatArray:
        """Keys that a query attends to."""
        near = np.minimum(kv_len, float(self.size))
        if not self.ratio:
            return near
        far = kv_len / self.ratio
        return np.asarray(near + (far if self.indexer is None else np.minimum(far, float(self.indexer.topk))))

    @property
    def cache_row(self) -> int:
        """The K/V head."""
        return self.head_dim

    @property
    def window(self) -> int | None:
        """Beyond which only compressed rows are added."""
        return self.size

    def as_grouped(self) -> Grouped:
        """As many heads of a usual width: 128 (DeepSeek-V3)."""
        return Grouped(heads=self.heads, kv_heads=max(1, self.heads // 8), head_dim=128)
