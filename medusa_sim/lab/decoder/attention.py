"""What a query may see, and attention over it.

A query sees the committed prefix, its own ancestors in the tree under verification, and itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

_ALIGNMENT = 16
"""Elements."""


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
    offset: int = 0,
    sliding_window: int | None = None,
) -> Tensor:
    """(batch, q, kv_len) bool over cache slots, for q new tokens after `offset` uncommitted ones.

    lengths: (batch,) committed tokens; tree_mask: (q, t) or (batch, q, t) with t = offset + q, which
    uncommitted tokens each new one sees; depths: (t,) or (batch, t). The sliding window counts
    positions (committed + depth), not slots.
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
        mask = mask & (key_positions[:, None, :] > positions[:, offset:, None] - sliding_window)
    return mask


def mask_bias(mask: Tensor, group: int, dtype: torch.dtype) -> Tensor:
    """(batch, 1, group * q, kv_len): 0 where `mask` (batch, q, kv_len) lets a query look, -inf elsewhere.

    group: query heads that share a K/V head; their rows follow one another, head by head.
    """
    batch, query_tokens, kv_len = mask.shape
    bias = aligned_tensor((batch, 1, group, query_tokens, kv_len), dtype, mask.device, fill=-torch.inf)
    bias.masked_fill_(mask[:, None, None], 0.0)
    return bias.view(batch, 1, group * query_tokens, kv_len)


def aligned_tensor(shape: Sequence[int], dtype: torch.dtype, device: torch.device, *, fill: float) -> Tensor:
    """A filled tensor whose rows begin at multiples of 16 elements.

    A GPU's kernel copies a mask whose rows begin elsewhere, once in every layer.
    """
    *outer, width = shape
    rows = torch.full((*outer, -(-width // _ALIGNMENT) * _ALIGNMENT), fill, dtype=dtype, device=device)
    return rows[..., :width]


def attend(q: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None) -> Tensor:
    """Softmax attention of (batch, kv_heads, rows, head_dim) over keys and values, under an additive bias.

    One row in bf16 on a CPU is computed twice: torch's kernel takes longer for one row than for two.
    """
    if q.dtype != torch.bfloat16 or q.shape[2] > 1 or q.device.type != "cpu":
        return functional.scaled_dot_product_attention(q, keys, values, bias)
    twice = q.expand(-1, -1, 2, -1)
    return functional.scaled_dot_product_attention(twice, keys, values, bias).narrow(2, 0, 1)
