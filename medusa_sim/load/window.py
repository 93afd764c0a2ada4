"""Window of a run: when measuring begins and ends."""

from __future__ import annotations

from math import inf

from medusa_sim.load.recorder import Recorder
from medusa_sim.load.requests import Requests


class Window:
    """From a server that has filled to one that runs empty; the whole run where a load has no warm-up.

    Of an open loop after its warm-up, until the last request comes; of a closed one from when as many
    requests have finished as there are users, until the last one begins.
    """

    def __init__(self, requests: Requests, recorder: Recorder) -> None:
        self._recorder = recorder
        self.is_open_loop = requests.users is None
        self.begin_s, self.end_s = 0.0, inf
        self._begins_at = self._ends_at = -1
        if requests.users is None and requests.warm:
            self._begins_at, self._ends_at = requests.warm + 1, requests.count
        elif requests.users is not None and requests.count > 2 * requests.users:
            self._begins_at, self._ends_at = requests.users, requests.count - requests.users

    def pass_request(self, number: int, at_s: float, now_s: float) -> None:
        """The request of that number, from 1, came to an open loop, or finished in a closed one, at a time.

        now_s: the end of the last span, from or to which steps are added up.
        """
        if number == self._begins_at:
            self.begin_s = at_s
            self._recorder.mark(now_s)
        elif number == self._ends_at:
            self.end_s = at_s
            self._recorder.mark(now_s)
