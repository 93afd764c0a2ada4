"""The part of a run that is measured: a server that is neither filling nor running empty."""

from __future__ import annotations

from math import inf

from medusa_sim.load.record import Recorder
from medusa_sim.load.requests import Requests


class Window:
    """When measuring begins and ends; the whole run where a load has no warm-up.

    Of an open loop behind its warm-up, until the last request comes; of a closed one from when as many
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

    def pass_request(self, number: int, now_s: float) -> None:
        """The request of that number, from 1, has come to an open loop, or has finished in a closed one."""
        if number == self._ends_at:
            self.end_s = now_s
            self._recorder.count_gaps(on=False)
        elif number == self._begins_at:
            self.begin_s = now_s
            self._recorder.count_gaps(on=True)
