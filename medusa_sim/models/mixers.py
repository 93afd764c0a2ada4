"""How a layer mixes tokens: what each kind holds, caches and keeps, and how GPUs share it.

A mixer says its weights, its cache bytes per token, its state bytes per request and its share on one GPU of
several. The kernels that it launches are its entry in `medusa_sim.step.network`. A new kind is a class, its
name in `models.named.Mixers` and that entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

import msgspec
import numpy as np
from msgspec import Meta

from medusa_sim.arrays import FloatArray
from medusa_sim.models.parallel import copied_share, share
from medusa_sim.units import BYTES_PER_ELEMENT

Width = Annotated[int, Meta(ge=1, le=1_000_000)]
Window = Annotated[int, Meta(ge=1, le=100_000_000)]


class Mixer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind"):
    """The interface of a mixer; sizes are one GPU's share."""

    form: str | None = None
    """Format of its linear layers (`units`); None: the model's."""
    out_form: str | None = None
    """Format of its output projection, where another."""

    @property
    def chooses_keys(self) -> bool:
        """Whether a query attends to keys that are chosen for it (sparse attention)."""
        return False

    def weights(self, hidden: int) -> int:
        """Weights of its linear layers, stored in `form`."""
        raise NotImplementedError

    @property
    def output_width(self) -> int:
        """Inputs of the output projection."""
        raise NotImplementedError

    def output_weights(self, hidden: int) -> int:
        """Weights of its output projection, a part of `weights`."""
        return self.output_width * hidden

    def value_weights(self, hidden: int) -> int:
        """Weights of a projection of its own for values; 0 where it has none."""
        return 0

    def other_parameters(self, hidden: int) -> int:
        """Its other parameters, never quantised: biases, norms, convolutions."""
        del hidden
        return 0

    def token_bytes(self, dtype: str) -> float:
        """Bytes that one more token adds to a cache of that dtype, while all of its tokens are kept."""
        del dtype
        return 0.0

    def cache_bytes(self, tokens: FloatArray, dtype: str) -> FloatArray:
        """Bytes of the cache of one request of `tokens` tokens."""
        return np.asarray(tokens * self.token_bytes(dtype))

    def state_bytes(self, dtype: str) -> float:
        """Bytes of the state of one request, whatever its length; activations are of `dtype`."""
        del dtype
        return 0.0

    def draft_state_bytes(self, dtype: str) -> float:
        """Part of `state_bytes` that a verification step keeps for each of its tokens."""
        del dtype
        return 0.0

    @property
    def cache_row(self) -> int:
        """Elements of one token in the cache, which are moved where a tree's path is accepted."""
        return 0

    @property
    def window(self) -> int | None:
        """Tokens beyond which its cache stops growing (None: never)."""
        return None

    def unwindowed(self) -> Self:
        """Without its window: what windowed and full layers share."""
        return self

    def as_grouped(self) -> Grouped:
        """Grouped attention of its heads, as the dense layers of drafters have it."""
        raise NotImplementedError

    SPLIT: ClassVar[Mapping[str, str]] = {}
    """Sizes that are shared among GPUs, and their names."""
    COPIED: ClassVar[Mapping[str, str]] = {}
    """The same of sizes that several GPUs hold, as in engines, where GPUs do not divide them."""

    def on_one_gpu(self, parts: int, model: str) -> Self:
        """The share of one of `parts` GPUs. Raises UsageError for heads that cannot be split."""
        own = {name: share(model, what, getattr(self, name), parts) for name, what in self.SPLIT.items()}
        for name, what in self.COPIED.items():
            heads: int = getattr(self, "heads")  # noqa: B009  # of those kinds that have such sizes
            own[name] = copied_share(model, what, getattr(self, name), heads, parts)
        return msgspec.structs.replace(self, **own)


class Grouped(Mixer, frozen=True, kw_only=True, tag="attention"):
    """Softmax attention whose query heads share K/V heads in groups (arXiv 2305.13245), windowed or not."""

    SPLIT: ClassVar = {"heads": "heads"}
    COPIED: ClassVar = {"kv_heads": "K/V heads"}

    heads: Width
    kv_heads: Width
    head_dim: Width
    v_dim: Width | None = None
    """Width of a value, where it differs from the width of queries and keys."""
    gate: Literal["none", "head", "element"] = "none"
    """Scale of the output before its projection: one number a head, or one for each of its elements."""
    inputs: Width = 1
    """Rows of the model's width, side by side, that queries, keys and values are projected from."""
    keys_are_values: bool = False
    """Whether the key projection serves values too (Gemma 4's full layers)."""
    rotates: bool = True
    """Whether its queries and keys are rotated."""
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    size: Window | None = None
    """Tokens that a query looks back over, itself included (None: all)."""
    chunked: bool = False
    """Whether a query looks back to the start of a chunk of that size, half of it on average (Llama 4)."""

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
        """Outputs of the key projection."""
        return self.kv_heads * self.head_dim

    @property
    def value_width(self) -> int:
        """Values of all K/V heads."""
        return self.kv_heads * (self.v_dim or self.head_dim)

    @property
    def output_width(self) -> int:
        """Values of all heads."""
        return self.heads * (self.v_dim or self.head_dim)

    @property
    def gate_width(self) -> int:
        """Outputs of the projection of the gate."""
        return {"none": 0, "head": self.heads, "element": self.output_width}[self.gate]

    @property
    def input_width(self) -> int:
        """Outputs of the projections of queries, keys, values and gate, which engines fuse."""
        values = 0 if self.keys_are_values else self.value_width
        return self.query_width + self.gate_width + self.kv_width + values

    def value_weights(self, hidden: int) -> int:
        """V, where keys are not values."""
        return 0 if self.keys_are_values else self.inputs * hidden * self.value_width

    def weights(self, hidden: int) -> int:
        """Q, K, V, the gate and O."""
        return self.inputs * hidden * self.input_width + self.output_weights(hidden)

    def other_parameters(self, hidden: int) -> int:
        """Biases, and the norms of queries and keys."""
        biases = self.qkv_bias * (self.query_width + 2 * self.kv_width) + self.output_bias * hidden
        return biases + self.qk_norm * 2 * self.head_dim

    def token_bytes(self, dtype: str) -> float:
        """K and V."""
        return 1.0 * self.cache_row * BYTES_PER_ELEMENT[dtype]

    def cache_bytes(self, tokens: FloatArray, dtype: str) -> FloatArray:
        """Windowed layers keep their window alone."""
        kept = tokens if self.size is None else np.minimum(tokens, float(self.size))
        return np.asarray(kept * self.token_bytes(dtype))

    @property
    def cache_row(self) -> int:
        """K and V."""
        return self.kv_width + self.value_width

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

    def unwindowed(self) -> Self:
        """Without its window."""
        return msgspec.structs.replace(self, size=None, chunked=False)

    def as_grouped(self) -> Grouped:
        """Its heads alone: no window, no gate, in the model's format."""
        return Grouped(
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            qkv_bias=self.qkv_bias,
            output_bias=self.output_bias,
            qk_norm=self.qk_norm,
        )


