"""Which keys a query may see: the committed prefix, its own ancestors in the tree, and itself."""

from __future__ import annotations

import torch
from torch import Tensor


def causal_mask(query_tokens: int, device: torch.device | str = "cpu") -> Tensor:
    """(q, q) bool of a chain: token i sees tokens 0..i."""
    return torch.ones(query_tokens, query_tokens, dtype=torch.bool, device=device).tril()


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


def node_depths(mask: Tensor) -> Tensor:
    """(batch, n) depth of each node: its ancestors, itself not counted."""
    return mask.sum(-1) - 1


def attention_mask(
    lengths: Tensor, tree_mask: Tensor, kv_len: int, positions: Tensor, sliding_window: int | None = None
) -> Tensor:
    """(batch, q, kv_len) bool over cache slots for q new tokens written at slots length..length+q-1.

    lengths: (batch,) committed tokens; tree_mask: (q, q) or (batch, q, q); positions: (batch, q).
    The sliding window counts positions (depth in the tree), not slots.
    """
    batch, query_tokens = positions.shape
    slots = torch.arange(kv_len, device=lengths.device)
    offset = slots[None, :] - lengths[:, None]  # (batch, kv_len): node index of a slot, negative if committed
    committed = (offset < 0)[:, None, :]
    in_tree = (offset >= 0) & (offset < query_tokens)
    nodes = offset.clamp(0, query_tokens - 1)[:, None, :].expand(batch, query_tokens, kv_len)
    related = torch.gather(tree_mask.expand(batch, query_tokens, query_tokens), 2, nodes)
    mask = committed | (in_tree[:, None, :] & related)
    if sliding_window is not None:
        node_positions = torch.gather(positions, 1, offset.clamp(0, query_tokens - 1))
        key_positions = torch.where(committed[:, 0], slots[None, :], node_positions)
        mask = mask & (key_positions[:, None, :] > positions[:, :, None] - sliding_window)
    return mask
