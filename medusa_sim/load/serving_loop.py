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
    requests of the last steps that found drafts. is_stalled: whether prompts were read in a pass of their
    own since the last step.
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
        self.clients = Clients(requests, table.host.client_s)
        self.batch = Batch(Draws(table.accepted, requests.output_tokens, seed, spread))
        self.cache = Cache(limits, self.batch, int(requests.prompt_tokens.max()))
        self.scheduler = Scheduler(limits, self.batch, self.cache, table)
        if limits.blocks_of(requests.longest + table.drafts_max) > self.cache.blocks_for(1):
            raise UsageError(
                f"a request of {requests.longest} tokens and {table.drafts_max} drafts does not fit into "
                f"{limits.own_kv_tokens} tokens of KV cache; leave it out or choose a larger GPU"
            )
        self.policy = AskedPolicy(policy, self.batch, self.cache, limits, table)
        self.recorder = Recorder(requests, table.drafts_max, table.requests_max)
        self.now_s = self.seen_s = 0.0
        self.finished = 0
        self.is_stalled = False
        self.found_share = table.accepted.match_rate

    def run(self, advance: Advance | None = None) -> RunResult:
        """Serve until every request has finished."""
        reported, count = 0, self.requests.count
        while self.finished < count:
            self._receive()
            if self.scheduler.is_idle:
                self.now_s = self.seen_s = max(self.now_s, self.clients.next_s)
            else:
                self._step()
            if advance is not None and (self.finished == count or self.finished - reported >= _REPORT_EVERY):
                advance(self.finished - reported)
                reported = self.finished
        return self.recorder.result(
            self.clients.sent_s,
            preemptions=self.scheduler.preemptions,
            kv_blocks_most=self.cache.most_used,
        )

    def _receive(self) -> None:
        """Queue the requests that had come when the next step was put together."""
        seen_s = self.seen_s if self.table.host.steps_ahead else self.now_s
        while self.clients.next_s <= seen_s:
            self.scheduler.unadmitted.append(self.clients.send())

    def _step(self) -> None:
        """Choose drafts and prompts of the next step, and take it."""
        batch, scheduler = self.batch, self.scheduler
        batch.set_drafts(self.policy.drafts(self.now_s, len(scheduler.unadmitted)))
        chunks = scheduler.schedule(batch.drafts if batch.requests else 0, self.now_s)
        if batch.requests or chunks:
            self._take(chunks)

    def _take(self, chunks: list[Chunk]) -> None:
        """Take a step that carries these chunks; without any, those after it that are equal as well.

        Where prompts have passes of their own it is such a pass, for which the requests that decode wait:
        further passes may follow it, and requests whose prompts end decode in the next step with the others.
        """
        batch, table, start_s = self.batch, self.table, self.now_s
        requests, sent = len(batch.requests), self.clients.sent
        not_decoding, kv_tokens = self.scheduler.not_decoding, self.cache.tokens
        drafts, length = batch.drafts if requests else 0, batch.tokens / max(requests, 1)
        is_pass = bool(chunks) and table.prompts.terms.are_apart
        steps = 0 if is_pass else 1 if chunks or self.is_stalled else self._equal_steps(drafts, length)
        self.scheduler.count_steps(steps, carried=bool(chunks))
        emitted = self._emit(steps, drafts)
        accepted = emitted - steps * requests
        if not chunks:
            kv_tokens = (kv_tokens + self.cache.tokens) // 2
            length += emitted * (steps - 1) / (2 * steps) / requests
        step_s = self._step_s(drafts, requests, length)
        prompts_s = table.prompts_s(drafts, requests, chunks, step_s) if chunks else 0.0
        span_s = (steps if requests else 1) * step_s + prompts_s  # prompts alone are a step, of no requests
        self.now_s, self.seen_s = start_s + span_s, start_s + max(steps - 1, 0) * step_s
        self.is_stalled = is_pass
        emitted -= self._finish_requests()
        started = self._start_requests(chunks)
        self.recorder.add(
            Span(
                start_s=start_s,
                span_s=span_s,
                prompts_s=prompts_s,
                steps=steps,
                requests=requests,
                drafts=drafts,
                not_decoding=not_decoding,
                kv_tokens=kv_tokens,
                prompt_tokens=sum([chunk.tokens for chunk in chunks]),
                emitted=emitted + len(started),
                accepted=accepted,
                joined=sum([request.left > 0 for request in started]),
                sent=sent,
                finished=self.finished,
                served=batch.served,
            )
        )

    def _emit(self, steps: int, drafts: int) -> int:
        """Tokens that the requests that decode emit in so many steps; none in a pass of prompts."""
        if steps:
            self.cache.record_use(drafts, steps)
        if not steps or not self.batch.requests:
            return 0
        emitted = self.batch.take_steps(steps)
        if drafts:
            self.found_share = self.batch.found_share(steps)
        self.policy.count(steps, emitted - steps * len(self.batch.requests))
        return emitted

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
            steps = min(steps, max(ceil(until_s / step_s) + self.table.host.steps_ahead, 1))
        return steps

    def _step_s(self, drafts: int, requests: int, length: float) -> float:
        """Seconds of a step without its prompts."""
        table = self.table
        if not requests:  # requests draft right after their prompts
            return table.decoding_s(self.batch.drafts, 0, length)
        step_s = table.decoding_s(drafts, requests, length)
        if drafts and table.accepted.match_rate < 1.0:
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

    def _start_requests(self, chunks: list[Chunk]) -> list[RequestState]:
        """Start the requests whose prompts have been read, which emits their first token, and return them."""
        started = self.scheduler.complete(chunks)
        for request in started:
            self._start(request)
        return started

    def _start(self, request: RequestState) -> None:
        """Emit the first token of a request whose prompt is read, or its next one after a preemption."""
        if request.stopped_s is None:
            self.recorder.first_token_s[request.number] = self.now_s + self._sending_s
        else:
            self.recorder.add_gap(self.now_s - request.stopped_s)
            request.stopped_s = None
        request.committed += 1
        self.batch.served += 1.0 / request.output_tokens
        self.scheduler.start(request)
        if not request.left:
            self._finish(request)

    @property
    def _sending_s(self) -> float:
        """Time until the server has sent every request its tokens of a step."""
        return self.table.host.sending_s * len(self.batch.requests)

    def _finish(self, request: RequestState) -> None:
        """Send the last token."""
        finish_s = self.recorder.finish_s[request.number] = self.now_s + self._sending_s
        self.finished += 1
        self.clients.send_after(request.number, finish_s)
