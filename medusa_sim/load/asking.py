"""A policy in a run: what it has seen since it was last asked, and how many drafts it wants now."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from medusa_sim.arrays import IntArray
from medusa_sim.load.policies import BySize, Fixed, Policy, State, chosen, chosen_each


class Asking:
    """drafts: of the next steps, the longest of any request; each: of every request that decodes, where the
    policy sees requests; asked: of all together.

    count: requests of the run.
    """

    def __init__(self, policy: Policy, drafts_max: int, token_budget: int, count: int) -> None:
        self.policy, self.drafts_max, self.token_budget = policy, drafts_max, token_budget
        self.hold = int(getattr(policy, "hold_steps", 1))
        self.sees_requests = hasattr(policy, "choose_each")
        self.each: IntArray | None = None
        self.drafts = self.asked = 0
        self._known: dict[int, int] | None = {} if isinstance(policy, Fixed | BySize) else None
        self._past = np.zeros((2, count if self.sees_requests else 0), dtype=np.int64)
        self._steps = self._rows = self._accepted = 0

    def choose(self, b: int, at: IntArray, state: Callable[[int, float | None, int], State]) -> int:
        """The policy's drafts for b requests, which these are, within the token budget.

        state: what it sees, from (drafts of the step before, accepted in the mean, steps).
        """
        if not b:
            self.each = None
            return 0
        known = self._known
        if known is not None and b in known:
            return known[b]
        now = state(self.drafts, self._accepted / self._rows if self._rows else None, self._steps)
        self._steps = self._rows = self._accepted = 0
        most = self.token_budget // b - 1
        if self.sees_requests:
            past = self._past.take(at[:b], axis=1)
            self.each = np.minimum(chosen_each(self.policy, now, self.drafts_max, past), most)
            self.drafts = int(np.maximum.reduce(self.each))
        else:
            self.drafts = min(chosen(self.policy, now, self.drafts_max), most)
        if known is not None:
            known[b] = self.drafts
        return self.drafts

    def keep(self, b: int, drafts: int) -> None:
        """The first b requests run in the step."""
        if self.each is None:
            self.asked = b * drafts
        else:
            self.each = self.each[:b]
            self.asked = int(np.add.reduce(self.each))

    def saw(self, at: IntArray, emitted: IntArray, accepted: int) -> None:
        """What these requests emitted with drafts. emitted: (steps, requests) tokens."""
        steps, b = emitted.shape
        self._accepted += accepted
        self._rows += steps * b
        self._steps += steps
        if self.each is not None:
            accepted_each, tried = self._past
            accepted_each[at] += np.add.reduce(emitted, axis=0) - steps
            tried[at] += np.add.reduce(np.minimum(emitted, self.each), axis=0)
