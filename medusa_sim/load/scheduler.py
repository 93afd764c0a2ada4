"""An engine's scheduler over time: continuous batching with chunked prefill, KV blocks and preemption.

As vLLM's V1 scheduler: every step carries all decoding requests with their drafts, then chunks of prompts
within the token budget, first come first served; a prompt is admitted when the KV cache has room for all of
it, and the request that came last is preempted (its KV dropped and computed again) where decoding runs out of
blocks. Equal steps in a row, as long as no request comes, goes or changes what a policy sees, are taken at
once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import ceil

import numpy as np

from medusa_sim.arrays import IntArray
from medusa_sim.errors import UsageError
from medusa_sim.load.limits import Limits
from medusa_sim.load.policies import Fixed, Policy, State, chosen
from medusa_sim.load.record import Record, Recorder
from medusa_sim.load.requests import Requests
from medusa_sim.load.step_table import StepTable

_DRAWN = 1 << 16
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
) -> Record:
    """Serve every request; the same arguments give the same record.

    Raises UsageError for a request that never fits, or a policy that returns nonsense.
    """
    needed = requests.longest + table.drafts_max + 1
    if needed > limits.kv_tokens:
        raise UsageError(
            f"a request of {requests.longest} tokens and {table.drafts_max} drafts does not fit into "
            f"{limits.kv_tokens} tokens of KV cache; leave it out or choose a larger card"
        )
    return _Run(requests, table, limits, policy, seed, advance).run()


class _Prompt:
    """A prompt that is being read: request, tokens that it will hold, tokens to compute, blocks."""

    __slots__ = ("blocks", "left", "length", "request")

    def __init__(self, request: int, length: int, left: int, blocks: int) -> None:
        self.request, self.length, self.left, self.blocks = request, length, left, blocks


class _Draws:
    """Accepted drafts of a chain of K, drawn by position: P(at least i) = rates[i - 1]."""

    def __init__(self, rates: np.ndarray, drafts: int, seed: int) -> None:
        self._falling = rates[:drafts][::-1].copy()
        self._drafts = drafts
        self._random = np.random.default_rng([seed, drafts])
        self._held = np.empty(0, dtype=np.int64)
        self._used = 0

    def take(self, steps: int, requests: int) -> IntArray:
        """(steps, requests) accepted drafts."""
        wanted = steps * requests
        if self._used + wanted > self._held.size:
            uniform = self._random.random(max(_DRAWN, wanted))
            below = np.searchsorted(self._falling, uniform, side="right")
            self._held, self._used = self._drafts - below, 0
        taken = self._held[self._used : self._used + wanted]
        self._used += wanted
        return taken.reshape(steps, requests)

    def give_back(self, count: int) -> None:
        """The last `count` of what was taken were not needed."""
        self._used -= count


class _Run:
    """State of a run. Decoding requests lie in the first `b` places of the arrays, in order of admission."""

    def __init__(
        self,
        requests: Requests,
        table: StepTable,
        limits: Limits,
        policy: Policy,
        seed: int,
        advance: Advance | None,
    ) -> None:
        self.requests, self.table, self.limits, self.policy = requests, table, limits, policy
        self.seed, self.advance = seed, advance
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
        self.prompts: list[_Prompt] = []
        self.last_token_s: dict[int, float] = {}
        most = limits.max_requests
        self.at, self.remaining, self.length = (np.zeros(most, dtype=np.int64) for _ in range(3))
        self.b = 0
        self.length_sum = 0
        self.reserved = 0
        self.now = 0.0
        self.taken = self.finished = self.preempted = 0
        self.blocked = False
        self.kv_most = 0
        self.in_system_s = 0.0
        self.window = [0.0, np.inf]
        self.recorder = Recorder(table.drafts_max, most)
        self.draws = {drafts: _Draws(table.rates, drafts, seed) for drafts in range(1, table.drafts_max + 1)}
        self.hold = int(getattr(policy, "hold_steps", 1))
        self.idles = not isinstance(policy, Fixed)
        self.drafts = 0
        self.seen_steps = self.seen_requests = self.seen_accepted = 0

    def run(self) -> Record:
        told = 0
        while self.finished < self.count:
            self._arrive()
            if self.b or self.prompts or self.waiting:
                self._step()
            else:
                self.now = self.arrival[self.taken]
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
        """Everything that has come by now queues."""
        while self.taken < len(self.arrival) and self.arrival[self.taken] <= self.now:
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
        if not self.b and not self.prompts:
            self.blocked = False
        if self.waiting and kept and not self.blocked:
            self._admit(drafts)
        chunks = self._chunks(drafts) if self.prompts else []
        if chunks:
            self._mixed(drafts, chunks)
        elif self.b:
            self._decode(drafts)

    def _choose(self) -> int:
        """Drafts of the next steps: the policy's, cut to the token budget."""
        if not self.b:
            return 0
        rows = self.seen_requests
        state = State(
            now_s=self.now,
            requests=self.b,
            waiting=len(self.waiting),
            mean_length=self.length_sum / self.b,
            kv_share=self._blocks_bound(0, 1) / self.limits.kv_blocks,
            drafts=self.drafts,
            accepted=self.seen_accepted / rows if rows else None,
            steps=self.seen_steps,
        )
        self.seen_steps = self.seen_requests = self.seen_accepted = 0
        drafts = chosen(self.policy, state, self.table.drafts_max)
        self.drafts = min(drafts, self.limits.token_budget // self.b - 1)
        return self.drafts

    def _blocks_bound(self, drafts: int, steps: int) -> int:
        """At least the blocks that decoding and reserved prompts hold after so many steps."""
        size = self.limits.block_tokens
        tokens = self.length_sum + self.b * ((drafts + 1) * steps + size - 1)
        return tokens // size + self.reserved

    def _blocks(self, drafts: int) -> int:
        """The blocks that decoding and reserved prompts hold in the next step."""
        size = self.limits.block_tokens
        held = (self.length[: self.b] + (drafts + size)) // size
        return int(held.sum()) + self.reserved

    def _make_room(self, drafts: int) -> bool:
        """Preempt the last requests until the next step's blocks fit. Whether all were kept."""
        blocks = self._blocks_bound(drafts, 1)
        kept = True
        while blocks > self.limits.kv_blocks:
            blocks = self._blocks(drafts)
            if blocks <= self.limits.kv_blocks:
                break
            self._preempt()
            kept = False
        self.kv_most = max(self.kv_most, blocks)
        return kept

    def _preempt(self) -> None:
        """The request that was admitted last goes back to the head of the queue."""
        self.preempted += 1
        if self.prompts:
            prompt = self.prompts.pop()
            self.reserved -= prompt.blocks
            self.waiting.appendleft(prompt.request)
            return
        self.b -= 1
        request = int(self.at[self.b])
        self.left[request] = int(self.remaining[self.b])
        self.length_sum -= int(self.length[self.b])
        self.last_token_s.setdefault(request, self.now)
        self.waiting.appendleft(request)

    def _admit(self, drafts: int) -> None:
        """Admit waiting requests while slots, blocks and the token budget last."""
        limits, size = self.limits, self.limits.block_tokens
        budget = limits.token_budget - self.b * (drafts + 1) - sum(prompt.left for prompt in self.prompts)
        free = limits.kv_blocks - self._blocks(drafts)
        while self.waiting and budget > 0 and self.b + len(self.prompts) < limits.max_requests:
            request = self.waiting[0]
            length = self.prompt[request] + self.output[request] - self.left[request]
            blocks = -(-(length + self.table.drafts_max + 1) // size)
            if blocks > free:
                self.blocked = True
                return
            self.waiting.popleft()
            found = int(limits.prefix_hit_rate * self.prompt[request])
            prompt = _Prompt(request, length, max(length - found, 1), blocks)
            self.prompts.append(prompt)
            self.reserved += blocks
            free -= blocks
            budget -= prompt.left
        self.kv_most = max(self.kv_most, limits.kv_blocks - free)

    def _chunks(self, drafts: int) -> list[tuple[int, int]]:
        """(tokens, end) of the chunk of each prompt in the next step, in order, while the budget lasts."""
        budget = self.limits.token_budget - self.b * (drafts + 1)
        found = []
        for prompt in self.prompts:
            if budget <= 0:
                break
            tokens = min(prompt.left, budget)
            budget -= tokens
            found.append((tokens, prompt.length - prompt.left + tokens))
        return found

    def _plain_factor(self, drafts: int) -> float:
        """A loaded drafter that drafts nothing makes plain steps longer."""
        return 1.0 + float(self.table.idle_share[self.b]) if self.idles and not drafts else 1.0

    def _mixed(self, drafts: int, chunks: list[tuple[int, int]]) -> None:
        """One step that carries prompts."""
        b, table = self.b, self.table
        length = self.length_sum / b if b else 0.0
        own_s = table.decoding_s(drafts, b, length) * self._plain_factor(drafts)
        prompts_s = table.prompts_s(drafts, b, chunks)
        start, waiting = self.now, len(self.waiting) + len(self.prompts)
        in_system = b + waiting
        kv = self.length_sum + self.reserved * self.limits.block_tokens
        self.now = start + own_s + prompts_s
        self.in_system_s += in_system * (self.now - start)
        emitted = accepted = 0
        if b:
            gained, accepted = self._one_step(drafts)
            emitted = gained
        emitted += self._read(chunks)
        tokens = sum(chunk for chunk, _ in chunks)
        self.recorder.add(
            (start, self.now - start, 1, b, drafts, waiting, kv, emitted, prompts_s, tokens, accepted)
        )

    def _one_step(self, drafts: int) -> tuple[int, int]:
        """(tokens emitted, drafts accepted) of one step of every decoding request."""
        b = self.b
        remaining = self.remaining[:b]
        if drafts:
            draws = self.draws[drafts].take(1, b)[0]
            accepted = int(draws.sum())
            gained = np.minimum(draws + 1, remaining)
            total = int(gained.sum())
            self.seen_accepted += accepted
            self.seen_requests += b
            self.seen_steps += 1
        else:
            accepted, gained, total = 0, 1, b
        remaining -= gained
        self.length[:b] += gained
        self.length_sum += total
        self._leave()
        return total, accepted

    def _read(self, chunks: list[tuple[int, int]]) -> int:
        """Prompts go on by their chunks; those at their end emit a token and decode. Tokens emitted."""
        emitted, kept = 0, []
        for place, prompt in enumerate(self.prompts):
            if place < len(chunks):
                prompt.left -= chunks[place][0]
            if prompt.left:
                kept.append(prompt)
                continue
            emitted += 1
            self.reserved -= prompt.blocks
            self._start(prompt)
        self.prompts = kept
        return emitted

    def _start(self, prompt: _Prompt) -> None:
        """The first token behind a prompt is there."""
        request = prompt.request
        if request in self.last_token_s:
            self.recorder.gap(self.now - self.last_token_s.pop(request))
        else:
            self.first[request] = self.now
        self.left[request] -= 1
        if not self.left[request]:
            self._finish(request)
            self.blocked = False
            return
        b = self.b
        self.at[b], self.remaining[b], self.length[b] = request, self.left[request], prompt.length
        self.length_sum += prompt.length
        self.b = b + 1

    def _finish(self, request: int) -> None:
        self.finish[request] = self.now
        self.finished += 1
        users = self.requests.users
        if users is None:
            return
        if len(self.arrival) < self.count:
            self.arrival.append(self.now + self.requests.think_s)
            if len(self.arrival) == self.count and self.finished > users:
                self._measure(begin=False)
        if self.finished == users and len(self.arrival) < self.count:
            self._measure(begin=True)

    def _leave(self) -> None:
        """Requests without tokens to emit leave."""
        b = self.b
        staying = self.remaining[:b] > 0
        if staying.all():
            return
        for request in self.at[:b][~staying].tolist():
            self._finish(request)
        kept = int(staying.sum())
        for array in (self.at, self.remaining, self.length):
            array[:kept] = array[:b][staying]
        self.b = kept
        self.length_sum = int(self.length[:kept].sum())
        self.blocked = False

    def _decode(self, drafts: int) -> None:
        """As many equal steps without prompts as nothing changes in."""
        b, table = self.b, self.table
        step_s = table.decoding_s(drafts, b, self.length_sum / b) * self._plain_factor(drafts)
        steps = min(self.hold, _MOST_STEPS, self._until_full(drafts), self._until_arrival(step_s))
        least = int(self.remaining[:b].min())
        start, waiting, kv = self.now, len(self.waiting) + len(self.prompts), self.length_sum
        in_system = b + waiting
        accepted = 0
        if drafts:
            steps, total, accepted = self._draw(drafts, steps, least)
        else:
            steps = min(steps, least)
            self.remaining[:b] -= steps
            self.length[:b] += steps
            total = steps * b
        before = self.length_sum
        self.kv_most = max(self.kv_most, min(self._blocks_bound(drafts, steps), self.limits.kv_blocks))
        self.length_sum = before + total
        if steps > 1:
            middle = (before + total * (steps - 1) / (2 * steps)) / b
            step_s = table.decoding_s(drafts, b, middle) * self._plain_factor(drafts)
        span = steps * step_s
        self.now = start + span
        self.in_system_s += in_system * span
        if drafts or steps == least:
            self._leave()
        middle_kv = kv + total / 2
        self.recorder.add((start, span, steps, b, drafts, waiting, middle_kv, total, 0.0, 0, accepted))

    def _draw(self, drafts: int, steps: int, least: int) -> tuple[int, int, int]:
        """(steps taken, tokens emitted, drafts accepted): up to the first step in which a request ends."""
        b = self.b
        steps = min(steps, max(ceil(least / self.table.tokens_per_step[drafts]), 1), max(_MOST_DRAWS // b, 1))
        source = self.draws[drafts]
        draws = source.take(steps, b)
        remaining = self.remaining[:b]
        gained = draws.sum(axis=0) + steps
        if steps > 1 and (gained >= remaining).any():
            sums = np.cumsum(draws + 1, axis=0)
            taken = int((sums >= remaining).any(axis=1).argmax()) + 1
            source.give_back((steps - taken) * b)
            steps, gained, draws = taken, sums[taken - 1], draws[:taken]
        accepted = int(draws.sum())
        gained = np.minimum(gained, remaining)
        remaining -= gained
        self.length[:b] += gained
        self.seen_accepted += accepted
        self.seen_requests += steps * b
        self.seen_steps += steps
        return steps, int(gained.sum()), accepted

    def _until_full(self, drafts: int) -> int:
        """Steps after which the KV cache may be full."""
        size, b = self.limits.block_tokens, self.b
        free = (self.limits.kv_blocks - self.reserved) * size - self.length_sum - b * (size - 1)
        return max(free // (b * (drafts + 1)), 1)

    def _until_arrival(self, step_s: float) -> int:
        """Steps until a request comes that could be admitted."""
        full = self.b + len(self.prompts) >= self.limits.max_requests
        if full or self.waiting or self.taken >= len(self.arrival):
            return _MOST_STEPS
        return max(ceil((self.arrival[self.taken] - self.now) / step_s), 1)
