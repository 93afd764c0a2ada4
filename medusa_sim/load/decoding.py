"""The requests that decode: what they have to emit, how long they are, the KV blocks that they hold."""

from __future__ import annotations

import numpy as np

from medusa_sim.arrays import IntArray
from medusa_sim.load.limits import Limits

_NONE = 1 << 62
"""Fewest tokens to emit where nothing decodes."""


class Decoding:
    """Requests in the first `count` places of the arrays, in order of admission.

    at: which request; remaining: tokens to emit, `least` the fewest; final: tokens in the KV cache when all
    are out, `length_sum` those that are in it now, of all; shared: blocks of each that are held elsewhere
    too, `shared_sum` of all.
    """

    def __init__(self, limits: Limits) -> None:
        self.block_tokens, self.held = limits.block_tokens, limits.held
        self.slots = 1 + limits.lookahead
        self._state = np.zeros((4, limits.max_requests), dtype=np.int64)
        self.at, self.remaining, self.final, self.shared = self._state
        self.count = 0
        self.length_sum = self.shared_sum = 0
        self.least = _NONE

    def join(self, request: int, remaining: int, length: int, shared: int = 0) -> None:
        """A request whose prompt has been read decodes from the next step on."""
        place = self.count
        self.at[place], self.remaining[place], self.final[place] = request, remaining, length + remaining
        self.shared[place] = shared
        self.length_sum += length
        self.shared_sum += shared
        self.least = min(self.least, remaining)
        self.count = place + 1

    def drop_last(self) -> tuple[int, int]:
        """(request, tokens that remain) of the request that was admitted last; its place is free."""
        place = self.count = self.count - 1
        left = int(self.remaining[place])
        self.length_sum -= int(self.final[place]) - left
        self.shared_sum -= int(self.shared[place])
        self._find_least()
        return int(self.at[place]), left

    def emit(self, steps: int) -> None:
        """Every request has emitted a token in each of so many steps, at most `least`."""
        self.remaining[: self.count] -= steps
        self.length_sum += steps * self.count
        self.least -= steps

    def remain(self, remaining: IntArray, total: int, least: int) -> None:
        """Every request is left with so many tokens to emit, the fewest `least`; all have emitted `total`."""
        self.remaining[: self.count] = remaining
        self.length_sum += total
        self.least = least

    def remove_finished(self) -> list[int]:
        """Requests without tokens to emit leave; which they were."""
        state = self._state[:, : self.count]
        staying = state[1] > 0
        gone: list[int]
        gone, _, final, shared = state[:, ~staying].tolist()
        kept = self.count - len(gone)
        self._state[:, :kept] = state[:, staying]
        self.count = kept
        self.length_sum -= sum(final)
        self.shared_sum -= sum(shared)
        self._find_least()
        return gone

    def _find_least(self) -> None:
        self.least = int(np.minimum.reduce(self.remaining[: self.count])) if self.count else _NONE

    def blocks(self, drafts: int, steps: int = 1) -> int:
        """KV blocks held in the last of so many steps, if every draft is accepted until then."""
        more = (drafts + 1) * (steps - 1) + drafts + self.slots
        length = self.final[: self.count] - self.remaining[: self.count]
        filled = (length + (more + self.block_tokens - 1)) // self.block_tokens
        if self.held is None:
            return int(np.add.reduce(filled)) - self.shared_sum
        return int(np.ceil(self.held.take(filled, mode="clip").sum())) - self.shared_sum

    def blocks_bound(self, drafts: int, steps: int) -> int:
        """KV blocks held in the last of so many steps, at most; quicker than `blocks` where it can be."""
        if self.held is not None:
            return self.blocks(drafts, steps)
        size = self.block_tokens
        more = (drafts + 1) * steps - 1 + self.slots
        return (self.length_sum + self.count * (more + size - 1)) // size - self.shared_sum

    def steps_until_full(self, drafts: int, kv_blocks: int) -> int:
        """Steps after which so many blocks may be full, at least 1."""
        size, count = self.block_tokens, self.count
        if self.held is not None:
            free = (kv_blocks - self.blocks(drafts) - count) * size
        else:
            free = (kv_blocks + self.shared_sum) * size - self.length_sum
            free -= count * (size - 2 + self.slots)
        return max(free // (count * (drafts + 1)), 1)

    @property
    def cache_tokens(self) -> int:
        """Tokens' worth of KV cache that is held, of all layers."""
        if self.held is None:
            return self.length_sum - self.shared_sum * self.block_tokens
        return self.blocks(-self.slots) * self.block_tokens
