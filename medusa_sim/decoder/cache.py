"""A static key/value cache: one length per sequence, and room behind it for the tree under verification."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from medusa_sim.decoder.config import DecoderConfig
from medusa_sim.errors import UsageError


class KVCache:
    """Keys and values of every layer, allocated once.

    `keys`, `values`: (layers, batch, kv_heads, capacity, head_dim). `lengths`: (batch,) committed
    tokens of each sequence. Rows at and after a sequence's length are scratch: a verification step
    writes its tree there, and `compact` keeps the accepted rows.
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
        self.lengths = torch.zeros(batch, dtype=torch.long, device=device)
        self._layers_of: Tensor | None = None
        self._layers: list[tuple[Tensor, Tensor]] = []

    @property
    def batch(self) -> int:
        """Sequences."""
        return self.keys.shape[1]

    @property
    def capacity(self) -> int:
        """Tokens that one sequence can hold, tree included."""
        return self.keys.shape[3]

    def require_room(self, new_tokens: int) -> int:
        """The longest sequence's length. Raises UsageError (one line) if it cannot take `new_tokens` more."""
        longest: int = max(self.lengths.tolist())
        if longest + new_tokens > self.keys.shape[3]:
            raise UsageError(
                f"{longest} committed + {new_tokens} new tokens do not fit the cache of {self.capacity}; "
                "shorten the prompt, lower --max-new-tokens or use a smaller tree"
            )
        return longest

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Stores new rows. slots: (batch, q); keys, values: (batch, kv_heads, q, head_dim)."""
        rows = torch.arange(self.batch, device=slots.device)[:, None]
        # Advanced indices around a slice put (batch, q) first: the new rows are laid out to match.
        self.keys[layer][rows, :, slots] = keys.transpose(1, 2)
        self.values[layer][rows, :, slots] = values.transpose(1, 2)

    def append(
        self, layer: int, start: int, keys: Tensor, values: Tensor, slots: int
    ) -> tuple[Tensor, Tensor]:
        """`write` to slots `start`, `start + 1`, ... of every sequence, and then `first`."""
        if self._layers_of is not self.keys:
            self._layers = list(zip(self.keys.unbind(0), self.values.unbind(0), strict=True))
            self._layers_of = self.keys
        own_keys, own_values = self._layers[layer]
        rows = keys.shape[2]
        own_keys.narrow(2, start, rows).copy_(keys)
        own_values.narrow(2, start, rows).copy_(values)
        return own_keys.narrow(2, 0, slots), own_values.narrow(2, 0, slots)

    def first(self, layer: int, slots: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer's first slots, each (batch, kv_heads, slots, head_dim)."""
        return self.keys[layer].narrow(2, 0, slots), self.values[layer].narrow(2, 0, slots)

    def compact(self, nodes: Tensor, counts: Tensor) -> None:
        """Keeps the accepted rows of the last tree and grows each length by `counts`.

        nodes: (batch, d) tree nodes to keep in order, entries at and after `counts` are ignored;
        counts: (batch,), 0 leaves a sequence as it was. Keys were rotated for position
        committed + depth, so moving rows is right exactly because a kept path fills those positions.
        """
        width = nodes.shape[1]
        if width:
            order = torch.arange(width, device=nodes.device)
            kept = order < counts[:, None]
            # Ignored entries copy a slot onto itself. No slot overflows: the tree itself was that wide.
            target = self.lengths[:, None] + order
            source = torch.where(kept, self.lengths[:, None] + nodes, target)
            rows = torch.arange(self.batch, device=nodes.device)[:, None]
            for store in (self.keys, self.values):
                # Indexing copies before the assignment writes: source and target ranges overlap.
                store[:, rows, :, target] = store[:, rows, :, source]
        self.lengths += counts

    def keep(self, paths: Sequence[Sequence[int]]) -> None:
        """`compact` to the nodes of each sequence's path; rows move only where a path is not 0, 1, 2, ..."""
        counts = [len(path) for path in paths]
        if any(path[-1] != len(path) - 1 for path in paths if path):
            if len(paths) == 1:
                self._keep_alone(paths[0])
                return
            width = max(counts)
            padded = [[*path, *([0] * (width - len(path)))] for path in paths]
            nodes = torch.tensor(padded, device=self.lengths.device)
            self.compact(nodes, torch.tensor(counts, device=self.lengths.device))
        elif len(counts) == 1:
            self.lengths += counts[0]
        else:
            self.lengths += torch.tensor(counts, device=self.lengths.device)

    def _keep_alone(self, path: Sequence[int]) -> None:
        """`keep` for a batch of one: copies of whole rows instead of an index per row and head."""
        (length,) = self.lengths.tolist()
        source = torch.tensor(path, device=self.lengths.device) + length
        for store in (self.keys, self.values):
            store.narrow(3, length, len(path)).copy_(store.index_select(3, source))
        self.lengths += len(path)

    def rows(self, sequence: int) -> tuple[Tensor, Tensor]:
        """Committed keys and values of one sequence, each (layers, kv_heads, length, head_dim)."""
        length = int(self.lengths[sequence])
        return self.keys[:, sequence, :, :length], self.values[:, sequence, :, :length]
