"""An engine's scheduler over time: continuous batching with chunked prefill, KV blocks and preemption.

As vLLM's V1 scheduler: every step carries all decoding requests with their drafts, then chunks of prompts
within the token budget, first come first served; a prompt is admitted when the KV cache has room for all of
it, and the request that came last is preempted (its KV dropped and computed again) where decoding runs out of
blocks. Where the engine schedules ahead, a request that comes during step n runs in step n + 2, since n + 1
is put together while n runs (vLLM's `step_with_batch_queue`). Equal steps in a row, as long as no request
comes, goes or changes what a policy sees, are taken at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import ceil, inf

import numpy as np

from medusa_sim.errors import UsageError
from medusa_sim.load.arriving import Arriving
from medusa_sim.load.asking import Asking
from medusa_sim.load.decoding import Decoding
from medusa_sim.load.draws import Draws
from medusa_sim.load.limits import Limits
from medusa_sim.load.policies import Fixed, Policy, State
from medusa_sim.load.record import Record, Recorder
from medusa_sim.load.requests import Prompt, Prompts, Requests
from medusa_sim.load.step_table import StepTable

_MOST_STEPS = 128
"""Steps of one span: the timeline is no finer."""
_TOLD = 256
"""Report progress every this many requests."""
Advance = Callable[[int, int], None]
"""Told (requests finished, requests in all)."""


def run(
    requests: Requests,
    table: StepTable,
    limits: Limits,
    policy: Policy,
    seed: int = 0,
    advance: Advance | None = None,
    spread: float = 0.0,
) -> Record:
    """Serve every request; the same arguments give the same record. spread: of their acceptance (L4).

    Raises UsageError for a request that never fits, or a policy that returns nonsense.
    """
    return _Run(requests, table, limits, policy, seed, advance, spread).run()


class _Run:
    """State of a run."""

    def __init__(
        self,
        requests: Requests,
        table: StepTable,
        limits: Limits,
        policy: Policy,
        seed: int,
        advance: Advance | None,
        spread: float = 0.0,
    ) -> None:
        self.requests, self.table, self.limits, self.policy = requests, table, limits, policy
        self.advance = advance
        self.kv_blocks = limits.kv_blocks - limits.shared_blocks(int(requests.prompt_tokens.max()))
        if limits.blocks_of(requests.longest + table.drafts_max) > self.kv_blocks:
            raise UsageError(
                f"a request of {requests.longest} tokens and {table.drafts_max} drafts does not fit into "
                f"{limits.kv_tokens} tokens of KV cache; leave it out or choose a larger card"
            )
        count = requests.count
        self.count = count
        self.prompt: list[int] = requests.prompt_tokens.tolist()
        self.left: list[int] = requests.output_tokens.tolist()
        self.arriving = Arriving(requests, table.server_s)
        self.first = np.full(count, np.nan)
        self.finish = np.full(count, np.nan)
        self.waiting: deque[int] = deque()
        self.prompts = Prompts()
        self.stopped: dict[int, float] = {}
        draws = Draws(table, requests.output_tokens, seed, spread)
        self.decoding = Decoding(limits, draws)
        self.looks_up = draws.looks_up
        self.now = self.seen_s = 0.0
        self.finished = self.preempted = 0
        self.blocked = False
        self.kv_most = 0
        self.in_system_s = 0.0
        self.window = [0.0, np.inf]
        self.recorder = Recorder(table.drafts_max, table.requests_max)
        self.share = table.match_rate
        self.asking = Asking(policy, table.drafts_max, limits.token_budget)
        self.idle: list[float] | None = None if isinstance(policy, Fixed) else table.idle_share.tolist()

    def run(self) -> Record:
        reported = 0
        arriving = self.arriving
        is_ahead = bool(self.table.steps_ahead)
        while self.finished < self.count:
            seen_s = self.seen_s if is_ahead else self.now
            if arriving.next_s <= seen_s:
                self._arrive(seen_s)
            if self.decoding.count or self.prompts.count or self.waiting:
                self._step()
            else:
                self.now = self.seen_s = max(self.now, arriving.next_s)
            if self.advance is not None and self.finished - reported >= _TOLD:
                reported = self.finished
                self.advance(reported, self.count)
        return Record(
            requests=self.requests,
            arrival_s=arriving.arrival_s,
            first_token_s=self.first,
            finish_s=self.finish,
            end_s=self.now,
            timeline=self.recorder.timeline(self.now),
            preemptions=self.preempted,
            in_system_s=self.in_system_s,
            window_s=(self.window[0], min(self.window[1], self.now)),
            kv_blocks_most=self.kv_most,
            **self.recorder.totals,
        )

    def _arrive(self, seen_s: float) -> None:
        """Everything that had come when the next step was put together queues."""
        arriving, warm = self.arriving, self.requests.warm
        while arriving.next_s <= seen_s:
            request, sent_s = arriving.take()
            self.in_system_s += self.now - sent_s
            self.waiting.append(request)
            if warm and arriving.taken in (warm + 1, self.count):
                self._measure(begin=arriving.taken < self.count)

    def _measure(self, *, begin: bool) -> None:
        """Measuring begins or ends."""
        self.window[0 if begin else 1] = self.now
        self.recorder.count_gaps(on=begin)

    def _step(self) -> None:
        decoding = self.decoding
        self.asking.choose(decoding, self._state)
        kept = self._make_room(decoding.drafts)
        b = decoding.count
        drafts = decoding.drafts if b else 0
        if not b and not self.prompts.count:
            self.blocked = False
        if self.waiting and kept and not self.blocked:
            self._admit(drafts)
        if self.prompts.count:
            chunks = self.prompts.chunks(self.limits.token_budget - b - decoding.asked)
            if chunks:
                self._mixed(drafts, chunks)
                return
        if b:
            self._decode(drafts)

    def _state(self, accepted: float | None, steps: int) -> State:
        """What a policy sees."""
        decoding, prompts = self.decoding, self.prompts
        return State(
            now_s=self.now,
            requests=decoding.count,
            waiting=len(self.waiting),
            mean_length=decoding.length_sum / decoding.count,
            kv_share=(decoding.blocks_bound(0, 1) + prompts.reserved) / self.kv_blocks,
            drafts=decoding.drafts,
            accepted=accepted,
            steps=steps,
        )

    def _make_room(self, drafts: int) -> bool:
        """Preempt the last requests until the next step's blocks fit. Whether all were kept."""
        blocks = self.decoding.blocks_bound(drafts, 1) + self.prompts.reserved
        kept = True
        while blocks > self.kv_blocks:
            blocks = self.decoding.blocks(drafts) + self.prompts.reserved
            if blocks <= self.kv_blocks:
                break
            self._preempt()
            kept = False
        self.kv_most = max(self.kv_most, blocks)
        return kept

    def _preempt(self) -> None:
        """The request that was admitted last goes back to the head of the queue."""
        self.preempted += 1
        if self.prompts.count:
            self.waiting.appendleft(self.prompts.drop_last())
            return
        request, left = self.decoding.drop_last()
        self.left[request] = left
        self.stopped.setdefault(request, self.now)
        self.waiting.appendleft(request)

    def _admit(self, drafts: int) -> None:
        """Admit waiting requests while slots, blocks and the token budget last."""
        limits, waiting, prompts, said = self.limits, self.waiting, self.prompts, self.requests.said
        b = self.decoding.count
        budget = limits.token_budget - b - self.decoding.asked - prompts.left
        room = limits.max_requests - b - prompts.count
        if budget <= 0 or room <= 0:
            return
        # the bound, which the most that was held has in it, spares counting while all find room below it
        free = self.kv_blocks - self.decoding.blocks_bound(drafts, 1) - prompts.reserved
        spare = self.kv_most - self.kv_blocks + free
        is_exact = False
        while waiting and budget > 0 and room > 0:
            request = waiting[0]
            own = length = self.prompt[request]
            if request in self.stopped:
                length += int(self.requests.output_tokens[request]) - self.left[request]
            shared = limits.shared_blocks(own)
            blocks = limits.blocks_of(length + self.table.drafts_max) - shared
            spare -= blocks
            if not is_exact and (spare < 0 or blocks > free):
                free += self.decoding.blocks_bound(drafts, 1) - self.decoding.blocks(drafts)
                is_exact = True
            if blocks > free:
                self.blocked = True
                return
            waiting.popleft()
            cached = limits.found_tokens(own, None if said is None else int(said[request]))
            prompt = Prompt(request, length, length - cached, blocks, shared)
            prompts.add(prompt)
            free -= blocks
            budget -= prompt.left
            room -= 1
        self.kv_most = max(self.kv_most, self.kv_blocks - free)

    def _own_s(self, drafts: int, length: float) -> float:
        """A step without its prompts; a loaded drafter that drafts nothing makes plain ones longer."""
        b, table = self.decoding.count, self.table
        own_s = table.decoding_s(drafts, b, length)
        if not drafts:
            return own_s if self.idle is None else own_s * (1.0 + self.idle[b])
        return table.found_s(own_s, drafts, b, length, self.share) if self.looks_up else own_s

    def _mixed(self, drafts: int, chunks: list[tuple[int, int]]) -> None:
        """One step that carries prompts."""
        decoding, prompts = self.decoding, self.prompts
        b, before, start = decoding.count, decoding.length_sum, self.now
        waiting = len(self.waiting) + prompts.count
        kv = decoding.cache_tokens + prompts.reserved * self.limits.block_tokens
        emitted = self._emit(drafts, 1) if b else 0
        accepted = emitted - b if drafts else 0
        own_s = self._own_s(drafts, before / b if b else 0.0)
        prompts_s = self.table.prompts_s(decoding.asked, b, chunks, own_s)
        span = own_s + prompts_s
        self.now, self.seen_s = start + span, start
        self.in_system_s += (b + waiting) * span
        if decoding.first_end <= decoding.step:
            emitted -= self._leave()
        ended = prompts.read(chunks)
        for prompt in ended:
            self._start(prompt)
        tokens = sum([chunk for chunk, _ in chunks])
        emitted += len(ended)
        self.recorder.add((start, span, 1, b, drafts, waiting, kv, emitted, prompts_s, tokens, accepted))

    def _start(self, prompt: Prompt) -> None:
        """The first token behind a prompt is there."""
        request = prompt.request
        if request in self.stopped:
            self.recorder.gap(self.now - self.stopped.pop(request))
        else:
            self.first[request] = self.now + self._sending_s
        left = self.left[request] = self.left[request] - 1
        if not left:
            self._finish(request)
            self.blocked = False
            return
        self.decoding.join(request, left, prompt.length, prompt.shared)

    @property
    def _sending_s(self) -> float:
        """What the server takes to send the tokens of a step before those of one request."""
        return self.table.server_s_per_request * self.decoding.count

    def _finish(self, request: int) -> None:
        finish_s = self.now + self._sending_s
        self.finish[request] = finish_s
        self.finished += 1
        users, arriving = self.requests.users, self.arriving
        waited = arriving.unknown
        arriving.follow(request, finish_s)
        if users is None:
            return
        if waited and not arriving.unknown and self.finished > users:
            self._measure(begin=False)
        if self.finished == users and arriving.unknown:
            self._measure(begin=True)

    def _leave(self) -> int:
        """Requests that have emitted everything leave; the tokens that they gave beyond it."""
        gone, over = self.decoding.leave()
        for request in gone:
            self._finish(request)
        self.blocked = False
        return over

    def _emit(self, drafts: int, steps: int, gained: int | None = None) -> int:
        """Tokens that all requests give in so many steps, before any leaves; gained: those, where known."""
        emitted = self.decoding.advance(steps, gained)
        if drafts:
            self.asking.saw(emitted, steps, self.decoding.count)
            if self.looks_up:
                self.share = self.decoding.found_share(steps)
        return emitted

    def _decode(self, drafts: int) -> None:
        """As many equal steps without prompts as nothing changes in."""
        decoding = self.decoding
        b, before, reserved = decoding.count, decoding.length_sum, self.prompts.reserved
        step_s = self._own_s(drafts, before / b)
        steps = min(
            _MOST_STEPS,
            decoding.steps_until_full(drafts, self.kv_blocks - reserved),
            decoding.first_end - decoding.step,
            self._until_arrival(step_s),
        )
        gained = None
        if decoding.step + steps > self.asking.again:
            steps, gained = self.asking.unchanged(steps, step_s, decoding, self._state)
        start, waiting = self.now, len(self.waiting) + self.prompts.count
        held = decoding.blocks_bound(drafts, steps) + reserved
        if held > self.kv_most:
            self.kv_most = min(held, self.kv_blocks)
        kv = decoding.cache_tokens
        emitted = self._emit(drafts, steps, gained)
        accepted = emitted - steps * b
        if steps > 1 or self.looks_up:
            middle = (before + emitted * (steps - 1) / (2 * steps)) / b
            step_s = self._own_s(drafts, middle)
        span = steps * step_s
        self.now, self.seen_s = start + span, start + span - step_s
        kv = (kv + decoding.cache_tokens) // 2
        self.in_system_s += (b + waiting) * span
        if decoding.first_end <= decoding.step:
            emitted -= self._leave()
        self.recorder.add((start, span, steps, b, drafts, waiting, kv, emitted, 0.0, 0, accepted))

    def _until_arrival(self, step_s: float) -> int:
        """Steps until a request comes that could be admitted."""
        next_s = self.arriving.next_s
        full = self.decoding.count + self.prompts.count >= self.limits.max_requests
        if full or self.waiting or next_s == inf:
            return _MOST_STEPS
        return max(ceil((next_s - self.now) / step_s) + self.table.steps_ahead, 1)
