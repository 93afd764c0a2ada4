"""What a query may see, and attention over it.

A query sees the committed prefix, its own ancestors in the tree under verification, and itself. The layers of
one pass share what follows from that (`Pass`).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from medusa_sim.lab.decoder.cache import KVCache


def ancestor_mask(parents: Tensor) -> Tensor:
    """(batch, n, n) bool: [b, i, j] is True where j is i or an ancestor of i.

    parents: (batch, n); the root and unused nodes have -1, and a parent comes before its children.
    Squares the reachability matrix, so that the number of operations is fixed by n alone.
    """
    batch, nodes = parents.shape
    mask = torch.eye(nodes, dtype=torch.bool, device=parents.device).repeat(batch, 1, 1)
    has_parent = parents >= 0
    one_step = torch.zeros(batch, nodes, nodes, dtype=torch.bool, device=parents.device)
    one_step.scatter_(2, parents.clamp(min=0)[..., None], has_parent[..., None])
    mask = mask | one_step
    reach = 1
    while reach < nodes:
        product = torch.matmul(mask.to(torch.float32), mask.to(torch.float32))
        mask = product > 0
        reach *= 2
    return mask


def attention_mask(
    lengths: Tensor,
    tree_mask: Tensor,
    kv_len: int,
    depths: Tensor,
    *,
    sliding_window: int | None = None,
) -> Tensor:
    """(batch, q, kv_len) bool over cache slots, for the last q of t uncommitted tokens.

    lengths: (batch,) committed tokens; tree_mask: (q, t) or (batch, q, t), which uncommitted tokens each new
    one sees; depths: (t,) or (batch, t). The sliding window counts positions (committed + depth), not slots.
    """
    batch, (query_tokens, scratch_tokens) = lengths.shape[0], tree_mask.shape[-2:]
    slots = torch.arange(kv_len, device=lengths.device)
    node = slots - lengths[:, None]  # (batch, kv_len): tree node of a slot, negative if committed
    committed = node < 0
    in_tree = (node >= 0) & (node < scratch_tokens)
    node = node.clamp(0, scratch_tokens - 1)
    related = torch.gather(
        tree_mask.expand(batch, query_tokens, scratch_tokens),
        2,
        node[:, None, :].expand(batch, query_tokens, kv_len),
    )
    mask = committed[:, None, :] | (in_tree[:, None, :] & related)
    if sliding_window is not None:
        positions = lengths[:, None] + depths.expand(batch, scratch_tokens)
        key_positions = torch.where(committed, slots[None, :], torch.gather(positions, 1, node))
        mask = mask & (key_positions[:, None, :] > positions[:, -query_tokens:, None] - sliding_window)
    return mask


def mask_bias(mask: Tensor, group: int, dtype: torch.dtype) -> Tensor:
    """(batch, 1, group * q, kv_len): 0 where `mask` (batch, q, kv_len) lets a query look, -inf elsewhere.

    group: query heads that share a K/V head; their rows follow one another, head by head.
    """
    bias = torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, -torch.inf)
    return bias[:, None].repeat(1, 1, group, 1)


def attend(q: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None) -> Tensor:
    """Softmax attention of (batch, kv_heads, rows, head_dim) over keys and values, under an additive bias.

    One row in bf16 on a CPU is computed twice: torch's kernel takes 1.6 to 1.9 times as long for one as for
    two (4 heads of 64, 256 keys: 111 and 70 us; 8 of 128, 512 keys: 926 and 481; torch 2.13, one thread).
    """
    if q.dtype != torch.bfloat16 or q.shape[2] > 1 or q.device.type != "cpu":
        return functional.scaled_dot_product_attention(q, keys, values, bias)
    twice = q.expand(-1, -1, 2, -1)
    return functional.scaled_dot_product_attention(twice, keys, values, bias).narrow(2, 0, 1)


class Pass:
    """Whole texts without a cache, as in training: a token sees itself and those before it.

    cos, sin: rotations of the tokens, (.., q, 1, head_dim). mask: which keys a query sees, if not all these.
    """

    def __init__(self, batch: int, cos: Tensor, sin: Tensor, mask: Tensor | None = None) -> None:
        self.batch, self.cos, self.sin, self.mask = batch, cos, sin, mask

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of a layer, (batch, heads, q, head_dim).

        q: (batch, q, heads, head_dim); k, v: (batch, q, kv_heads, head_dim).
        """
        group = q.shape[2] // k.shape[2]
        keys, values = (each.transpose(1, 2).repeat_interleave(group, 1) for each in (k, v))
        return functional.scaled_dot_product_attention(
            q.transpose(1, 2), keys, values, attn_mask=self.mask, is_causal=self.mask is None
        )


class CachedPass(Pass):
    """New tokens after the committed ones of a cache.

    slots: where their keys go (`KVCache.write`). mask: additive, (batch, 1, group * q, kv_len) over the first
    `kv_len` slots; None: every query sees all of them.
    """

    def __init__(
        self,
        cos: Tensor,
        sin: Tensor,
        mask: Tensor | None,
        *,
        cache: KVCache,
        slots: Tensor | int,
        kv_len: int,
    ) -> None:
        super().__init__(cache.batch, cos, sin, mask)
        self.cache, self.slots, self.kv_len = cache, slots, kv_len

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """As `Pass.attend`. The heads of a group are rows of their K/V head, which is read once for all."""
        self.cache.write(layer, self.slots, k, v)
        keys, values = self.cache.first(layer, self.kv_len)
        batch, query_tokens, heads, head_dim = q.shape
        rows = q.transpose(1, 2).reshape(batch, k.shape[2], -1, head_dim)
        return attend(rows, keys, values, self.mask).view(batch, heads, query_tokens, head_dim)
