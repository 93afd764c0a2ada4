"""A static key/value cache: one length per sequence, and room behind it for the tree under verification.

Which keys a query may see: the committed prefix, its own ancestors in the tree, and itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from medusa_sim.errors import UsageError
from medusa_sim.lab.decoder.config import DecoderConfig


class KVCache:
    """Keys and values of every layer, allocated once.

    `keys`, `values`: (layers, batch, kv_heads, capacity, head_dim). Rows at and after a sequence's length
    are scratch: a verification step writes its tree there, and `keep` keeps the accepted rows.
    Lengths are known on the host too as long as it decides them (`keep`, `grow`): nothing waits for a device.
    """

    def __init__(
        self,
        config: DecoderConfig,
        *,
        batch: int,
        capacity: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        shape = (config.num_hidden_layers, batch, config.num_key_value_heads, capacity, config.head_dim)
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)
        self._lengths = torch.zeros(batch, dtype=torch.long, device=device)
        self._on_host: list[int] | None = [0] * batch

    @classmethod
    def over(cls, keys: Tensor, values: Tensor, lengths: Tensor) -> KVCache:
        """A cache of rows that are there."""
        cache = cls.__new__(cls)
        cache.keys, cache.values, cache.lengths = keys, values, lengths
        return cache

    @property
    def batch(self) -> int:
        """Sequences."""
        return self.keys.shape[1]

    @property
    def capacity(self) -> int:
        """Tokens that one sequence can hold, tree included."""
        return self.keys.shape[3]

    @property
    def lengths(self) -> Tensor:
        """(batch,) committed tokens of each sequence. Set by assignment (`+=` too): what else changes them in
        place is not seen by `lengths_on_host`.
        """
        return self._lengths

    @lengths.setter
    def lengths(self, lengths: Tensor) -> None:
        self._lengths, self._on_host = lengths, None

    @property
    def lengths_on_host(self) -> list[int]:
        """`lengths`, copied from the device where they were last set there."""
        if self._on_host is None:
            self._on_host = self._lengths.tolist()
        return self._on_host

    def require_room(self, new_tokens: int) -> int:
        """The longest sequence's length. Raises UsageError (one line) if it cannot take `new_tokens` more."""
        longest = max(self.lengths_on_host)
        if longest + new_tokens > self.keys.shape[3]:
            raise UsageError(
                f"{longest} committed + {new_tokens} new tokens do not fit the cache of {self.capacity}; "
                "shorten the prompt, lower --max-new-tokens or use a smaller tree"
            )
        return longest

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Stores new rows. slots: (batch, q); keys, values: (batch, q, kv_heads, head_dim)."""
        rows = torch.arange(self.batch, device=slots.device)[:, None]
        # Advanced indices around a slice put (batch, q) first, as the new rows have it.
        self.keys[layer][rows, :, slots] = keys
        self.values[layer][rows, :, slots] = values

    def first(self, layer: int, slots: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer's first slots, each (batch, kv_heads, slots, head_dim)."""
        return self.keys[layer].narrow(2, 0, slots), self.values[layer].narrow(2, 0, slots)

    def keep(self, paths: Sequence[Sequence[int]]) -> None:
        """Keeps the rows of each sequence's path through the last tree, and grows its length by as many.

        Nodes count from the root, 0; an empty path leaves a sequence as it was. Keys were rotated for
        position committed + depth, so moving rows is right exactly because a kept path fills those positions.
        """
        lengths = self.lengths_on_host
        moved = [
            (b, length + place, length + node)
            for b, (length, path) in enumerate(zip(lengths, paths, strict=True))
            for place, node in enumerate(path)
            if node != place
        ]
        if moved:
            rows, targets, sources = torch.tensor(moved, device=self._lengths.device).unbind(1)
            for store in (self.keys, self.values):
                # Indexing copies before the assignment writes: sources and targets overlap.
                store[:, rows, :, targets] = store[:, rows, :, sources]
        self.grow([len(path) for path in paths])

    def grow(self, counts: Sequence[int]) -> None:
        """Commits so many scratch rows of each sequence as they lie."""
        lengths = self.lengths_on_host
        for i, count in enumerate(counts):
            lengths[i] += count
        self._lengths += counts[0] if len(counts) == 1 else torch.tensor(counts, device=self._lengths.device)

    def narrowed(self, capacity: int) -> KVCache:
        """The same rows up to a capacity, with lengths of its own."""
        keys, values = (store.narrow(3, 0, capacity) for store in (self.keys, self.values))
        return KVCache.over(keys, values, self._lengths.clone())

    def rows(self, sequence: int) -> tuple[Tensor, Tensor]:
        """Committed keys and values of one sequence, each (layers, kv_heads, length, head_dim)."""
        length = self.lengths_on_host[sequence]
        return self.keys[:, sequence, :, :length], self.values[:, sequence, :, :length]


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
