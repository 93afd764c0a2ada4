"""The requests that decode: their lengths, what they still have to emit, and the KV blocks that they hold."""

from __future__ import annotations

import numpy as np

from medusa_sim.arrays import IntArray
from medusa_sim.load.limits import Limits


class Decoding:
    """Requests in the first `count` places of the arrays, in order of admission.

    at: which request; remaining: tokens to emit; length: tokens in the KV cache, `length_sum` of all; shared:
    blocks of each that are held elsewhere too, `shared_sum` of all.
    """

    def __init__(self, limits: Limits) -> None:
        self.block_tokens, self.held = limits.block_tokens, limits.held
        self.slots = 1 + limits.lookahead
        self.at, self.remaining, self.length, self.shared = (
            np.zeros(limits.max_requests, dtype=np.int64) for _ in range(4)
        )
        self.count = 0
        self.length_sum = self.shared_sum = 0

    def join(self, request: int, remaining: int, length: int, shared: int = 0) -> None:
        """A request whose prompt has been read decodes from the next step on."""
        place = self.count
        self.at[place], self.remaining[place], self.length[place] = request, remaining, length
        self.shared[place] = shared
        self.length_sum += length
        self.shared_sum += shared
        self.count = place + 1

    def drop_last(self) -> tuple[int, int]:
        """(request, tokens that remain) of the request that was admitted last; its place is free."""
        self.count -= 1
        self.length_sum -= int(self.length[self.count])
        self.shared_sum -= int(self.shared[self.count])
        return int(self.at[self.count]), int(self.remaining[self.count])

    def emit(self, gained: IntArray | int, total: int) -> None:
        """Every request has emitted `gained` tokens, `total` of all."""
        self.remaining[: self.count] -= gained
        self.length[: self.count] += gained
        self.length_sum += total

    def remove_finished(self) -> list[int]:
        """Requests without tokens to emit leave; which they were."""
        count = self.count
        staying = self.remaining[:count] > 0
        if staying.all():
            return []
        gone: list[int] = self.at[:count][~staying].tolist()
        kept = int(staying.sum())
        for array in (self.at, self.remaining, self.length, self.shared):
            array[:kept] = array[:count][staying]
        self.count = kept
        self.length_sum = int(self.length[:kept].sum())
        self.shared_sum = int(self.shared[:kept].sum())
        return gone

    def blocks(self, drafts: int, steps: int = 1) -> int:
        """KV blocks held in the last of so many steps, if every draft is accepted until then."""
        more = (drafts + 1) * (steps - 1) + drafts + self.slots
        filled = (self.length[: self.count] + (more + self.block_tokens - 1)) // self.block_tokens
        if self.held is None:
            return int(filled.sum()) - self.shared_sum
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
