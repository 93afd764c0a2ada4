"""A policy in a run: what it has seen since it was last asked, and how many drafts it wants now."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from medusa_sim.load.decoding import Decoding
from medusa_sim.load.policies import BySize, Fixed, Policy, State, chosen, chosen_each


class Asking:
    """Asks a policy for the drafts of the next steps. again: the step at which it wants to be asked again."""

    def __init__(self, policy: Policy, drafts_max: int, token_budget: int) -> None:
        self.policy, self.drafts_max, self.token_budget = policy, drafts_max, token_budget
        self.hold = int(getattr(policy, "hold_steps", 1))
        self.waits = bool(getattr(policy, "waits", False))
        self.whole = bool(getattr(policy, "whole", False))
        self.sees_requests = hasattr(policy, "choose_each")
        self._known: dict[int, int] | None = {} if isinstance(policy, Fixed | BySize) else None
        self._steps = self._rows = self._accepted = 0
        self._counted = 0, 0
        self._next: int | None = None
        self.again = 0

    def choose(self, decoding: Decoding, state: Callable[..., State]) -> None:
        """The requests that decode get the policy's drafts, within the token budget.

        state: what it sees, from (drafts accepted in the mean, steps since it was asked).
        """
        b = decoding.count
        self._counted = 0, 0
        if not b:
            return
        if self._known is not None:
            if b not in self._known:
                self._known[b] = self._chosen(state(None, 0), self.token_budget // b - 1)
            decoding.draft(self._known[b])
            self.again = decoding.step + self.hold
            return
        if self.waits and decoding.step < self.again and b + decoding.asked <= self.token_budget:
            return
        self.again = decoding.step + self.hold
        most = self.token_budget // b - 1
        if self._next is not None:
            decoding.draft(self._next)
            self._next = None
        elif self.sees_requests:
            each = chosen_each(self.policy, state(*self._seen()), self.drafts_max, decoding.seen())
            fresh, made = getattr(self.policy, "fresh", 0), self.drafts_max if self.whole else 0
            decoding.draft_each(np.minimum(each, most), min(fresh, most), min(made, most))
        else:
            decoding.draft(self._chosen(state(*self._seen()), most))

    def _chosen(self, state: State, most: int) -> int:
        return min(chosen(self.policy, state, self.drafts_max), most)

    def _seen(self) -> tuple[float | None, int]:
        """(drafts accepted by a request in a step, steps) since the policy was last asked."""
        found = self._accepted / self._rows if self._rows else None, self._steps
        self._steps = self._rows = self._accepted = 0
        return found

    def unchanged(self, steps: int, step_s: float, decoding: Decoding, state: Callable[..., State]) -> int:
        """How many of so many steps run before the policy, asked as often as it wants, changes its mind.

        step_s: seconds of one; state: as of `choose`.
        """
        first = self.again - decoding.step
        if self.sees_requests:
            return min(steps, first)
        b, drafts, most = decoding.count, decoding.drafts, self.token_budget // decoding.count - 1
        moments, now = np.arange(first, steps, self.hold), state(None, 0)
        by_token = now.kv_share / max(decoding.length_sum, 1)
        for later, gained in zip(moments.tolist(), decoding.gained_at(moments).tolist(), strict=True):
            if drafts:
                self.saw(gained, later, b)
            self._counted = gained, later
            seen = State(
                now.now_s + later * step_s, b, now.waiting, now.mean_length + gained / b,
                now.kv_share + gained * by_token, drafts, *self._seen(),
            )  # fmt: skip
            self.again += self.hold
            found = self._chosen(seen, most)
            if found != drafts:
                self._next, self.again = found, decoding.step + later
                return int(later)
        return steps

    def saw(self, emitted: int, steps: int, b: int) -> None:
        """What b requests have emitted with drafts, in so many steps since the last change of anything."""
        tokens, counted = self._counted
        self._accepted += emitted - tokens - (steps - counted) * b
        self._rows += (steps - counted) * b
        self._steps += steps - counted
