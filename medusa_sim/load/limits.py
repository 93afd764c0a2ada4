"""What an engine lets into one step: requests, tokens, blocks of the KV cache."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from medusa_sim.errors import UsageError
from medusa_sim.plan.draft_options import DraftOption
from medusa_sim.plan.scenario import Scenario
from medusa_sim.step.memory import step_memory_bytes, usable_memory_bytes

MAX_REQUESTS = 256
TOKEN_BUDGET = 8192
BLOCK_TOKENS = 16
"""vLLM's `max_num_seqs` and `max_num_batched_tokens` on a card of 70 GB or more, and its block size."""

MOST_REQUESTS, MOST_TOKENS, MOST_BLOCK_TOKENS = 4096, 131_072, 1024
"""Times are kept for every number of requests, and for every number of tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of the scheduler.

    max_requests: in one step (`max_num_seqs`). token_budget: tokens of one step, those of prompts among them
    (`max_num_batched_tokens`). block_tokens: of one KV block; kv_blocks: how many the card holds. positions:
    longest request of the model. prefix_hit_rate: share of a prompt's tokens that are found in the cache and
    not computed; their blocks are held all the same.
    """

    max_requests: int = MAX_REQUESTS
    token_budget: int = TOKEN_BUDGET
    block_tokens: int = BLOCK_TOKENS
    kv_blocks: int
    positions: int
    prefix_hit_rate: float = 0.0

    def __post_init__(self) -> None:
        for name, value, most in (
            ("max-num-seqs", self.max_requests, MOST_REQUESTS),
            ("max-num-batched-tokens", self.token_budget, MOST_TOKENS),
            ("block-size", self.block_tokens, MOST_BLOCK_TOKENS),
        ):
            if not 1 <= value <= most:
                raise UsageError(f"{name} {value}: whole numbers from 1 to {most} are allowed")
        if self.token_budget < self.max_requests:
            raise UsageError(
                f"max-num-batched-tokens {self.token_budget} is below max-num-seqs {self.max_requests}: a "
                "step could not hold one token of each request; raise the one or lower the other"
            )
        if not 0.0 <= self.prefix_hit_rate < 1.0:
            raise UsageError(
                f"prefix hit rate {self.prefix_hit_rate:g}: a share from 0 to below 1 is allowed"
            )

    @property
    def kv_tokens(self) -> int:
        """Tokens that the KV cache holds."""
        return self.kv_blocks * self.block_tokens

    def longest_request(self, drafts: int) -> int:
        """Most prompt and output tokens that one request may have with room for the drafts of a step."""
        return min(self.positions, self.kv_tokens - drafts - 1)


def limits_of(
    scenario: Scenario,
    option: DraftOption | None,
    *,
    max_requests: int = MAX_REQUESTS,
    token_budget: int = TOKEN_BUDGET,
    block_tokens: int = BLOCK_TOKENS,
    prefix_hit_rate: float = 0.0,
) -> Limits:
    """The limits of a scenario's card: what weights, the drafter and activations leave is KV cache.

    option: the longest draft that is loaded; None for plain decoding. Activations are those of `max_requests`
    in one step. Raises UsageError where nothing is left.
    """
    drafter = None if option is None else option.drafter
    candidates = 1 if option is None else option.depth + 1
    none, one, empty = (
        float(step_memory_bytes(scenario.shard, drafter, batch, length, count))
        for batch, length, count in (
            (1, 0, candidates),
            (1, 1, candidates),
            (max_requests, 0, candidates),
        )
    )
    bytes_per_token = one - none
    fixed = empty - bytes_per_token * max_requests * candidates
    room = usable_memory_bytes(scenario.gpu) - fixed
    blocks = int(np.floor(room / (bytes_per_token * block_tokens)))
    if blocks < 1:
        raise UsageError(
            f"{scenario.model.name} with {max_requests} requests leaves no room for a KV cache on "
            f"{scenario.gpu.name}; lower --max-num-seqs, or choose a larger card or smaller weights"
        )
    return Limits(
        max_requests=max_requests,
        token_budget=token_budget,
        block_tokens=block_tokens,
        kv_blocks=blocks,
        positions=scenario.model.max_seq_len,
        prefix_hit_rate=prefix_hit_rate,
    )
