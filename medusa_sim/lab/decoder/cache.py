"""A static key/value cache: one length per sequence, and room after it for the tree under verification."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from medusa_sim.errors import UsageError


class KVCache:
    """Keys and values of every layer, allocated once (`Llama.new_cache`).

    `keys`, `values`: (layers, batch, kv_heads, capacity, head_dim). Rows at and after a sequence's length
    are scratch: a verification step writes its tree there, and `keep` keeps the accepted rows.
    Lengths are known on the host too as long as it decides them (`keep`, `grow`): nothing waits for a device.
    """

    _on_host: list[int] | None

    def __init__(self, keys: Tensor, values: Tensor, lengths: Tensor) -> None:
        self.keys, self.values, self.lengths = keys, values, lengths

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

    def write(self, layer: int, slots: Tensor | int, keys: Tensor, values: Tensor) -> None:
        """Stores new rows (batch, q, kv_heads, head_dim).

        slots: (batch, q), or the first one where all sequences have theirs side by side from there.
        """
        if isinstance(slots, int):
            for store, new in ((self.keys, keys), (self.values, values)):
                store[layer].narrow(2, slots, new.shape[1]).copy_(new.transpose(1, 2))
            return
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
