"""How a layer mixes tokens: what each kind holds, caches and keeps, and how GPUs share it.

A mixer says its weights, its cache bytes per token, its state bytes per request and its share on one GPU of
several. The kernels that it launches are its entry in `medusa_sim.step.mixers`. A new kind is a class here,
a line of `Mixers` and that entry.
"""

from __future__ import annotations

from typing import Annotated, Self

import msgspec
import numpy as np
from msgspec import Meta

from medusa_sim.arrays import FloatArray
from medusa_sim.specs.parallel import copied_share, share
from medusa_sim.units import BYTES_PER_ELEMENT

Width = Annotated[int, Meta(ge=1, le=1_000_000)]
Window = Annotated[int, Meta(ge=1, le=100_000_000)]


class Mixer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind"):
    """What the rest of the project asks of any kind of mixer; sizes are those of one GPU's share."""

    form: str | None = None
    """Format of its linear layers (`specs.formats`); None: the model's."""

    def weights(self, hidden: int) -> int:
        """Weights of its linear layers, stored in `form`."""
        raise NotImplementedError

    def beside(self, hidden: int) -> int:
        """Its other parameters, never quantised: biases, norms, convolutions."""
        del hidden
        return 0

    def token_bytes(self, dtype: str) -> float:
        """Bytes that one more token adds to a cache of that dtype, while all of its tokens are kept."""
        del dtype
        return 0.0

    def cache_bytes(self, tokens: FloatArray, dtype: str) -> FloatArray:
        """Bytes of the cache of one request of so many tokens."""
        return np.asarray(tokens * self.token_bytes(dtype))

    def state_bytes(self, dtype: str) -> float:
        """Bytes of the state of one request, whatever its length; activations are of `dtype`."""
        del dtype
        return 0.0

    @property
    def row(self) -> int:
        """Elements of one token's row of the cache, which is moved where a tree's path is accepted."""
        return 0

    @property
    def window(self) -> int | None:
        """Tokens beyond which its cache stops growing (None: never)."""
        return None

    def whole(self) -> Self:
        """The same mixer without a window: what windowed and full layers share."""
        return self

    def plain(self) -> Grouped:
        """Grouped attention of its heads, as the dense layers of drafters have it."""
        raise NotImplementedError

    def on_one_gpu(self, parts: int, model: str) -> Self:
        """The share of one of `parts` GPUs. Raises UsageError for heads that cannot be split."""
        raise NotImplementedError


