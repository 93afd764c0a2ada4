"""Which of torch's attention kernels a step gets: it depends on the mask, the dtype and the card."""

from __future__ import annotations

import torch
from torch.nn.attention import SDPBackend

_KEYS, _QUERIES = 64, 16


def attention_kernels(
    device: torch.device, dtype: torch.dtype, *, heads: int, kv_heads: int, head_dim: int, splits: bool
) -> dict[str, str]:
    """Kernel of a plain step and of a tree's, as torch chooses them; `splits` as `Llama.splits_attention`."""
    group = heads // kv_heads

    def chosen(query_tokens: int, *, masked: bool) -> str:
        rows = group * query_tokens
        q = torch.empty(1, kv_heads, rows, head_dim, dtype=dtype, device=device)
        keys = torch.empty(1, kv_heads, _KEYS, head_dim, dtype=dtype, device=device)
        mask = torch.zeros(1, 1, rows, _KEYS, dtype=dtype, device=device) if masked else None
        return str(SDPBackend(torch._fused_sdp_choice(q, keys, keys, mask)).name).lower()

    tree = f"{chosen(_QUERIES, masked=False)} over the prefix, products over the tree" if splits else ""
    return {"plain": chosen(1, masked=False), "tree": tree or chosen(_QUERIES, masked=True)}
