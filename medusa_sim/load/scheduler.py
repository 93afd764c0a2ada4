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
from math import ceil

import numpy as np

from medusa_sim.arrays import IntArray
from medusa_sim.errors import UsageError
from medusa_sim.load.draws import Decoding, Draws, kinds_of, rates_by_kind
from medusa_sim.load.limits import Limits
from medusa_sim.load.policies import Fixed, Policy, State, chosen
from medusa_sim.load.record import Record, Recorder
from medusa_sim.load.requests import Prompt, Prompts, Requests
from medusa_sim.load.step_table import StepTable

_MOST_STEPS = 128
"""Steps of one span: the timeline is no finer."""
_MOST_DRAWS = 4096
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
    """Serve every request; the same arguments give the same record. spread: of their acceptance (L3).

    Raises UsageError for a request that never fits, or a policy that returns nonsense.
    """
    needed = limits.blocks_of(requests.longest + table.drafts_max)
    if needed + limits.shared_blocks(int(requests.prompt_tokens.max())) > limits.kv_blocks:
        raise UsageError(
            f"a request of {requests.longest} tokens and {table.drafts_max} drafts does not fit into "
            f"{limits.kv_tokens} tokens of KV cache; leave it out or choose a larger card"
        )
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
        self.seed, self.advance = seed, advance
        self.kv_blocks = limits.kv_blocks - limits.shared_blocks(int(requests.prompt_tokens.max()))
        count = requests.count
        self.count = count
        self.prompt: list[int] = requests.prompt_tokens.tolist()
        self.output: list[int] = requests.output_tokens.tolist()
        self.left: list[int] = list(self.output)
        known = count if requests.users is None else min(requests.users, count)
        self.arrival: list[float] = requests.arrival_s[:known].tolist()
        self.first = np.full(count, np.nan)
        self.finish = np.full(count, np.nan)
        self.waiting: deque[int] = deque()
        self.prompts = Prompts()
        self.last_token_s: dict[int, float] = {}
        self.decoding = Decoding(limits)
        self.now = self.seen_s = 0.0
        self.taken = self.finished = self.preempted = 0
        self.blocked = False
        self.kv_most = 0
        self.in_system_s = 0.0
        self.window = [0.0, np.inf]
        self.recorder = Recorder(table.drafts_max, limits.max_requests)
        rates = rates_by_kind(table.rates, spread)
        kinds = None if len(rates) == 1 else kinds_of(count, seed)
        self.draws = {n: Draws(rates, n, seed, kinds) for n in range(1, table.drafts_max + 1)}
        self.hold = int(getattr(policy, "hold_steps", 1))
        self.idles = not isinstance(policy, Fixed)
        self.drafts = 0
        self.seen_steps = self.seen_requests = self.seen_accepted = 0

    def run(self) -> Record:
        told = 0
        while self.finished < self.count:
            self._arrive()
            if self.decoding.count or self.prompts or self.waiting:
                self._step()
            else:
                self.now = max(self.now, self.arrival[self.taken] + self.table.server_s)
                self.seen_s = self.now
            if self.advance is not None and self.finished - told >= 256:
                told = self.finished
                self.advance(told, self.count)
        recorder = self.recorder
        timeline = recorder.timeline(self.now)
        return Record(
            requests=self.requests,
            arrival_s=np.asarray(self.arrival),
            first_token_s=self.first,
            finish_s=self.finish,
            end_s=self.now,
            steps=recorder.steps,
            steps_s=recorder.steps_s,
            prompts_s=recorder.prompts_s,
            emitted=recorder.emitted,
            prompt_tokens=recorder.prompt_tokens,
            speculated=recorder.speculated,
            accepted=recorder.accepted,
            preemptions=self.preempted,
            gaps=recorder.gaps,
            gap_sum_s=recorder.gap_sum_s,
            in_system_s=self.in_system_s,
            window_s=(self.window[0], min(self.window[1], self.now)),
            kv_blocks_most=self.kv_most,
            timeline=timeline,
        )

    def _arrive(self) -> None:
        """Everything that had come when the next step was put together queues."""
        seen_s, server_s = self.seen_s if self.table.steps_ahead else self.now, self.table.server_s
        while self.taken < len(self.arrival) and self.arrival[self.taken] + server_s <= seen_s:
            self.in_system_s += self.now - self.arrival[self.taken]
            self.waiting.append(self.taken)
            self.taken += 1
            if self.requests.warm and self.taken in (self.requests.warm + 1, self.count):
                self._measure(begin=self.taken < self.count)

    def _measure(self, *, begin: bool) -> None:
        """Measuring begins or ends."""
        self.window[0 if begin else 1] = self.now
        self.recorder.count_gaps(on=begin)

    def _step(self) -> None:
        drafts = self._choose()
        kept = self._make_room(drafts)
        if not self.decoding.count and not self.prompts:
            self.blocked = False
        if self.waiting and kept and not self.blocked:
            self._admit(drafts)
        budget = self.limits.token_budget - self.decoding.count * (drafts + 1)
        chunks = self.prompts.chunks(budget)
        if chunks:
            self._mixed(drafts, chunks)
        elif self.decoding.count:
            self._decode(drafts)

    def _choose(self) -> int:
        """Drafts of the next steps: the policy's, cut to the token budget."""
        b, rows = self.decoding.count, self.seen_requests
        if not b:
            return 0
        state = State(
            now_s=self.now,
            requests=b,
            waiting=len(self.waiting),
            mean_length=self.decoding.length_sum / b,
            kv_share=(self.decoding.blocks_bound(0, 1) + self.prompts.reserved) / self.kv_blocks,
            drafts=self.drafts,
            accepted=self.seen_accepted / rows if rows else None,
            steps=self.seen_steps,
        )
        self.seen_steps = self.seen_requests = self.seen_accepted = 0
        drafts = chosen(self.policy, state, self.table.drafts_max)
        self.drafts = min(drafts, self.limits.token_budget // b - 1)
        return self.drafts

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
        if self.prompts:
            self.waiting.appendleft(self.prompts.drop_last())
            return
        request, left = self.decoding.drop_last()
        self.left[request] = left
        self.last_token_s.setdefault(request, self.now)
        self.waiting.appendleft(request)

    def _admit(self, drafts: int) -> None:
        """Admit waiting requests while slots, blocks and the token budget last."""
        limits = self.limits
        b = self.decoding.count
        budget = limits.token_budget - b * (drafts + 1) - self.prompts.left
        free = self.kv_blocks - self.decoding.blocks(drafts) - self.prompts.reserved
        while self.waiting and budget > 0 and b + len(self.prompts) < limits.max_requests:
            request = self.waiting[0]
            length = self.prompt[request] + self.output[request] - self.left[request]
            shared = limits.shared_blocks(self.prompt[request])
            blocks = limits.blocks_of(length + self.table.drafts_max) - shared
            if blocks > free:
                self.blocked = True
                return
            self.waiting.popleft()
            found = limits.found_tokens(self.prompt[request])
            prompt = Prompt(request, length, length - found, blocks, shared)
            self.prompts.add(prompt)
            free -= blocks
            budget -= prompt.left
        self.kv_most = max(self.kv_most, self.kv_blocks - free)

    def _plain_factor(self, drafts: int) -> float:
        """A loaded drafter that drafts nothing makes plain steps longer."""
        return 1.0 + float(self.table.idle_share[self.decoding.count]) if self.idles and not drafts else 1.0

    def _mixed(self, drafts: int, chunks: list[tuple[int, int]]) -> None:
        """One step that carries prompts."""
        b, table = self.decoding.count, self.table
        length = self.decoding.length_sum / b if b else 0.0
        own_s = table.decoding_s(drafts, b, length) * self._plain_factor(drafts)
        prompts_s = table.prompts_s(drafts, b, chunks)
        start, waiting = self.now, len(self.waiting) + len(self.prompts)
        in_system = b + waiting
        kv = self.decoding.cache_tokens + self.prompts.reserved * self.limits.block_tokens
        self.now, self.seen_s = start + own_s + prompts_s, start
        self.in_system_s += in_system * (self.now - start)
        emitted = accepted = 0
        if b:
            gained, accepted = self._one_step(drafts)
            emitted = gained
        ended = self.prompts.read(chunks)
        for prompt in ended:
            self._start(prompt)
        emitted += len(ended)
        tokens = sum(chunk for chunk, _ in chunks)
        self.recorder.add(
            (start, self.now - start, 1, b, drafts, waiting, kv, emitted, prompts_s, tokens, accepted)
        )

    def _one_step(self, drafts: int) -> tuple[int, int]:
        """(tokens emitted, drafts accepted) of one step of every decoding request."""
        b = self.decoding.count
        if drafts:
            draws = self.draws[drafts].take(1, self.decoding.at[:b])[0]
            accepted = int(draws.sum())
            gained = np.minimum(draws + 1, self.decoding.remaining[:b])
            total = int(gained.sum())
            self.decoding.emit(gained, total)
            self.seen_accepted += accepted
            self.seen_requests += b
            self.seen_steps += 1
        else:
            accepted, total = 0, b
            self.decoding.emit(1, total)
        self._leave()
        return total, accepted

    def _start(self, prompt: Prompt) -> None:
        """The first token behind a prompt is there."""
        request = prompt.request
        if request in self.last_token_s:
            self.recorder.gap(self.now - self.last_token_s.pop(request))
        else:
            self.first[request] = self.now + self._sending_s
        self.left[request] -= 1
        if not self.left[request]:
            self._finish(request)
            self.blocked = False
            return
        self.decoding.join(request, self.left[request], prompt.length, prompt.shared)

    @property
    def _sending_s(self) -> float:
        """What the server takes to send the tokens of a step before those of one request."""
        return self.table.server_s_per_request * self.decoding.count

    def _finish(self, request: int) -> None:
        self.finish[request] = self.now + self._sending_s
        self.finished += 1
        users = self.requests.users
        if users is None:
            return
        if len(self.arrival) < self.count:
            self.arrival.append(self.finish[request] + self.requests.think_s)
            if len(self.arrival) == self.count and self.finished > users:
                self._measure(begin=False)
        if self.finished == users and len(self.arrival) < self.count:
            self._measure(begin=True)

    def _leave(self) -> None:
        """Requests without tokens to emit leave."""
        for request in self.decoding.remove_finished():
            self._finish(request)
            self.blocked = False

    def _decode(self, drafts: int) -> None:
        """As many equal steps without prompts as nothing changes in."""
        decoding, table = self.decoding, self.table
        b, before = decoding.count, decoding.length_sum
        step_s = table.decoding_s(drafts, b, before / b) * self._plain_factor(drafts)
        full = decoding.steps_until_full(drafts, self.kv_blocks - self.prompts.reserved)
        steps = min(self.hold, _MOST_STEPS, full, self._until_arrival(step_s))
        least = int(decoding.remaining[:b].min())
        start, waiting = self.now, len(self.waiting) + len(self.prompts)
        in_system = b + waiting
        gained: IntArray | int
        if drafts:
            steps, gained, accepted = self._draw(drafts, steps, least)
            total = int(gained.sum())
        else:
            gained = steps = min(steps, least)
            total, accepted = steps * b, 0
        held = decoding.blocks_bound(drafts, steps) + self.prompts.reserved
        self.kv_most = max(self.kv_most, min(held, self.kv_blocks))
        kv = decoding.cache_tokens
        decoding.emit(gained, total)
        if steps > 1:
            middle = (before + total * (steps - 1) / (2 * steps)) / b
            step_s = table.decoding_s(drafts, b, middle) * self._plain_factor(drafts)
        span = steps * step_s
        self.now, self.seen_s = start + span, start + span - step_s
        kv = (kv + decoding.cache_tokens) // 2
        self.in_system_s += in_system * span
        if drafts or steps == least:
            self._leave()
        self.recorder.add((start, span, steps, b, drafts, waiting, kv, total, 0.0, 0, accepted))

    def _draw(self, drafts: int, steps: int, least: int) -> tuple[int, IntArray, int]:
        """(steps, tokens gained by each, drafts accepted): up to the first step in which a request ends."""
        b = self.decoding.count
        steps = min(steps, max(ceil(least / self.table.tokens_per_step[drafts]), 1), max(_MOST_DRAWS // b, 1))
        source = self.draws[drafts]
        draws = source.take(steps, self.decoding.at[:b])
        remaining = self.decoding.remaining[:b]
        gained = draws.sum(axis=0) + steps
        if steps > 1 and (gained >= remaining).any():
            sums = np.cumsum(draws + 1, axis=0)
            taken = int((sums >= remaining).any(axis=1).argmax()) + 1
            source.give_back((steps - taken) * b)
            steps, gained, draws = taken, sums[taken - 1], draws[:taken]
        accepted = int(draws.sum())
        self.seen_accepted += accepted
        self.seen_requests += steps * b
        self.seen_steps += steps
        return steps, np.minimum(gained, remaining), accepted

    def _until_arrival(self, step_s: float) -> int:
        """Steps until a request comes that could be admitted."""
        full = self.decoding.count + len(self.prompts) >= self.limits.max_requests
        if full or self.waiting or self.taken >= len(self.arrival):
            return _MOST_STEPS
        wait_s = self.arrival[self.taken] + self.table.server_s - self.now
        return max(ceil(wait_s / step_s) + self.table.steps_ahead, 1)
