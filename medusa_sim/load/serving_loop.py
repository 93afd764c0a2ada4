"""A serving engine over time: one loop, in which requests come, a policy chooses drafts and steps take time.

    receive what clients have sent -> ask the policy -> schedule -> emit tokens -> let time pass -> finish

Steps in a row that carry no prompts and in which nobody comes or goes are equal but for the growing lengths:
they are taken at once, at their mean length, as far as the policy's answer holds. Where the engine schedules
ahead, a request that comes during step n runs in step n + 2, since n + 1 is put together while n runs (vLLM's
`step_with_batch_queue`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import ceil, inf

from medusa_sim.arrays import as_float
from medusa_sim.errors import UsageError
from medusa_sim.load.asked_policy import AskedPolicy
from medusa_sim.load.batch import Batch
from medusa_sim.load.cache import Cache
from medusa_sim.load.clients import Clients
from medusa_sim.load.draws import Draws
from medusa_sim.load.limits import SchedulerLimits
from medusa_sim.load.policies import Policy
from medusa_sim.load.recorder import Recorder, Span
from medusa_sim.load.request_state import RequestState
from medusa_sim.load.requests import Requests
from medusa_sim.load.run_result import RunResult
from medusa_sim.load.scheduler import Chunk, Scheduler
from medusa_sim.load.step_table import StepTable
from medusa_sim.load.window import Window
from medusa_sim.serving.running import are_read_whole

_MOST_STEPS = 128
"""Steps of one span: the timeline is no finer."""
_REPORT_EVERY = 256
"""Requests after which progress is reported."""
Advance = Callable[[int], None]
"""Called with how many more requests have finished."""


def run(
    requests: Requests,
    table: StepTable,
    limits: SchedulerLimits,
    policy: Policy,
    seed: int = 0,
    advance: Advance | None = None,
    spread: float = 0.0,
) -> RunResult:
    """Serve every request; the same arguments give the same result. spread: of their acceptance (L4).

    Raises UsageError for a request that never fits, or a policy that returns nonsense.
    """
    return ServingLoop(requests, table, limits, policy, seed, spread).run(advance)


class ServingLoop:
    """Clients, scheduler, batch and cache at one moment.

    now_s: when the next step begins; seen_s: what has come until then is in it. found_share: share of the
    requests of the last steps that found drafts. stalled_s: time of passes of prompts since the last step,
    joined: requests whose prompts they ended.
    """

    def __init__(
        self,
        requests: Requests,
        table: StepTable,
        limits: SchedulerLimits,
        policy: Policy,
        seed: int,
        spread: float,
    ) -> None:
        if limits.whole_prompts:
            all_whole = bool(are_read_whole(as_float(requests.prompt_tokens), limits.token_budget))
            limits = replace(limits, whole_prompts=all_whole)
        self.requests, self.table, self.limits = requests, table, limits
        self.clients = Clients(requests, table.server_s)
        self.batch = Batch(Draws(table, requests.output_tokens, seed, spread))
        self.cache = Cache(limits, self.batch, int(requests.prompt_tokens.max()))
        self.scheduler = Scheduler(limits, self.batch, self.cache, table)
        if limits.blocks_of(requests.longest + table.drafts_max) > self.cache.blocks_for(1):
            raise UsageError(
                f"a request of {requests.longest} tokens and {table.drafts_max} drafts does not fit into "
                f"{limits.own_kv_tokens} tokens of KV cache; leave it out or choose a larger GPU"
            )
        self.policy = AskedPolicy(policy, self.batch, self.cache, limits, table)
        self.recorder = Recorder(requests, table.drafts_max, table.requests_max)
        self.window = Window(requests, self.recorder, self._served)
        self.now_s = self.seen_s = 0.0
        self.finished = 0
        self.stalled_s, self.joined = 0.0, 0
        self.found_share = table.match_rate

    def run(self, advance: Advance | None = None) -> RunResult:
        """Serve until every request has finished."""
        reported, count = 0, self.requests.count
        while self.finished < count:
            self._receive()
            if self.scheduler.is_idle:
                self.now_s = self.seen_s = max(self.now_s, self.clients.next_s)
            else:
                self._step()
                if not self.window.is_open_loop:
                    self.window.count(self.finished, self.now_s, self.now_s)
            if advance is not None and (self.finished == count or self.finished - reported >= _REPORT_EVERY):
                advance(self.finished - reported)
                reported = self.finished
        return self.recorder.result(
            sent_s=self.clients.sent_s,
            end_s=self.now_s,
            window_s=(self.window.begin_s, min(self.window.end_s, self.now_s)),
            preemptions=self.scheduler.preemptions,
            kv_blocks_most=self.cache.most_used,
        )

    def _receive(self) -> None:
        """Queue the requests that had come when the next step was put together."""
        clients = self.clients
        seen_s = self.seen_s if self.table.steps_ahead else self.now_s
        while clients.next_s <= seen_s:
            request = clients.send()
            self.scheduler.unadmitted.append(request)
            self.recorder.in_system_s += self.now_s - clients.sent_s.item(request.number)
            if self.window.is_open_loop:
                sent_s = clients.sent_s.item(request.number)
                self.window.count(clients.sent, sent_s, self.now_s)

    def _step(self) -> None:
        """Take the next step, with those after it that are equal, or a pass of prompts."""
        batch, scheduler = self.batch, self.scheduler
        batch.set_drafts(self.policy.drafts(self.now_s, len(scheduler.unadmitted)))
        chunks = scheduler.schedule(batch.drafts if batch.requests else 0, self.now_s)
        requests = len(batch.requests)
        if not requests and not chunks:
            return
        span = Span(
            start_s=self.now_s,
            requests=requests,
            drafts=batch.drafts if requests else 0,
            not_decoding=scheduler.not_decoding,
            kv_tokens=self.cache.tokens,
            prompt_tokens=sum([chunk.tokens for chunk in chunks]),
        )
        length = batch.tokens / max(requests, 1)
        is_apart = bool(chunks) and self.table.prompts.terms.are_apart
        take = self._read_apart if is_apart else self._take_steps
        take(span, chunks, length)
        self.recorder.add(span)

    def _take_steps(self, span: Span, chunks: list[Chunk], length: float) -> None:
        """Take a step that carries these chunks; without any, those after it that are equal as well.

        length: mean committed tokens of the requests that decode.
        """
        requests, drafts = span.requests, span.drafts
        steps = 1 if chunks or self.stalled_s else self._equal_steps(drafts, length)
        self.scheduler.count_steps(steps, carried=bool(chunks))
        self.cache.record_use(drafts, steps)
        emitted = self.batch.take_steps(steps) if requests else 0
        span.steps, span.accepted = steps, emitted - steps * requests
        if drafts:
            self.found_share = self.batch.found_share(steps)
            self.policy.count(steps, span.accepted)
        if not chunks:
            span.kv_tokens = (span.kv_tokens + self.cache.tokens) // 2
            length += emitted * (steps - 1) / (2 * steps) / requests
        step_s = self._step_s(drafts, requests, length)
        span.prompts_s = self.table.prompts_s(drafts, requests, chunks, step_s) if chunks else 0.0
        span.span_s = steps * step_s + span.prompts_s
        self.now_s, self.seen_s = span.start_s + span.span_s, span.start_s + (steps - 1) * step_s
        emitted -= self._finish_requests()
        span.emitted = emitted + self._start_requests(chunks)
        span.stalled_s, span.joined = self.stalled_s, min(self.joined, requests)
        self.stalled_s, self.joined = 0.0, 0

    def _read_apart(self, span: Span, chunks: list[Chunk], length: float) -> None:
        """Read chunks of prompts in a pass of their own, for which the requests that decode wait.

        Further passes may follow it. Requests whose prompts end decode in the next step with the others.
        """
        requests, drafts = span.requests, span.drafts
        self.scheduler.count_steps(0, carried=True)
        step_s = self._step_s(drafts, requests, length)
        span.span_s = span.prompts_s = self.table.prompts_s(drafts, requests, chunks, step_s)
        if not requests:
            span.span_s += step_s
        self.now_s, self.seen_s = span.start_s + span.span_s, span.start_s
        span.emitted = self._start_requests(chunks)
        self.joined += len(self.batch.requests) - requests
        self.stalled_s += span.span_s

    def _equal_steps(self, drafts: int, length: float) -> int:
        """Steps until a request may be admitted or ends, the cache may be full, or the answer is too old."""
        steps = min(
            _MOST_STEPS,
            self.batch.steps_to_an_end,
            self.cache.steps_that_fit(drafts),
            self.policy.steps_left,
        )
        # prompts that wait, or come meanwhile, ride on the step after these
        if self.scheduler.steps_to_prompts:
            steps = min(steps, self.scheduler.steps_to_prompts)
        until_s = self.clients.next_s - self.now_s
        if self.scheduler.has_room and until_s < inf:
            step_s = self._step_s(drafts, len(self.batch.requests), length)
            steps = min(steps, max(ceil(until_s / step_s) + self.table.steps_ahead, 1))
        return steps

    def _step_s(self, drafts: int, requests: int, length: float) -> float:
        """Seconds of a step without its prompts."""
        table = self.table
        if not requests:  # requests draft right after their prompts
            return table.decoding_s(self.batch.drafts, 0, length)
        step_s = table.decoding_s(drafts, requests, length)
        if drafts and table.match_rate < 1.0:
            return table.with_found_share_s(step_s, drafts, requests, length, self.found_share)
        if not drafts and table.drafts_max:  # the drafter that is loaded keeps its state up to date
            return step_s * (1.0 + table.idle_share.item(requests))
        return step_s

    def _finish_requests(self) -> int:
        """Finish requests at their end; the tokens that the step emitted beyond what these asked for."""
        beyond = 0
        for request in self.scheduler.drop_finished():
            beyond -= request.left
            self._finish(request)
        return beyond

    def _start_requests(self, chunks: list[Chunk]) -> int:
        """Start requests whose prompts have been read, which emits their first token; how many these are."""
        started = self.scheduler.complete(chunks)
        for request in started:
            self._start(request)
        return len(started)

    def _start(self, request: RequestState) -> None:
        """Emit the first token of a request whose prompt is read, or its next one after a preemption."""
        if request.stopped_s is None:
            self.recorder.first_token_s[request.number] = self.now_s + self._sending_s
        else:
            self.recorder.add_gap(self.now_s - request.stopped_s)
            request.stopped_s = None
        request.left -= 1
        self.scheduler.start(request)
        if not request.left:
            self._finish(request)

    @property
    def _sending_s(self) -> float:
        """Time until the server has sent every request its tokens of a step."""
        return self.table.server_s_per_request * len(self.batch.requests)

    def _finish(self, request: RequestState) -> None:
        """Send the last token."""
        finish_s = self.recorder.finish_s[request.number] = self.now_s + self._sending_s
        self.finished += 1
        self.clients.send_after(request.number, finish_s)

    def _served(self) -> float:
        """Requests served so far: of those in flight the shares of their outputs that are emitted."""
        return self.finished + self.batch.served + sum([request.served for request in self.scheduler.queued])
