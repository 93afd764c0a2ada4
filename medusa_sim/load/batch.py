"""The batch: requests that decode together, and what they emit in a step."""

from __future__ import annotations

from bisect import bisect_left

from medusa_sim.load.draws import Draws
from medusa_sim.load.request_state import RequestState


class Batch:
    """Requests that decode, in order of admission.

    drafts: of every request in a step. tokens: in the KV cache, of all requests; shared: KV blocks that they
    share with others, summed over them. served: requests served since the run began, each counted by the
    share of its output that it has emitted.
    """

    def __init__(self, draws: Draws) -> None:
        self.requests: list[RequestState] = []
        self.drafts = self.tokens = self.shared = 0
        self.served = 0.0
        self._draws, self._found = draws, draws.found_before()
        self._before = draws.tokens_before(0)

    def join(self, request: RequestState) -> None:
        """Take in a request whose prompt has been read: it decodes from the next step on."""
        request.draw = self._draws.first[request.number]
        self.requests.append(request)
        self.tokens += request.cached
        self.shared += request.shared
        self._find_end(request)

    def set_drafts(self, drafts: int) -> None:
        """Every request makes so many drafts a step from now on."""
        if drafts == self.drafts:
            return
        self.drafts, self._before = drafts, self._draws.tokens_before(drafts)
        for request in self.requests:
            self._find_end(request)

    def _find_end(self, request: RequestState) -> None:
        """Find the draw by which a request has emitted everything; it takes one a token at most."""
        before, draw, left = self._before, request.draw, request.left
        request.end = bisect_left(before, before[draw] + left, draw, draw + left)

    @property
    def steps_to_an_end(self) -> int:
        """Steps until the first request has emitted everything."""
        return min([request.end - request.draw for request in self.requests])

    def take_steps(self, steps: int) -> int:
        """Take so many steps, at most `steps_to_an_end`; the tokens that all requests emit in them."""
        before, emitted, served = self._before, 0, 0.0
        for request in self.requests:
            draw = request.draw
            tokens = before[draw + steps] - before[draw]
            request.draw = draw + steps
            request.committed += tokens
            emitted += tokens
            served += tokens / request.output_tokens
        self.tokens += emitted
        self.served += served
        return emitted

    def found_share(self, steps: int) -> float:
        """Share of the last so many steps, over all requests, in which drafts were found."""
        found = self._found
        if found is None:
            return 1.0
        shares = [found[request.draw] - found[request.draw - steps] for request in self.requests]
        return sum(shares) / (steps * len(shares))

    def drop_finished(self) -> list[RequestState]:
        """Drop the requests that have emitted everything, and return them."""
        finished = [request for request in self.requests if request.draw >= request.end]
        for request in finished:
            self.served += request.left / request.output_tokens  # what it emitted beyond what was asked
            self._leave(request)
        if finished:
            self.requests = [request for request in self.requests if request.draw < request.end]
        return finished

    def drop_last(self) -> RequestState:
        """Drop the request that was admitted last, before its end."""
        request = self.requests.pop()
        self._leave(request)
        return request

    def _leave(self, request: RequestState) -> None:
        self.tokens -= request.cached
        self.shared -= request.shared
