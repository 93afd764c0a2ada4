"""The KV cache of a run: blocks that decoding requests fill, blocks that prompts have reserved."""

from __future__ import annotations

from math import ceil

from medusa_sim.load.batch import Batch
from medusa_sim.load.limits import SchedulerLimits

_ROUNDING = 1e-9
"""Rounding of sums of fractions of blocks."""


class Cache:
    """Blocks in use by a batch and by prompts that are being read.

    blocks: that there are, without those of a text that all requests share. reserved: by prompts that are
    being read, for all of each from its start. most_used: an upper bound of the blocks in use at any time.

    A request fills ceil((tokens + drafts + slots) / block) blocks (L2) if every draft is accepted. Counting
    them takes a pass over the batch, so a bound stands in wherever it is enough: the one where the last block
    of every request has just begun, and all are of the mean length. What a request holds of the blocks that
    it fills grows ever slower (windows), so no other lengths of the same mean hold more.
    """

    def __init__(self, limits: SchedulerLimits, batch: Batch, longest_prompt: int) -> None:
        self._longest_prompt = longest_prompt
        self.blocks = limits.kv_blocks_for(limits.schedulers, longest_prompt)
        self.reserved = self.most_used = self._prompts = 0
        self._limits, self._batch = limits, batch
        self._block_tokens, self._slots = limits.block_tokens, 1 + limits.lookahead
        self._held = None if limits.held is None else limits.held.tolist()

    def reserve(self, blocks: int) -> None:
        """Keep blocks for a prompt that begins to be read."""
        self.reserved += blocks
        self._prompts += 1

    def release(self, blocks: int) -> None:
        """Take back what a prompt had reserved."""
        self.reserved -= blocks
        self._prompts -= 1

    def blocks_for(self, more: int = 0) -> int:
        """Blocks for those that decode or read their prompts, and for so many more requests."""
        requests = len(self._batch.requests) + self._prompts + more
        return self._limits.kv_blocks_for(requests, self._longest_prompt)

    def blocks_needed(self, drafts: int) -> int:
        """Blocks in the next step, counted request by request."""
        return self._counted_blocks(drafts + self._slots) - self._batch.shared + self.reserved

    def _counted_blocks(self, ahead: int) -> int:
        """Blocks of the batch with so many slots ahead of each request."""
        size = self._block_tokens
        beyond = ahead - 1 + size - 1  # the last committed token is not cached yet
        filled = [(request.committed + beyond) // size for request in self._batch.requests]
        held = filled if self._held is None else [self._held[blocks] for blocks in filled]
        return ceil(sum(held) - _ROUNDING)

    def _most_tokens(self, drafts: int, steps: int) -> int:
        """`most_blocks` of the batch alone, in tokens."""
        requests, size = len(self._batch.requests), self._block_tokens
        tokens = self._batch.tokens + requests * ((drafts + 1) * steps - 1 + self._slots + size - 1)
        if self._held is None or not requests:
            return tokens
        return ceil(requests * self._limits.held_of(tokens / size / requests)) * size

    def most_blocks(self, drafts: int, steps: int = 1) -> int:
        """An upper bound of the blocks in the last of so many steps."""
        blocks = self._most_tokens(drafts, steps) // self._block_tokens
        return blocks - self._batch.shared + self.reserved

    def fits(self, drafts: int, prompt_blocks: int = 0) -> bool:
        """Whether the next step has room, and a prompt of so many blocks with it."""
        free = self.blocks_for(1 if prompt_blocks else 0) - prompt_blocks
        return self.most_blocks(drafts) <= free or self.blocks_needed(drafts) <= free

    def steps_that_fit(self, drafts: int) -> int:
        """Steps that are sure to find room, at least the next one."""
        room = (self.blocks_for() - self.reserved + self._batch.shared) * self._block_tokens
        free_tokens = room - self._most_tokens(drafts, steps=1)
        return 1 + max(free_tokens // (len(self._batch.requests) * (drafts + 1)), 0)

    def record_use(self, drafts: int, steps: int) -> None:
        """Remember the most blocks that so many steps may use."""
        self.most_used = max(self.most_used, min(self.most_blocks(drafts, steps), self.blocks))

    @property
    def tokens(self) -> int:
        """Tokens of the batch and of reserved blocks; with windows, of the blocks held."""
        reserved = (self.reserved - self._batch.shared) * self._block_tokens
        if self._limits.held is None:
            return self._batch.tokens + reserved
        return self._counted_blocks(0) * self._block_tokens + reserved
