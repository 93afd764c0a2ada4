"""Clients: which request is sent next, and when it reaches the queue of the server."""

from __future__ import annotations

from heapq import heappop, heappush
from math import inf

import numpy as np

from medusa_sim.arrays import FloatArray
from medusa_sim.load.request_state import RequestState
from medusa_sim.load.requests import Requests


class Clients:
    """Send requests: of an open loop at their times or after one of their session, of a closed one after any.

    sent_s: (requests,) when each was sent; nan where that is not known yet. next_s: when the next one reaches
    the queue, server_s after it was sent; infinite where none is known. sent: how many have reached it.
    pending: how many requests of a closed loop wait for others to finish.
    """

    def __init__(self, requests: Requests, server_s: float) -> None:
        self._requests, self._server_s = requests, server_s
        sent_first, before = requests.count, requests.before
        if requests.users is not None:
            sent_first, before = min(requests.users, requests.count), np.full_like(before, -1)
        self.sent_s: FloatArray = np.full(requests.count, np.nan)
        self.sent_s[:sent_first] = requests.arrival_s[:sent_first]
        self.pending = requests.count - sent_first
        self.sent = 0
        leads = np.flatnonzero(before[:sent_first] < 0)
        self._coming = list(zip(requests.arrival_s[leads].tolist(), leads.tolist(), strict=True))  # a heap
        follows = np.flatnonzero(before >= 0)
        self._follower: dict[int, int] = dict(zip(before[follows].tolist(), follows.tolist(), strict=True))

    @property
    def next_s(self) -> float:
        """When the next request reaches the queue."""
        return self._coming[0][0] + self._server_s if self._coming else inf

    def send(self) -> RequestState:
        """The next request."""
        _, number = heappop(self._coming)
        self.sent += 1
        requests = self._requests
        prompt, output = requests.prompt_tokens.item(number), requests.output_tokens.item(number)
        before = None if requests.session_tokens is None else requests.session_tokens.item(number)
        return RequestState(number, prompt, output, before, committed=prompt)

    def send_after(self, number: int, finish_s: float) -> None:
        """Send what waits for a request that has finished: the next of its session, or of a closed loop."""
        requests = self._requests
        if self.pending:
            follower = requests.count - self.pending
            sent_s = finish_s + requests.think_s
            self.pending -= 1
        elif number in self._follower:
            follower = self._follower[number]
            pause_s = 0.0 if requests.pause_s is None else requests.pause_s.item(follower)
            sent_s = max(requests.arrival_s.item(follower), finish_s + pause_s)
        else:
            return
        self.sent_s[follower] = sent_s
        heappush(self._coming, (sent_s, follower))
