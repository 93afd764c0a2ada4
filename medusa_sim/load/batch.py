"""The batch: requests that decode together, how far each is, and what they emit in a step."""

from __future__ import annotations

from bisect import bisect_left
from heapq import heapify, heappop, heappush

from medusa_sim.load.draws import Draws
from medusa_sim.load.request_state import RequestState


class Batch:
    """Requests that decode, by number, in order of admission.

    drafts: of every request in a step. step: steps made so far. tokens: in the KV cache, of all requests;
    shared: KV blocks that they share with others, summed over them.

    A request is at index `offset + step` of `Draws`. With before[place] the tokens of all draws before it,

        tokens of it in the KV cache = base + before[offset + step]
        it has emitted everything where before[offset + step] >= end, first in step `last_step`

    So a request changes only when it joins or gets other drafts, however many steps lie between.
    """

    def __init__(self, draws: Draws) -> None:
        self.requests: dict[int, RequestState] = {}
        self.drafts = self.step = self.tokens = self.shared = 0
        self._draws, self._found = draws, draws.found_before()
        self._before = draws.tokens_before(0)
        self._drawn_tokens = 0
        self._ends: list[tuple[int, int]] = []

    def join(self, request: RequestState) -> None:
        """Take in a request whose prompt has been read: it decodes from the next step on."""
        request.offset = self._draws.first[request.number] - self.step
        self.requests[request.number] = request
        self.tokens += request.cached
        self.shared += request.shared
        self._drawn_tokens += self._before[request.offset + self.step]
        self._set_end(request)
        heappush(self._ends, (request.last_step, request.number))

    def set_drafts(self, drafts: int) -> None:
        """Every request makes so many drafts a step from now on."""
        if drafts == self.drafts:
            return
        requests = self.requests.values()
        for request in requests:
            request.left = self._left(request)
        self.drafts, self._before = drafts, self._draws.tokens_before(drafts)
        for request in requests:
            self._set_end(request)
        self._drawn_tokens = sum([self._before[request.offset + self.step] for request in requests])
        self._ends = [(request.last_step, request.number) for request in requests]
        heapify(self._ends)

    def _set_end(self, request: RequestState) -> None:
        """Find where a request ends, from what is left of it and the current drafts."""
        before, place = self._before, request.offset + self.step
        request.end, request.base = before[place] + request.left, request.cached - before[place]
        request.last_step = bisect_left(before, request.end, place, place + request.left) - request.offset

    def _left(self, request: RequestState) -> int:
        """Tokens still to emit; below 0 where the last step emitted more than was left."""
        return request.end - self._before[request.offset + self.step]

    @property
    def served(self) -> float:
        """Shares of their outputs that the requests have emitted, summed up."""
        return sum([1.0 - self._left(request) / request.output_tokens for request in self.requests.values()])

    def cached(self) -> list[int]:
        """Tokens of each request in the KV cache."""
        before, step = self._before, self.step
        return [request.base + before[request.offset + step] for request in self.requests.values()]

    @property
    def steps_to_an_end(self) -> int:
        """Steps until the first request has emitted everything."""
        ends, requests = self._ends, self.requests
        while ends[0][1] not in requests or requests[ends[0][1]].last_step != ends[0][0]:
            heappop(ends)  # of a request that was preempted
        return ends[0][0] - self.step

    def take_steps(self, steps: int) -> int:
        """Take so many steps, at most `steps_to_an_end`; the tokens that all requests emit in them."""
        self.step += steps
        emitted = steps * len(self.requests)
        if self.drafts:
            before, step = self._before, self.step
            drawn_tokens = sum([before[request.offset + step] for request in self.requests.values()])
            emitted = drawn_tokens - self._drawn_tokens
        self._drawn_tokens += emitted
        self.tokens += emitted
        return emitted

    def found_share(self, steps: int) -> float:
        """Share of the last so many steps, over all requests, in which drafts were found."""
        found = self._found
        if found is None:
            return 1.0
        places = [request.offset + self.step for request in self.requests.values()]
        return sum([found[place] - found[place - steps] for place in places]) / (steps * len(places))

    def drop_finished(self) -> list[RequestState]:
        """Drop the requests that have emitted everything, and return them."""
        gone = []
        while self.requests and self.steps_to_an_end <= 0:
            gone.append(self._drop(self._ends[0][1]))
        return gone

    def drop_last(self) -> RequestState:
        """Drop the request that was admitted last, before its end."""
        return self._drop(next(reversed(self.requests)))

    def _drop(self, number: int) -> RequestState:
        request = self.requests.pop(number)
        request.left = self._left(request)
        self.tokens -= request.cached
        self.shared -= request.shared
        self._drawn_tokens -= self._before[request.offset + self.step]
        return request