class Indexer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Chooses `topk` keys a query by scores of small heads of its own (DeepSeek-V3.2, arXiv 2512.02556)."""

    topk: Width
    heads: Width = 64
    dim: Width = 128
    reuses: bool = False
    """Whether it takes the choice of a layer before it, without weights or keys of its own (GLM-5.2)."""

    def weights(self, hidden: int, q_rank: int) -> int:
        """Index queries of the compressed queries, and one key head for all."""
        return 0 if self.reuses else q_rank * self.heads * self.dim + hidden * self.dim

    def other_parameters(self, hidden: int) -> int:
        """The key's LayerNorm and the weights of heads."""
        return 0 if self.reuses else 2 * self.dim + hidden * self.heads

    @property
    def token_bytes(self) -> float:
        """Its key in fp8 with a 32-bit scale."""
        return 0.0 if self.reuses else self.dim + 4.0


class Latent(Mixer, frozen=True, kw_only=True, tag="latent"):
    """Multi-head latent attention: one compressed K/V vector for all heads (arXiv 2405.04434, section 2.1).

    Widths have the paper's names. The compressing projections and the cache are whole on every GPU.
    """

    SPLIT: ClassVar = {"heads": "heads"}

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
    rotates: bool = True
    gate: bool = False
    """Whether a gate of its own scales every element of the output (Kimi-K3)."""
    indexer: Indexer | None = None
    """Choice of the keys that a query attends to (None: all)."""

    @property
    def chooses_keys(self) -> bool:
        """Whether an indexer does."""
        return self.indexer is not None

    @property
    def qk_dim(self) -> int:
        """Width of a query or key of one head before absorption."""
        return self.nope_dim + self.rope_dim

    @property
    def cache_row(self) -> int:
        """Elements that the cache keeps for one token, on every GPU of a tensor-parallel group."""
        return self.kv_rank + self.rope_dim

    @property
    def down_width(self) -> int:
        """Outputs of the compressing projections, which engines fuse and do not split over GPUs."""
        return (self.q_rank or 0) + self.cache_row

    @property
    def norm_weights(self) -> int:
        """Weights of the norms of the compressed vectors."""
        return (self.q_rank or 0) + self.kv_rank

    def weights(self, hidden: int) -> int:
        """Weights that compress, that expand, and of the output projection."""
        query = (self.q_rank or hidden) * self.heads * self.qk_dim
        expand = self.kv_rank * self.heads * (self.nope_dim + self.v_dim)
        output = (self.gate + 1) * self.output_weights(hidden)
        index = 0 if self.indexer is None else self.indexer.weights(hidden, self.q_rank or hidden)
        return hidden * self.down_width + query + expand + output + index

    @property
    def output_width(self) -> int:
        """Values of all heads."""
        return self.heads * self.v_dim

    def other_parameters(self, hidden: int) -> int:
        """The norms of the compressed vectors, and what of an indexer stays in 16 bits."""
        return self.norm_weights + (0 if self.indexer is None else self.indexer.other_parameters(hidden))

    def token_bytes(self, dtype: str) -> float:
        """The compressed vector and the rotated key, and the key of an indexer.

        Kernels of sparse attention store an fp8 vector with a 32-bit scale for 128 elements and leave the
        rotated key in 16 bits: 656 bytes (docs of FlashMLA; vLLM's blog of 2025-09-29).
        """
        if self.indexer is None:
            return 1.0 * self.cache_row * BYTES_PER_ELEMENT[dtype]
        own = 1.0 * self.cache_row * BYTES_PER_ELEMENT[dtype]
        if BYTES_PER_ELEMENT[dtype] == 1.0:
            own = self.kv_rank * (1.0 + 4.0 / 128.0) + 2.0 * self.rope_dim
        return own + self.indexer.token_bytes

    def as_grouped(self) -> Grouped:
        """Heads as wide as its values."""
        return Grouped(heads=self.heads, kv_heads=self.heads, head_dim=self.v_dim)
