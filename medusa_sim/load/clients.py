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
        self._timed: list[tuple[float, int]] = list(
            zip(requests.arrival_s[leads].tolist(), leads.tolist(), strict=True)
        )
        self._timed.reverse()
        follows = np.flatnonzero(before >= 0)
        self._follower: dict[int, int] = dict(zip(before[follows].tolist(), follows.tolist(), strict=True))
        self._following: list[tuple[float, int]] = []

    @property
    def next_s(self) -> float:
        """When the next request reaches the queue."""
        timed_s = self._timed[-1][0] if self._timed else inf
        following_s = self._following[0][0] if self._following else inf
        return min(timed_s, following_s) + self._server_s

    def send(self) -> RequestState:
        """The next request."""
        timed, following = self._timed, self._following
        is_timed = bool(timed) and not (following and following[0][0] < timed[-1][0])
        _, number = timed.pop() if is_timed else heappop(following)
        self.sent += 1
        requests = self._requests
        output = requests.output_tokens.item(number)
        before = None if requests.session_tokens is None else requests.session_tokens.item(number)
        return RequestState(number, requests.prompt_tokens.item(number), output, before, left=output)

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
        heappush(self._following, (sent_s, follower))
