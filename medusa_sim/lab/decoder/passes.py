"""What the layers of one pass share, made the plain way: right for any trees, batches and lengths."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from medusa_sim.lab.decoder.attention import attend, attention_mask, mask_bias
from medusa_sim.lab.decoder.cache import KVCache
from medusa_sim.lab.decoder.config import DecoderConfig
from medusa_sim.lab.decoder.rotary import Rotations

Forward: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(tokens (batch, n), tree mask, depths) -> hidden states (batch, n, hidden) of one verification."""


class Pass:
    """Whole texts without a cache, as in training: a token sees itself and those before it.

    cos, sin: rotations of the tokens, (.., q, 1, head_dim). mask: which keys a query sees, if not all these.
    """

    __slots__ = ("batch", "cos", "mask", "sin")

    def __init__(self, batch: int, cos: Tensor, sin: Tensor, mask: Tensor | None = None) -> None:
        self.batch, self.cos, self.sin, self.mask = batch, cos, sin, mask

    def write(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Takes new rows (batch, q, kv_heads, head_dim) of a layer; returns the keys and values to look at,
        (batch, kv_heads, kv_len, head_dim).
        """
        return k.transpose(1, 2), v.transpose(1, 2)

    def attend(self, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Attention of rows (batch, kv_heads, group * q, head_dim): a group's heads, one after the other."""
        group = q.shape[2] // keys.shape[2]
        q = q.view(q.shape[0], -1, keys.shape[2], q.shape[3])
        keys, values = (each.repeat_interleave(group, 1) for each in (keys, values))
        return functional.scaled_dot_product_attention(
            q, keys, values, attn_mask=self.mask, is_causal=self.mask is None
        )


class CachedPass(Pass):
    """New tokens after the committed ones of a cache.

    slots: (batch, q), where their keys go. mask: additive, (batch, 1, group * q, kv_len) over the first
    `kv_len` slots; None: every query sees all of them.
    """

    __slots__ = ("cache", "kv_len", "slots")

    def __init__(
        self,
        batch: int,
        cos: Tensor,
        sin: Tensor,
        cache: KVCache,
        slots: Tensor,
        mask: Tensor | None,
        kv_len: int,
    ) -> None:
        super().__init__(batch, cos, sin, mask)
        self.cache, self.slots, self.kv_len = cache, slots, kv_len

    def write(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Stores the rows, and returns the first slots."""
        self.cache.write(layer, self.slots, k, v)
        return self.cache.first(layer, self.kv_len)

    def attend(self, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """As `Pass.attend`, each K/V row read once for its group."""
        return attend(q, keys, values, self.mask)


def causal_pass(config: DecoderConfig, rotations: Rotations, tokens: Tensor, dtype: torch.dtype) -> Pass:
    """The pass over whole texts (batch, q) without a cache."""
    (batch, query_tokens), device = tokens.shape, tokens.device
    cos, sin = (table[:query_tokens] for table in rotations.tables(query_tokens, device, dtype))
    mask, window = None, config.sliding_window
    if window is not None and query_tokens > window:
        order = torch.arange(query_tokens, device=device)
        distance = order[:, None] - order
        mask = (distance >= 0) & (distance < window)
    return Pass(batch, cos, sin, mask)


class NewTokens(NamedTuple):
    """The tokens of one pass, the last of t that are uncommitted."""

    tokens: int
    offset: int
    """Uncommitted tokens before them."""
    mask: Tensor
    """(q, t) or (batch, q, t) bool: which uncommitted tokens each sees."""
    depths: Tensor
    """(t,) or (batch, t): positions after the committed ones."""

    @property
    def uncommitted(self) -> int:
        """T: uncommitted tokens in all, the new ones included."""
        return self.offset + self.tokens


def cached_pass(
    config: DecoderConfig,
    rotations: Rotations,
    cache: KVCache,
    new: NewTokens,
    kv_len: int | None = None,
    *,
    is_masked: bool = True,
) -> CachedPass:
    """The pass over new tokens after those of a cache.

    kv_len: slots to look at: all shapes are fixed, nothing is read from the device. None: those in use.
    """
    device, dtype = cache.lengths.device, cache.keys.dtype
    if kv_len is None:
        kv_len = cache.require_room(new.uncommitted) + new.uncommitted
    committed = cache.lengths[:, None]
    positions = (committed + new.depths)[:, new.offset :]
    cos, sin = (table[positions] for table in rotations.tables(cache.capacity, device, dtype))
    slots = committed + torch.arange(new.offset, new.uncommitted, device=device)
    bias = None
    if is_masked:  # once for all layers, a row for every head of a group
        seen = (cache.lengths, new.mask, kv_len, new.depths)
        mask = attention_mask(*seen, offset=new.offset, sliding_window=config.sliding_window)
        bias = mask_bias(mask, config.group_size, dtype)
    return CachedPass(cache.batch, cos, sin, cache, slots, bias, kv_len)
