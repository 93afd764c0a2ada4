"""A policy in a run: what it has seen since it was last asked, and how many drafts it wants now."""

from __future__ import annotations

from collections.abc import Callable

from medusa_sim.load.decoding import Decoding
from medusa_sim.load.policies import (
    BySize,
    Fixed,
    Policy,
    State,
    at_of,
    checked,
    chosen,
)


class Asking:
    """Asks a policy for the drafts of the next steps. again: the step at which it wants to be asked again."""

    def __init__(self, policy: Policy, drafts_max: int, token_budget: int) -> None:
        self.policy, self.drafts_max, self.token_budget = policy, drafts_max, token_budget
        self.hold = int(getattr(policy, "hold_steps", 1))
        self.waits = bool(getattr(policy, "waits", False))
        self._known: dict[int, int] | None = {} if isinstance(policy, Fixed | BySize) else None
        self._at = at_of(policy)
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
            decoding.draft(min(self._next, most))
            self._next = None
        elif self._at is not None:
            answer = self._at(b, decoding.length_sum / b, decoding.drafts, *self._seen())
            decoding.draft(min(checked(self.policy, answer, b, self.drafts_max), most))
        else:
            decoding.draft(self._chosen(state(*self._seen()), most))

    def _chosen(self, state: State, most: int) -> int:
        return min(chosen(self.policy, state, self.drafts_max), most)

    def _seen(self) -> tuple[float | None, int]:
        """(drafts accepted by a request in a step, steps) since the policy was last asked."""
        seen = self._accepted / self._rows if self._rows else None, self._steps
        self._steps = self._rows = self._accepted = 0
        return seen

    def unchanged(
        self, steps: int, step_s: float, decoding: Decoding, state: Callable[..., State]
    ) -> tuple[int, int | None]:
        """How many of so many steps run before the policy, asked as often as it wants, changes its mind.

        With the tokens that they give, where they were counted; step_s: seconds of one; state: as of
        `choose`.
        """
        first = self.again - decoding.step
        b, drafts, at = decoding.count, decoding.drafts, self._at
        most, length = self.token_budget // b - 1, decoding.length_sum / b
        moments = [*range(first, steps, self.hold), steps]
        gains = decoding.gained_at(moments)
        # as `saw` and `_seen`, without their calls: this is asked most
        accepted, rows, past = self._accepted, self._rows, self._steps
        tokens = counted = 0
        self._steps = self._rows = self._accepted = 0
        if at is None:
            now = state(None, 0)
            share_a_token = now.kv_share / max(decoding.length_sum, 1)
        for later, gained in zip(moments[:-1], gains, strict=False):
            since = later - counted
            if drafts:
                accepted, rows, past = accepted + gained - tokens - since * b, rows + since * b, past + since
            mean = accepted / rows if rows else None
            self.again += self.hold
            if at is None:
                share = now.kv_share + gained * share_a_token
                at_s = now.now_s + later * step_s
                seen = State(at_s, b, now.waiting, length + gained / b, share, drafts, mean, past)
                answer = self._chosen(seen, most)
            else:
                answer = at(b, length + gained / b, drafts, mean, past)
                answer = min(checked(self.policy, answer, b, self.drafts_max), most)
            accepted = rows = past = 0
            tokens, counted = self._counted = gained, later
            if answer != decoding.fresh:
                self._next, self.again = answer, decoding.step + later
                return later, gained
        return steps, gains[-1]

    def saw(self, emitted: int, steps: int, b: int) -> None:
        """What b requests have emitted with drafts, in so many steps since the last change of anything."""
        tokens, counted = self._counted
        self._accepted += emitted - tokens - (steps - counted) * b
        self._rows += (steps - counted) * b
        self._steps += steps - counted
