"""The scheduler of an engine: which requests run in the next step.

As vLLM's V1 scheduler: a step carries all decoding requests with their drafts, then chunks of prompts within
what these leave of the token budget, first come, first served; a pass of prompts alone has all of it. A
prompt is admitted when the KV cache has room for all of it; where decoding runs out of blocks the request
that was admitted last is preempted: its KV is dropped, and computed again later. Steps that carry prompts may
have to lie apart (`SchedulerLimits.prompt_interval`). Where prompts are read whole, one that does not fit
into what is left waits, and those behind it (TensorRT-LLM without chunked prefill).
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from medusa_sim.load.batch import Batch
from medusa_sim.load.cache import Cache
from medusa_sim.load.limits import SchedulerLimits
from medusa_sim.load.request_state import RequestState
from medusa_sim.load.step_table import StepTable


class Chunk(NamedTuple):
    """Tokens of a prompt that a step computes, up to the token `end`."""

    tokens: int
    end: int


class Scheduler:
    """Three queues of requests: not yet admitted, reading their prompts, and the batch that decodes.

    steps_to_prompts: steps that carry no prompts before the next that may.
    """

    def __init__(self, limits: SchedulerLimits, batch: Batch, cache: Cache, table: StepTable) -> None:
        self.unadmitted: deque[RequestState] = deque()
        self.reading: list[RequestState] = []
        self.batch, self.cache = batch, cache
        self.preemptions = self.steps_to_prompts = 0
        self._limits, self._table = limits, table
        self._is_blocked = self._has_waited = False

    @property
    def is_idle(self) -> bool:
        """Whether nothing is to be done."""
        return not (self.batch.requests or self.reading or self.unadmitted)

    @property
    def has_room(self) -> bool:
        """Whether a request that comes now can be admitted at once, as far as slots and the queue say."""
        is_next = not self.unadmitted or self._lets_others_come
        return is_next and len(self.batch.requests) + len(self.reading) < self._limits.max_requests

    @property
    def not_decoding(self) -> int:
        """Requests in the queue or reading their prompt; preempted ones do so again."""
        return len(self.unadmitted) + len(self.reading)

    def schedule(self, drafts: int, now_s: float) -> list[Chunk]:
        """Preempt, admit, and return the chunks of prompts that the next step carries, in their order."""
        had_room = self._make_room(drafts, now_s)
        if not self.batch.requests and not self.reading:
            self._is_blocked = False
        if self._hold_back_prompts(drafts):
            return []
        if self.unadmitted and had_room and not self._is_blocked:
            self._admit(drafts)
        budget = self._room_tokens(drafts)
        chunks = []
        for request in self.reading:
            tokens = min(request.unread, budget)
            if tokens <= 0 or (tokens < request.unread and self._is_read_whole(request)):
                break
            budget -= tokens
            chunks.append(Chunk(tokens, request.committed - request.unread + tokens))
        return chunks

    def _is_read_whole(self, request: RequestState) -> bool:
        """Whether a prompt waits for a step with room for all of it; a longer one than any has is cut."""
        return self._limits.whole_prompts and request.unread <= self._limits.token_budget

    def _room_tokens(self, drafts: int) -> int:
        """Tokens of prompts that the next step, or pass of their own, has room for."""
        if self._table.prompts.terms.are_apart:
            return self._limits.token_budget
        return self._limits.token_budget - self._table.decoded_tokens(drafts, len(self.batch.requests))

    @property
    def _lets_others_come(self) -> bool:
        """Whether the first of several prompts waits for others to ride with it."""
        return self._has_waited and self.steps_to_prompts > 0

    def _hold_back_prompts(self, drafts: int) -> bool:
        """Let the first prompt that could ride wait for others; whether prompts let the next step pass."""
        if not self.batch.requests:
            return False
        is_first = bool(self.unadmitted) and not (self.reading or self.steps_to_prompts or self._has_waited)
        if is_first and self._limits.prompt_wait:
            self.steps_to_prompts, self._has_waited = self._limits.prompt_wait, True
        if self._lets_others_come:
            room = self._room_tokens(drafts)
            if sum([self._uncached(request) for request in self.unadmitted]) >= room:
                self.steps_to_prompts = 0
        return self.steps_to_prompts > 0

    def _uncached(self, request: RequestState) -> int:
        """Tokens of a request that have to be computed before it decodes."""
        return request.committed - self._limits.found_tokens(request.prompt_tokens, request.session_tokens)

    def count_steps(self, steps: int, *, carried: bool) -> None:
        """Count steps that have been taken; carried: the one carried prompts."""
        interval = self._limits.prompt_interval
        self._has_waited = self._has_waited and not carried
        self.steps_to_prompts = interval - 1 if carried else max(self.steps_to_prompts - steps, 0)

    def _make_room(self, drafts: int, now_s: float) -> bool:
        """Preempt until the next step has room; whether it had room without."""
        had_room = True
        while not self.cache.fits(drafts):
            self._preempt(now_s)
            had_room = False
        return had_room

    def _preempt(self, now_s: float) -> None:
        """Put the request that was admitted last back at the head of the queue."""
        self.preemptions += 1
        if self.reading:
            request = self.reading.pop()
            self.cache.release(request.blocks)
        else:
            request = self.batch.drop_last()
            if request.stopped_s is None:
                request.stopped_s = now_s
        self.unadmitted.appendleft(request)

    def _admit(self, drafts: int) -> None:
        """Admit requests while slots, blocks and the token budget last."""
        limits, cache = self._limits, self.cache
        slots = limits.max_requests - len(self.batch.requests) - len(self.reading)
        budget = self._room_tokens(drafts) - sum([request.unread for request in self.reading])
        while self.unadmitted and slots > 0 and budget > 0:
            request = self.unadmitted[0]
            request.shared = limits.shared_blocks(request.prompt_tokens)
            request.blocks = limits.blocks_of(request.committed + self._table.drafts_max) - request.shared
            if not cache.fits(drafts, request.blocks):
                self._is_blocked = True
                return
            self.unadmitted.popleft()
            self.reading.append(request)
            cache.reserve(request.blocks)
            request.unread = self._uncached(request)
            budget -= request.unread
            slots -= 1

    def complete(self, chunks: list[Chunk]) -> list[RequestState]:
        """Count computed chunks; the requests whose prompts they end, which the caller starts."""
        ended = []
        for request, chunk in zip(self.reading, chunks, strict=False):
            request.unread -= chunk.tokens
            if not request.unread:
                ended.append(request)
                self.cache.release(request.blocks)
        if ended:
            self.reading = [request for request in self.reading if request.unread]
        return ended

    def start(self, request: RequestState) -> None:
        """Let a request decode whose first token has been emitted, unless that was all."""
        if request.left:
            self.batch.join(request)
        else:
            self._is_blocked = False

    def drop_finished(self) -> list[RequestState]:
        """Drop the requests that have emitted everything, and return them."""
        gone = self.batch.drop_finished()
        if gone:
            self._is_blocked = False
        return gone
