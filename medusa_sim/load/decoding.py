"""The requests that decode: their lengths, what they still have to emit, and the KV blocks that they hold."""

from __future__ import annotations

import numpy as np

from medusa_sim.arrays import IntArray
from medusa_sim.load.limits import Limits


class Decoding:
    """Requests in the first `count` places of the arrays, in order of admission.

    at: which request; remaining: tokens to emit; length: tokens in the KV cache, `length_sum` of all.
    """

    def __init__(self, limits: Limits) -> None:
        self.block_tokens = limits.block_tokens
        self.at, self.remaining, self.length = (
            np.zeros(limits.max_requests, dtype=np.int64) for _ in range(3)
        )
        self.count = 0
        self.length_sum = 0

    def join(self, request: int, remaining: int, length: int) -> None:
        """A request whose prompt has been read decodes from the next step on."""
        place = self.count
        self.at[place], self.remaining[place], self.length[place] = request, remaining, length
        self.length_sum += length
        self.count = place + 1

    def drop_last(self) -> tuple[int, int]:
        """(request, tokens that remain) of the request that was admitted last; its place is free."""
        self.count -= 1
        self.length_sum -= int(self.length[self.count])
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
        for array in (self.at, self.remaining, self.length):
            array[:kept] = array[:count][staying]
        self.count = kept
        self.length_sum = int(self.length[:kept].sum())
        return gone

    def blocks(self, drafts: int) -> int:
        """KV blocks held in the next step."""
        held = (self.length[: self.count] + (drafts + self.block_tokens)) // self.block_tokens
        return int(held.sum())

    def blocks_bound(self, drafts: int, steps: int) -> int:
        """KV blocks held after so many steps, at most; quicker than `blocks`."""
        size = self.block_tokens
        return (self.length_sum + self.count * ((drafts + 1) * steps + size - 1)) // size

    def steps_until_full(self, drafts: int, kv_blocks: int) -> int:
        """Steps after which so many blocks may be full, at least 1."""
        size, count = self.block_tokens, self.count
        free = kv_blocks * size - self.length_sum - count * (size - 1)
        return max(free // (count * (drafts + 1)), 1)
