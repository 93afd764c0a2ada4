"""Window of a run: when measuring begins and ends."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from medusa_sim.load.recorder import Recorder
from medusa_sim.load.requests import Requests


class Window:
    """From a server that has filled to one that runs empty; the whole run where a load has no warm-up.

    Of an open loop after its warm-up, until the last request comes; of a closed one from when as many
    requests have finished as there are users, until the last one begins.

    served: requests that the server has served so far, those in flight in parts.
    """

    def __init__(self, requests: Requests, recorder: Recorder, served: Callable[[], float]) -> None:
        self._recorder, self._served = recorder, served
        self.is_open_loop = requests.users is None
        self.begin_s, self.end_s = 0.0, inf
        self._begins_at = self._ends_at = -1
        if requests.users is None and requests.warm:
            self._begins_at, self._ends_at = requests.warm + 1, requests.count
        elif requests.users is not None and requests.count > 2 * requests.users:
            self._begins_at, self._ends_at = requests.users, requests.count - requests.users

    def count(self, requests: int, at_s: float, now_s: float) -> None:
        """So many requests have come to an open loop, or finished in a closed one, at a time.

        Never fewer than before: several may finish at once. now_s: the end of the last span, from or to which
        steps are added up.
        """
        if 0 <= self._begins_at <= requests:
            self._begins_at, self.begin_s = -1, at_s
            self._recorder.mark(now_s, self._served())
        elif 0 <= self._ends_at <= requests:
            self._ends_at, self.end_s = -1, at_s
            self._recorder.mark(now_s, self._served())
