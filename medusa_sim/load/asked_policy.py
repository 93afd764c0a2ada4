"""A policy in a run: what it chose last, for how long that holds, and what became of its drafts."""

from __future__ import annotations

from medusa_sim.load.batch import Batch
from medusa_sim.load.cache import Cache
from medusa_sim.load.limits import SchedulerLimits
from medusa_sim.load.policies import Policy, State, check_drafts
from medusa_sim.load.step_table import StepTable


class AskedPolicy:
    """Asks a policy how many drafts to make, and again when its answer is out of date.

    steps_left: steps for which the answer still holds while no request comes or goes.
    """

    def __init__(
        self, policy: Policy, batch: Batch, cache: Cache, limits: SchedulerLimits, table: StepTable
    ) -> None:
        self._policy, self._batch, self._cache, self._limits = policy, batch, cache, limits
        self._table = table
        self.steps_left = self._answer = self._asked_at_requests = 0
        self._steps = self._verified = self._accepted = 0

    def drafts(self, now_s: float, unadmitted: int) -> int:
        """Drafts of the next step, within the token budget. unadmitted: requests in the queue."""
        requests = len(self._batch.requests)
        if not requests:
            return self._batch.drafts
        has_changed = self._policy.asked_on_change and requests != self._asked_at_requests
        if has_changed or self.steps_left <= 0:
            answer = self._policy.drafts(self._state(now_s, requests, unadmitted))
            self._answer = check_drafts(self._policy, answer, requests, self._table.drafts_max)
            self.steps_left, self._asked_at_requests = self._policy.hold_steps, requests
            self._steps = self._verified = self._accepted = 0
        return min(self._answer, self._table.drafts_within(self._limits.token_budget, requests))

    def _state(self, now_s: float, requests: int, unadmitted: int) -> State:
        """The state that the policy sees."""
        return State(
            now_s=now_s,
            requests=requests,
            unadmitted=unadmitted,
            mean_length=self._batch.tokens / requests,
            kv_share=self._cache.most_blocks(0) / self._cache.blocks,
            drafts=self._batch.drafts,
            accepted=self._accepted / self._verified if self._verified else None,
            steps=self._steps,
        )

    def count(self, steps: int, accepted: int) -> None:
        """Add steps of all requests, and how many drafts these accepted."""
        self.steps_left -= steps
        if self._batch.drafts:
            self._steps += steps
            self._verified += steps * len(self._batch.requests)
            self._accepted += accepted
