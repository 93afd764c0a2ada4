"""Which keys a query may see: the committed prefix, its own ancestors in the tree, and itself."""

from __future__ import annotations

import torch
from torch import Tensor


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
    """(batch, q, kv_len) bool over cache slots, for q new tokens behind `offset` uncommitted ones.

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
    zero, never = (torch.full((), value, dtype=dtype, device=mask.device) for value in (0.0, -torch.inf))
    bias = torch.where(mask, zero, never)[:, None]
    return bias if group == 1 else bias.repeat(1, 1, group, 1)
