"""The operators in torch, as the decoder calls them, on operands that are as cold as in its steps.

Weights and K/V are views that rotate through one large buffer: between two uses of the same bytes lie as
many others as the model has weights, or several times the cache, whichever is less. Activations of linear
layers and elementwise kernels rotate through as many bytes as one layer writes. A fused attention row holds
everything between rotation and output projection: the new K and V written to the cache, the product under
the tree mask, the heads merged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend

from medusa_sim.lab.decoder.attention import attend, attention_mask, mask_bias
from medusa_sim.lab.decoder.cache import KVCache
from medusa_sim.lab.decoder.checkpoint import DTYPES
from medusa_sim.lab.decoder.model import RMSNorm
from medusa_sim.lab.decoder.packed import is_packed, product, reordered
from medusa_sim.lab.decoder.rotary import rotate
from medusa_sim.lab.measure.shapes import TimedShape
from medusa_sim.operators.attention import ATTENTION_KINDS

Call = Callable[[], object]

CACHE_MULTIPLE = {"cpu": 3, "cuda": 8}
"""Rotating through this many times the cache leaves nothing of a buffer in it; a GPU's L2 is hashed and keeps
some lines for longer."""
MOST_COPIES = 256
_EMBEDDING_ROWS = 32_000
_TREE_BRANCHES = 4


class Pool:
    """Buffers of random values that operands are cut from; they grow to the largest that was asked for.

    packed: linear layers as `decoder.packed` has them.
    """

    def __init__(self, device: torch.device, cache_bytes: int, *, packed: bool = False) -> None:
        self.device = device
        self.cache_bytes = cache_bytes
        self.rotation_bytes = CACHE_MULTIPLE[device.type] * cache_bytes
        self.packed = packed
        self._buffers: dict[tuple[str, torch.dtype], Tensor] = {}

    def operands(self, shape: Sequence[int], dtype: torch.dtype, between_bytes: float) -> Tensor:
        """(copies, *shape): so many that `between_bytes`, or several caches, are read in a round."""
        return self._copies(shape, dtype, min(between_bytes, self.rotation_bytes), "operands")

    def activations(self, shape: Sequence[int], dtype: torch.dtype, between_bytes: float) -> Tensor:
        """(copies, *shape): so many that `between_bytes` are read in a round; none of them is a weight."""
        return self._copies(shape, dtype, between_bytes, "activations")

    def _copies(self, shape: Sequence[int], dtype: torch.dtype, wanted: float, use: str) -> Tensor:
        each = math.prod(shape)
        copies = min(max(1, math.ceil(wanted / (each * dtype.itemsize))), MOST_COPIES)
        count = copies * each
        held = self._buffers.get((use, dtype))
        if held is None or held.numel() < count:
            # Doubled, so that growing shapes do not each fill a buffer of their own.
            grown = 2 * held.numel() if held is not None else 0
            most = self.rotation_bytes // dtype.itemsize
            for key in [key for key in self._buffers if key[0] == use]:
                del self._buffers[key]  # the old one is freed first
            held = torch.empty(max(count, min(grown, most)), dtype=dtype, device=self.device)
            held.uniform_(-1.0, 1.0)
            self._buffers[use, dtype] = held
        return held[:count].view(copies, *shape)


def calls(shape: TimedShape, pool: Pool) -> list[Call]:
    """One launch of the shape on each copy of its operands, in the order in which they rotate."""
    return CALLS[shape.operator.kind](shape, DTYPES[shape.operator.dtype], pool)


def _random(pool: Pool, dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=pool.device).uniform_(-1.0, 1.0)


def _linear(shape: TimedShape, dtype: torch.dtype, pool: Pool) -> list[Call]:
    m, n, k = shape.sizes.values()
    x = pool.activations((m, k), dtype, shape.activation_bytes)
    weights = pool.operands((n, k), dtype, shape.between_bytes)

    packed = [reordered(weight) for weight in weights] if pool.packed and is_packed(n, k) else []

    def call(i: int) -> Call:
        rows, weight = x[i % len(x)], weights[i % len(weights)]
        if not packed:
            return lambda: functional.linear(rows, weight)
        other = packed[i % len(weights)]
        return lambda: product(rows, weight, other)

    return [call(i) for i in range(max(len(x), len(weights)))]


def _rms_norm(shape: TimedShape, dtype: torch.dtype, pool: Pool) -> list[Call]:
    norm = RMSNorm(shape.sizes["n"], 1e-6).to(device=pool.device, dtype=dtype)
    return [partial(norm, rows) for (rows,) in _tokens(shape, dtype, pool)]


def _rope(shape: TimedShape, dtype: torch.dtype, pool: Pool) -> list[Call]:
    """Queries and keys of every token; the head dimension hardly matters, the largest usual one is taken."""
    m, n = shape.sizes.values()
    dim = next(dim for dim in (128, 64, 32, 16, 8, 4, 2) if n % dim == 0)
    cos, sin = _random(pool, dtype, 1, m, 1, dim), _random(pool, dtype, 1, m, 1, dim)
    keys = max(1, n // dim // 2)

    def call(tokens: Tensor) -> Call:
        x = tokens.view(1, m, n // dim, dim)
        return lambda: (rotate(x[:, :, keys:], cos, sin), rotate(x[:, :, :keys], cos, sin))

    return [call(tokens) for tokens in _tokens(shape, dtype, pool)]


def _activation(shape: TimedShape, dtype: torch.dtype, pool: Pool) -> list[Call]:
    def call(gate: Tensor, up: Tensor) -> Call:
        return lambda: functional.silu(gate) * up

    return [call(gate, up) for gate, up in _pairs(shape, dtype, pool)]


def _residual(shape: TimedShape, dtype: torch.dtype, pool: Pool) -> list[Call]:
    return [partial(torch.add, x, y) for x, y in _pairs(shape, dtype, pool)]


def _next_token(shape: TimedShape, dtype: torch.dtype, pool: Pool) -> list[Call]:
    return [partial(torch.argmax, logits, -1) for logits in _tokens(shape, dtype, pool)]


def _embedding(shape: TimedShape, dtype: torch.dtype, pool: Pool) -> list[Call]:
    table = pool.operands((_EMBEDDING_ROWS, shape.sizes["n"]), dtype, 0.0)[0]
    tokens = torch.randint(0, _EMBEDDING_ROWS, (64, 1, shape.sizes["m"]), device=pool.device)
    return [partial(functional.embedding, row, table) for row in tokens]


def _tokens(shape: TimedShape, dtype: torch.dtype, pool: Pool) -> Tensor:
    """(copies, 1, m, n)."""
    return pool.activations((1, shape.sizes["m"], shape.sizes["n"]), dtype, shape.activation_bytes)


def _pairs(shape: TimedShape, dtype: torch.dtype, pool: Pool) -> list[tuple[Tensor, Tensor]]:
    """Two operands a call, each (m, n)."""
    both = pool.activations((2, shape.sizes["m"], shape.sizes["n"]), dtype, shape.activation_bytes)
    return [(pair[0], pair[1]) for pair in both]


def _unfused(shape: TimedShape, dtype: torch.dtype, pool: Pool) -> list[Call]:
    """QK^T or PV; the query heads of a K/V head are rows of one product, so that K or V is read once."""
    batch, q_len, kv_len, heads, kv_heads, head_dim = shape.sizes.values()
    is_qk = shape.operator.kind == "qk"
    rows = heads // kv_heads * q_len
    store = pool.operands((batch, kv_heads, kv_len, head_dim), dtype, shape.between_bytes)
    width = head_dim if is_qk else kv_len
    left = _random(pool, dtype, batch, kv_heads, rows, width)

    def call(right: Tensor) -> Call:
        right = right.transpose(-1, -2) if is_qk else right
        return lambda: torch.matmul(left, right)

    return [call(right) for right in store]


def tree_mask(q_len: int, device: torch.device) -> Tensor:
    """(q, q) bool of a tree in which every node has up to four children: which ancestors each node sees."""
    mask = torch.zeros(q_len, q_len, dtype=torch.bool)
    for node in range(q_len):
        if node:
            mask[node] = mask[(node - 1) // _TREE_BRANCHES]
        mask[node, node] = True
    return mask.to(device)


def _fused(shape: TimedShape, dtype: torch.dtype, pool: Pool) -> list[Call]:
    """Attention as the decoder does it (`decoder.model.Attention`, from rotation to output projection)."""
    batch, q_len, kv_len, heads, kv_heads, head_dim = shape.sizes.values()
    device = pool.device
    store = pool.operands((2, batch, kv_heads, kv_len, head_dim), dtype, shape.between_bytes)
    lengths = torch.full((batch,), kv_len - q_len, device=device)
    cache = KVCache(store[:, 0], store[:, 1], lengths)  # its layers are the rotating copies
    order = torch.arange(q_len, device=device)
    causal = shape.operator.kind == "prefill_attention"
    within = order[:, None] >= order if causal else tree_mask(q_len, device)
    group, bias = heads // kv_heads, None
    if q_len > 1:
        bias = mask_bias(attention_mask(lengths, within, kv_len, order), group, dtype)
    slots = lengths[:, None] + order
    q = _random(pool, dtype, batch, q_len, heads, head_dim).transpose(1, 2)
    k = _random(pool, dtype, batch, q_len, kv_heads, head_dim)
    v = _random(pool, dtype, batch, q_len, kv_heads, head_dim)

    def call(layer: int) -> Call:
        def once() -> Tensor:
            cache.write(layer, slots, k, v)
            rows = q.reshape(batch, kv_heads, group * q_len, head_dim)
            out = attend(rows, cache.keys[layer], cache.values[layer], bias)
            merged = out.reshape(batch, heads, q_len, head_dim).transpose(1, 2)
            return merged.reshape(batch, q_len, -1)

        return once

    return [call(layer) for layer in range(store.shape[0])]


CALLS: dict[str, Callable[[TimedShape, torch.dtype, Pool], list[Call]]] = {
    "gemm": _linear,
    **dict.fromkeys(ATTENTION_KINDS, _fused),
    **dict.fromkeys(("qk", "pv"), _unfused),
    "rms_norm": _rms_norm,
    "rope": _rope,
    "activation": _activation,
    "residual": _residual,
    "embedding": _embedding,
    "next_token": _next_token,
}
"""How each kind of operator is launched."""


_KEYS, _QUERIES = 64, 16


def attention_kernels(
    device: torch.device, dtype: torch.dtype, heads: int, kv_heads: int, head_dim: int
) -> dict[str, str]:
    """Kernel of a plain step and of a tree's, as torch chooses them."""
    group = heads // kv_heads

    def chosen(query_tokens: int, *, masked: bool) -> str:
        rows = group * query_tokens
        q = torch.empty(1, kv_heads, rows, head_dim, dtype=dtype, device=device)
        keys = torch.empty(1, kv_heads, _KEYS, head_dim, dtype=dtype, device=device)
        mask = torch.zeros(1, 1, rows, _KEYS, dtype=dtype, device=device) if masked else None
        return str(SDPBackend(torch._fused_sdp_choice(q, keys, keys, mask)).name).lower()

    return {"plain": chosen(1, masked=False), "tree": chosen(_QUERIES, masked=True)}
