"""Which request comes next, and when: those of an open loop, and those that follow one that has finished."""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np

from medusa_sim.arrays import FloatArray
from medusa_sim.load.requests import Requests

_NEVER = float("inf")


class Arriving:
    """Requests on their way. arrival_s: (requests,) when each was sent; nan where that is not known yet.

    next_s: when the next one reaches the queue, infinite where none is known; taken: how many have; unknown:
    how many of a closed loop wait for others to finish. A request of a session waits for the one before it.
    """

    def __init__(self, requests: Requests, server_s: float) -> None:
        count = requests.count
        known = count if requests.users is None else min(requests.users, count)
        self.arrival_s: FloatArray = np.full(count, np.nan)
        self.arrival_s[:known] = requests.arrival_s[:known]
        self.taken = 0
        self.unknown = count - known
        self._think_s, self._server_s = requests.think_s, server_s
        opens = np.flatnonzero(requests.before[:known] < 0)
        self._first: list[int] = opens.tolist()
        self._open: list[float] = requests.arrival_s[opens].tolist()
        follows = np.flatnonzero(requests.before >= 0)
        self._follower: dict[int, int] = dict(
            zip(requests.before[follows].tolist(), follows.tolist(), strict=True)
        )
        self._pause_s = requests.pause_s
        self._opened = 0
        self._later: list[tuple[float, int]] = []
        self.next_s = _NEVER
        self._find_next()

    def _find_next(self) -> None:
        self.next_s = _NEVER
        if self._opened < len(self._open):
            self.next_s = self._open[self._opened] + self._server_s
        if self._later:
            self.next_s = min(self.next_s, self._later[0][0] + self._server_s)

    def take(self) -> tuple[int, float]:
        """(the next request, when it was sent)."""
        self.taken += 1
        later, place = self._later, self._opened
        if later and (place >= len(self._open) or later[0][0] < self._open[place]):
            sent_s, request = heappop(later)
        else:
            sent_s, request = self._open[place], self._first[place]
            self._opened = place + 1
        self._find_next()
        return request, sent_s

    def follow(self, finished: int, finish_s: float) -> None:
        """A request has finished: the next one of its session comes, in a closed loop the next one of all."""
        if self.unknown:
            request = self.arrival_s.size - self.unknown
            sent_s = finish_s + self._think_s
            self.unknown -= 1
        elif finished in self._follower:
            request = self._follower[finished]
            paused_s = 0.0 if self._pause_s is None else float(self._pause_s[request])
            sent_s = max(float(self.arrival_s[request]), finish_s + paused_s)
        else:
            return
        self.arrival_s[request] = sent_s
        heappush(self._later, (sent_s, request))
        self.next_s = min(self.next_s, sent_s + self._server_s)
