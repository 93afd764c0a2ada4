"""Passes that give what `lab.decoder.passes.cached_pass` gives, sooner: tricks of a single pass stand here.

A small model's pass is mostly bookkeeping, so one sequence writes its rows side by side, without indices, and
masks the tree alone (`quick_pass`). A long prefix is read without a mask (`prefix_and_tree`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from medusa_sim.lab.decoder.attention import aligned_tensor, attend, mask_bias
from medusa_sim.lab.decoder.cache import KVCache
from medusa_sim.lab.decoder.config import DecoderConfig
from medusa_sim.lab.decoder.passes import CachedPass, NewTokens, Pass, cached_pass
from medusa_sim.lab.decoder.rotary import Rotations

_Window: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor]
"""Views of one layer: where new keys and values go, (1, q, kv_heads, head_dim), and those to look at."""


class SideBySide(Pass):
    """One sequence, whose new rows lie side by side: they are copied into the cache without indices."""

    __slots__ = ("windows",)

    def __init__(self, cos: Tensor, sin: Tensor, mask: Tensor | None, windows: Sequence[_Window]) -> None:
        super().__init__(1, cos, sin, mask)
        self.windows = windows

    def write(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """As `CachedPass.write`."""
        new_keys, new_values, keys, values = self.windows[layer]
        new_keys.copy_(k)
        new_values.copy_(v)
        return keys, values

    def attend(self, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """As `CachedPass.attend`."""
        return attend(q, keys, values, self.mask)


class TwoParts(CachedPass):
    """Texts of one length: the committed keys are read without a mask, `mask` is over those of the tree."""

    __slots__ = ()

    def attend(self, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """As `CachedPass.attend`."""
        assert self.mask is not None  # noqa: S101  # it is made of a tree
        return prefix_and_tree(q, keys, values, self.kv_len - self.mask.shape[-1], self.mask)


def quick_pass(
    config: DecoderConfig, rotations: Rotations, cache: KVCache, new: NewTokens, *, splits_attention: bool
) -> Pass | None:
    """The pass of `cached_pass` without indices, or without a mask over committed tokens; None where only the
    plain way is right.
    """
    longest = cache.require_room(new.uncommitted)
    if config.sliding_window is not None or min(cache.lengths_on_host) < longest:
        return None
    splits = splits_attention and longest > 0 and new.uncommitted > 1
    if cache.batch == 1 and not splits:
        return _side_by_side(config, rotations, cache, new, longest)
    if not splits and new.uncommitted > 1:
        return None
    return filled_pass(config, rotations, cache, new, longest + new.uncommitted, splits_attention=splits)


def _side_by_side(
    config: DecoderConfig, rotations: Rotations, cache: KVCache, new: NewTokens, length: int
) -> SideBySide:
    start, kv_len = length + new.offset, length + new.uncommitted
    tables = rotations.tables(kv_len, cache.lengths.device, cache.keys.dtype)
    bias = None
    if new.uncommitted == 1:
        cos, sin = (table.narrow(0, start, 1) for table in tables)
    else:
        depths = new.depths.view(-1)[new.offset :]
        cos, sin = (table.narrow(0, length, new.uncommitted).index_select(0, depths) for table in tables)
        seen = new.mask.view(1, new.tokens, new.uncommitted)
        tree = mask_bias(seen, config.group_size, cache.keys.dtype)
        bias = aligned_tensor((*tree.shape[:-1], kv_len), tree.dtype, tree.device, fill=0.0)
        bias[..., length:] = tree
    stores = (cache.keys, cache.values)
    own = [store.narrow(3, start, new.tokens).transpose(2, 3).unbind(0) for store in stores]
    seen_rows = [store.narrow(3, 0, kv_len).unbind(0) for store in stores]
    return SideBySide(cos, sin, bias, list(zip(*own, *seen_rows, strict=True)))


def filled_pass(
    config: DecoderConfig,
    rotations: Rotations,
    cache: KVCache,
    new: NewTokens,
    kv_len: int,
    *,
    splits_attention: bool,
) -> CachedPass:
    """The pass of sequences that all end at `kv_len`: one token needs no mask, a tree may take two parts."""
    splits = splits_attention and 1 < new.uncommitted < kv_len
    is_masked = new.uncommitted > 1 and not splits
    made = cached_pass(config, rotations, cache, new, kv_len, is_masked=is_masked)
    if not splits:
        return made
    mask = new.mask.expand(cache.batch, new.tokens, new.uncommitted)
    bias = mask_bias(mask, config.group_size, cache.keys.dtype)
    return TwoParts(cache.batch, made.cos, made.sin, cache, made.slots, bias, kv_len)


def prefix_and_tree(q: Tensor, keys: Tensor, values: Tensor, prefix: int, bias: Tensor) -> Tensor:
    """Attention in two parts: over the first `prefix` keys, which every query sees, and over the tree.

    An arbitrary mask keeps a GPU from its fastest kernel, and the one that is left walks a long prefix with
    few blocks. So the prefix is read without a mask, the tree's few keys with one, and the two are merged by
    the logarithms of their sums: softmax over both. q: (batch, kv_heads, rows, head_dim); keys, values:
    (batch, kv_heads, kv_len, head_dim); bias: additive, broadcasts to (batch, 1, rows, kv_len - prefix).
    """
    first, first_sum = _with_log_sum(q, keys.narrow(2, 0, prefix), values.narrow(2, 0, prefix))
    behind = keys.shape[2] - prefix
    scale = q.shape[-1] ** -0.5
    scores = torch.matmul(q * scale, keys.narrow(2, prefix, behind).transpose(-1, -2)).to(first_sum.dtype)
    scores = scores + bias
    second_sum = scores.logsumexp(-1)
    second = torch.matmul(scores.softmax(-1).to(q.dtype), values.narrow(2, prefix, behind))
    share = torch.sigmoid(first_sum - second_sum)[..., None]
    return torch.lerp(second.to(share.dtype), first.to(share.dtype), share).to(q.dtype)


def _with_log_sum(q: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Attention without a mask and the logarithm of each row's sum of exponentials (batch, heads, rows)."""
    both: tuple[Tensor, ...]
    if q.device.type == "cpu":
        both = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, keys, values)
    elif q.dtype in (torch.float16, torch.bfloat16):
        both = torch.ops.aten._scaled_dot_product_flash_attention(q, keys, values)
    else:
        both = torch.ops.aten._scaled_dot_product_efficient_attention(q, keys, values, None, True)
    return both[0], both[1][..., : q.shape[2]]  # the sums may be padded
