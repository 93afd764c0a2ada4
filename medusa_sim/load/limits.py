"""Limits of an engine on one step: requests, tokens, blocks of the KV cache."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np

from medusa_sim.arrays import FloatArray, IntArray
from medusa_sim.errors import UsageError
from medusa_sim.load.arguments import BLOCK_TOKENS, MOST_IN_STEP, MOST_TOKENS, LoadArguments
from medusa_sim.scenario.draft_options import DraftOption
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.serving.traffic import MAX_REQUESTS, TOKEN_BUDGET, drafting_requests, step_limits, step_tokens
from medusa_sim.step.memory import DrafterMemory, drafter_memory, profiled_bytes, request_bytes

_MOST_SLOTS = 4096
"""Slots beyond its positions that a request may ask for: drafts and look-ahead."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SchedulerLimits:
    """Limits of the scheduler.

    Tokens of a request fill blocks; it holds as many, but fewer where some layers keep a window only.
    """

    max_requests: int = MAX_REQUESTS
    """Requests of one step (`max_num_seqs`)."""
    token_budget: int = TOKEN_BUDGET
    """Tokens of one step, those of prompts among them (`max_num_batched_tokens`)."""
    block_tokens: int = BLOCK_TOKENS
    """Tokens of one KV block of all layers."""
    prompt_interval: int = 1
    """Steps from one that carries prompts to the next that may, while any request decodes (vLLM's
    `prefill_schedule_interval`, SGLang's `--prefill-decode-interval`)."""
    prompt_wait: int = 0
    """Steps that the first of several prompts waits for others meanwhile, until they fill a step
    (TensorRT-LLM's `batch_wait_timeout_iters`)."""
    whole_prompts: bool = False
    """Whether prompts are read whole where a step has room for them, not in chunks."""
    kv_blocks: int
    """Blocks of the caches of all schedulers, each of which fills its own alone."""
    schedulers: int = 1
    """`Parallel.schedulers`."""
    positions: int
    """Longest request of the model."""
    prefix_hit_rate: float = 0.0
    """Share of a prompt's tokens that are found in the cache and not computed."""
    shares_prefix: bool = False
    """Whether blocks of these are held once in all, not by each request."""
    lookahead: int = 0
    """Slots of a request besides those of its tokens and drafts."""
    held: FloatArray | None = None
    """Entry i is what a request holds when its tokens fill i blocks; None: i."""

    def __post_init__(self) -> None:
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
        """Tokens that the KV caches hold in all layers."""
        return self.kv_blocks * self.block_tokens

    @property
    def own_kv_tokens(self) -> int:
        """Tokens that the cache of one scheduler holds: no request has more."""
        return self.kv_tokens // self.schedulers

    def kv_blocks_for(self, requests: int, prompt_tokens: int = 0) -> int:
        """Blocks that so many requests of like lengths can fill between them, without those that they share.

        Schedulers take whole requests: their caches are not full where one has a request more than others.
        prompt_tokens: of which every cache holds the shared ones once.
        """
        blocks = self.kv_blocks // self.schedulers - self.shared_blocks(prompt_tokens)
        fullest = max(-(-requests // self.schedulers), 1)
        return blocks * max(requests, 1) // fullest

    def blocks_of(self, tokens: int) -> int:
        """Blocks that one request of so many tokens holds, with the slots of a step without drafts."""
        return ceil(self.held_of(-(-(tokens + 1 + self.lookahead) // self.block_tokens)))

    def held_of(self, filled: float) -> float:
        """Blocks that a request holds whose tokens fill `filled` blocks, linear between whole numbers."""
        if self.held is None:
            return filled
        place = min(int(filled), self.held.size - 2)
        below = self.held.item(place)
        return below + (self.held.item(place + 1) - below) * min(filled - place, 1.0)

    def found_tokens(self, prompt_tokens: int, session_tokens: int | None = None) -> int:
        """Tokens of a prompt that are found in the cache: at least one is computed.

        session_tokens: of its session before it, where that is known: no more is found, nothing by the first.
        """
        if not self.prefix_hit_rate:
            return 0
        cached = min(round(self.prefix_hit_rate * prompt_tokens), prompt_tokens - 1)
        return cached if session_tokens is None or self.shares_prefix else min(cached, session_tokens)

    def all_found_tokens(self, prompt_tokens: IntArray, session_tokens: IntArray | None) -> IntArray:
        """(requests,) `found_tokens` of each request."""
        before = [None] * prompt_tokens.size if session_tokens is None else session_tokens.tolist()
        return np.array([*map(self.found_tokens, prompt_tokens.tolist(), before)], dtype=np.int64)

    def shared_blocks(self, prompt_tokens: int) -> int:
        """Whole blocks of a prompt that others hold too."""
        return self.found_tokens(prompt_tokens) // self.block_tokens if self.shares_prefix else 0

    def longest_request(self, drafts: int) -> int:
        """Most prompt and output tokens that one request may have with room for the drafts of a step."""
        blocks = self.kv_blocks_for(1)
        if self.held is not None:
            blocks = int(np.searchsorted(self.held, blocks, side="right")) - 1
        return min(self.positions, blocks * self.block_tokens - drafts - 1 - self.lookahead)


def limits_of(
    scenario: Scenario, option: DraftOption | None, asked: LoadArguments | None = None
) -> SchedulerLimits:
    """The limits of a scenario: the KV cache has what weights, drafter and the widest step leave of the GPU.

    option: the longest draft that is loaded; None for plain decoding. Raises UsageError where none is left.
    """
    asked = asked or LoadArguments()
    requests, tokens = _step_limits(scenario, asked, has_drafter=option is not None)
    drafter = drafter_memory(scenario.shard, None if option is None else option.drafter)
    room_bytes = kv_room_bytes(scenario, drafter, _verified_tokens(option), requests, tokens)
    blocks, held = _kv_blocks(scenario, drafter, _verified_tokens(option), room_bytes, asked.block_size)
    if blocks < 1:
        alone = kv_room_bytes(scenario, drafter, _verified_tokens(option), 1, tokens)
        fewer = "lower --max-num-seqs, or " if alone > 0 else ""
        raise UsageError(
            f"{scenario.model.name} with {requests} requests leaves no room for a KV cache on "
            f"{scenario.gpu.name}; {fewer}choose more GPUs (--tp), a larger one or smaller weights "
            "(--weight-dtype)"
        )
    engine, schedulers = scenario.runtime.engine, scenario.parallel.schedulers
    prompt_wait = 0 if engine is None else engine.prompt_wait_steps
    return SchedulerLimits(
        max_requests=requests,
        token_budget=tokens,
        block_tokens=asked.block_size,
        prompt_interval=asked.prompt_interval,
        prompt_wait=prompt_wait if asked.prompt_wait is None else asked.prompt_wait,
        whole_prompts=engine is not None and engine.whole_prompts,
        kv_blocks=schedulers * blocks,
        schedulers=schedulers,
        positions=scenario.model.max_seq_len,
        prefix_hit_rate=asked.prefix_hit_rate,
        shares_prefix=asked.prefix == "system",
        lookahead=int(drafter.kv_slots),
        held=held,
    )


def _step_limits(scenario: Scenario, asked: LoadArguments, *, has_drafter: bool) -> tuple[int, int]:
    """(requests, tokens) of a step: those asked for, else what the engine allows on the GPU."""
    runtime, gpu, schedulers = scenario.runtime, scenario.gpu, scenario.parallel.schedulers
    requests, _ = step_limits(runtime, gpu, schedulers=schedulers)
    if has_drafter:
        requests = drafting_requests(runtime, gpu, schedulers=schedulers)
    requests = asked.max_num_seqs or min(requests, MOST_IN_STEP)
    tokens = int(step_tokens(runtime, gpu, requests, schedulers=schedulers))
    return requests, asked.max_num_batched_tokens or min(tokens, MOST_TOKENS)


def _kv_blocks(
    scenario: Scenario, drafter: DrafterMemory, verified: int, room_bytes: float, block_tokens: int
) -> tuple[int, FloatArray | None]:
    """(blocks of one GPU's cache, blocks that a request with so many filled ones holds; None: as many).

    verified: tokens of each request in a step. room_bytes: of the cache.
    """
    filled = np.arange(-(-scenario.model.max_seq_len // block_tokens) + 2 + -(-_MOST_SLOTS // block_tokens))
    tokens = filled * block_tokens
    bytes_held = request_bytes(scenario.shard, tokens, verified) + tokens * drafter.kv_bytes_per_token
    unit = float(bytes_held[1] - bytes_held[0])
    held = bytes_held / unit if unit > 0.0 else bytes_held
    blocks = int(np.floor(room_bytes / unit)) if unit > 0.0 else 0
    return blocks, None if np.allclose(held, filled) else held


def kv_room_bytes(
    scenario: Scenario, drafter: DrafterMemory, verified: int, requests: int, tokens: int
) -> float:
    """Bytes that weights, drafter and the widest step of so many requests and tokens leave of a GPU.

    verified: tokens of each request in a step.
    """
    shard, engine = scenario.shard, scenario.runtime.engine
    rows = requests * verified
    limited = 1 if engine is None else engine.limited(scenario.parallel.schedulers)
    widest = (-(-size // limited) for size in (max(tokens, rows), requests, rows))
    other_bytes = shard.weight_bytes + float(drafter.weight_bytes) + profiled_bytes(shard, engine, *widest)
    return scenario.usable_memory_bytes - other_bytes


def _verified_tokens(option: DraftOption | None) -> int:
    """Tokens that a step verifies of each request at most."""
    return 1 if option is None else option.depth + 1