class Grouped(Mixer, frozen=True, kw_only=True, tag="attention"):
    """Softmax attention whose query heads share K/V heads in groups (arXiv 2305.13245), windowed or not."""

    heads: Width
    kv_heads: Width
    head_dim: Width
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    size: Window | None = None
    """Tokens that a query looks back over, itself included (None: all)."""
    chunked: bool = False
    """Whether a query looks back to the start of a chunk of that size, half of it in the mean (Llama 4)."""

    def __post_init__(self) -> None:
        """Query heads share K/V heads evenly. Raises ValueError."""
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads: given {self.kv_heads}; it must divide heads = {self.heads}")

    @property
    def query_width(self) -> int:
        """Outputs of the query projection."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Outputs of the key projection, and of that of values."""
        return self.kv_heads * self.head_dim

    def weights(self, hidden: int) -> int:
        """Q, K, V and O."""
        return hidden * (2 * self.query_width + 2 * self.kv_width)

    def beside(self, hidden: int) -> int:
        """Biases, and the norms of queries and keys."""
        biases = self.qkv_bias * (self.query_width + 2 * self.kv_width) + self.output_bias * hidden
        return biases + self.qk_norm * 2 * self.head_dim

    def token_bytes(self, dtype: str) -> float:
        """K and V: 2 kv_heads head_dim."""
        return 2.0 * self.kv_width * BYTES_PER_ELEMENT[dtype]

    def cache_bytes(self, tokens: FloatArray, dtype: str) -> FloatArray:
        """Windowed layers keep their window alone."""
        kept = tokens if self.size is None else np.minimum(tokens, float(self.size))
        return np.asarray(kept * self.token_bytes(dtype))

    @property
    def row(self) -> int:
        """K and V."""
        return 2 * self.kv_width

    @property
    def window(self) -> int | None:
        """Its size, chunked or not."""
        return self.size

    def keys(self, kv_len: FloatArray, q_len: FloatArray) -> FloatArray:
        """Keys that a step of q_len queries reads in a windowed layer; kv_len holds the new tokens.

        Each query sees itself and the size - 1 tokens before it (Beltagy et al. 2020, Longformer, arXiv
        2004.05150, section 3.1, in its causal form), so that q_len of them in a row see size + q_len - 1.
        """
        if self.size is None:
            return kv_len
        reach = 0.5 * self.size if self.chunked else self.size - 1.0
        return np.where(kv_len > self.size, np.minimum(kv_len, reach + q_len), kv_len)

    def whole(self) -> Self:
        """Without its window."""
        return msgspec.structs.replace(self, size=None, chunked=False)

    def plain(self) -> Grouped:
        """Itself without a window, in the model's format."""
        return msgspec.structs.replace(self.whole(), form=None)

    def on_one_gpu(self, parts: int, model: str) -> Self:
        """K/V heads that do not divide are held by several GPUs, as engines do."""
        heads = share(model, "heads", self.heads, parts)
        kv_heads = copied_share(model, "K/V heads", self.kv_heads, self.heads, parts)
        return msgspec.structs.replace(self, heads=heads, kv_heads=kv_heads)


class Latent(Mixer, frozen=True, kw_only=True, tag="latent"):
    """Multi-head latent attention: one compressed K/V vector for all heads (arXiv 2405.04434, section 2.1).

    Widths have the paper's names. The compressing projections and the cache are whole on every GPU.
    """

    heads: Width
    kv_rank: Width
    """d_c: width of the compressed K and V, which is what the cache keeps."""
    rope_dim: Width
    """d_R: width of the rotated key beside it, shared by all heads."""
    nope_dim: Width
    """Width of one head's unrotated key."""
    v_dim: Width
    """Width of one head's value."""
    q_rank: Width | None = None
    """Width of compressed queries (None: they are not compressed)."""

    @property
    def qk_dim(self) -> int:
        """Width of a query or key of one head before absorption."""
        return self.nope_dim + self.rope_dim

    @property
    def row(self) -> int:
        """Elements that the cache keeps for one token, on every GPU of a tensor-parallel group."""
        return self.kv_rank + self.rope_dim

    @property
    def down_width(self) -> int:
        """Outputs of the compressing projections, which engines fuse and do not split over GPUs."""
        return (self.q_rank or 0) + self.row

    @property
    def norm_count(self) -> int:
        """Weights of the norms of the compressed vectors."""
        return (self.q_rank or 0) + self.kv_rank

    def weights(self, hidden: int) -> int:
        """What compresses, what expands, and the output projection."""
        query = (self.q_rank or hidden) * self.heads * self.qk_dim
        expand = self.kv_rank * self.heads * (self.nope_dim + self.v_dim)
        return hidden * self.down_width + query + expand + self.heads * self.v_dim * hidden

    def beside(self, hidden: int) -> int:
        """The norms of the compressed vectors."""
        del hidden
        return self.norm_count

    def token_bytes(self, dtype: str) -> float:
        """The compressed vector and the rotated key."""
        return 1.0 * self.row * BYTES_PER_ELEMENT[dtype]

    def plain(self) -> Grouped:
        """Heads as wide as its values."""
        return Grouped(heads=self.heads, kv_heads=self.heads, head_dim=self.v_dim)

    def on_one_gpu(self, parts: int, model: str) -> Self:
        """A share of the heads."""
        return msgspec.structs.replace(self, heads=share(model, "heads", self.heads, parts))


Mixers = Grouped | Latent
"""Every kind of mixer, told apart by `kind` in a file."""
