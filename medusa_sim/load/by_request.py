"""Policies that see requests: fewer drafts for those that accept few, at the cost of the rows of a step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from medusa_sim.arrays import FloatArray, IntArray
from medusa_sim.load.kinds import Hardness
from medusa_sim.load.policies import CONTEXT_STEPS, VLLM_CONTEXT, Budget, Costs, State
from medusa_sim.load.step_table import StepTable


class BudgetByRequest:
    """Fewer drafts for requests that accept few: those whose step emits most tokens a second.

    The drafts that are worth most, of all requests, are taken first, until one more gives less than its row
    costs; what tells requests apart are the drafts that each accepted before. A draft is worth what it adds
    to what its request emits anyway, which requests a second follow. The drafter runs for the longest of
    them. costs: of steps, as they are where none are given. fresh: drafts of a request of which nothing is
    known, as last chosen; whole: whether as many are drafted for all, of which some are verified; alike:
    whether no request is told from another.
    """

    hold_steps, waits, whole = 2 * CONTEXT_STEPS, True, False
    name = "budget-by-request"

    @classmethod
    def of(cls, table: StepTable, spread: float) -> BudgetByRequest | Budget:
        """Of requests that are alike it is the budget of the batch."""
        return cls(table, spread) if spread else replace(Budget.of(table), name=cls.name)

    def __init__(self, table: StepTable, spread: float, costs: Costs | None = None) -> None:
        self.table, self.spread, self.costs = table, spread, costs or Costs(table)
        self.hardness = Hardness(table.rates, spread)
        self.fresh = 0
        nothing = np.zeros(1, dtype=np.int64)
        self._unknown = int(self.hardness.of(nothing, nothing)[0])
        gains = self._worth(self.hardness.gains)
        order = np.argsort(-gains, axis=None, kind="stable")
        own, depth = np.unravel_index(order, gains.shape)
        # one class more, of which no request is: nothing is taken
        self._classes = len(gains)
        self.alike = self._classes == 1 and type(self).choose_each is BudgetByRequest.choose_each
        self._known: dict[tuple[int, int], int] = {}
        self._class = np.concatenate([[self._classes], own])
        self._gain = np.concatenate([[0.0], gains.ravel()[order]])
        # what is taken where no request drafts more than so many: a deep draft is drafted for all
        made = [table.drafts_max] if self.whole else range(table.drafts_max + 1)
        self._made = np.array(made)[:, None]
        self._within = np.concatenate([[0], depth + 1]) <= self._made

    def _worth(self, gains: FloatArray) -> FloatArray:
        """(classes, K) of every draft, from the probability that so many are accepted."""
        emitted = 1.0 + np.cumsum(np.pad(gains, ((0, 0), (1, 0))), axis=1)
        return np.diff(np.log(emitted), axis=1)

    def _value(self, gained: FloatArray, requests: int, seconds: FloatArray) -> FloatArray:
        """What is largest where the right number of drafts is taken."""
        return gained / requests - np.log(seconds)

    def choose(self, state: State) -> int:
        """The longest draft of requests of which nothing is known yet."""
        nothing = np.zeros(state.requests, dtype=np.int64)
        return int(self.choose_each(state, nothing, nothing).max())

    def at(self, requests: int, length: float, drafts: int, accepted: float | None, steps: int) -> int:
        """Drafts of every request where they are alike: looked up from the second time on."""
        del drafts, accepted, steps
        key = requests, self.costs.place(length)
        if key not in self._known:
            nothing = np.zeros(requests, dtype=np.int64)
            self._known[key] = int(self._each(requests, length, self.hardness.of(nothing, nothing)).max())
        return self._known[key]

    def choose_each(self, state: State, accepted: IntArray, tried: IntArray) -> IntArray:
        """(requests,) drafts of each, by how many that were tried before were accepted."""
        return self._each(state.requests, state.mean_length, self.hardness.of(accepted, tried))

    def _each(self, b: int, length: float, own: IntArray) -> IntArray:
        """`choose_each` by the classes (requests,) of the requests."""
        each = np.bincount(own, minlength=self._classes + 1)[self._class] * self._within
        gained, asked = np.add.accumulate(each * self._gain, axis=1), np.add.accumulate(each, axis=1)
        seconds = self.table.unequal_s(asked, self._made, b, self.costs.of(b, length))
        deepest, taken = divmod(int(self._value(gained, b, seconds).argmax()), self._class.size)
        slots = self._class[1 : taken + 1][self._within[deepest, 1 : taken + 1]]
        drafts = np.bincount(slots, minlength=self._classes)
        self.fresh = int(drafts[self._unknown])
        return np.asarray(drafts[own])


class AdaptiveVerification(BudgetByRequest):
    """vLLM's (`enable_adaptive_verification`, pull request 47808): of all drafts the likeliest are verified.

    As many are drafted for all; slots of requests and positions are taken by the probability that they are
    accepted, up to the number that most expected tokens a second follow from, by costs that were profiled at
    one context when the server started. vLLM estimates that probability in every step, from the drafter's
    logits or a confidence head; here it is the request's own, from what it accepted before.
    """

    whole = True
    name = "adaptive-verification"

    def _worth(self, gains: FloatArray) -> FloatArray:
        return gains

    def _value(self, gained: FloatArray, requests: int, seconds: FloatArray) -> FloatArray:
        return (requests + gained) / seconds

    @classmethod
    def profiled(cls, table: StepTable, spread: float) -> AdaptiveVerification:
        """With the table that vLLM makes."""
        return cls(table, spread, Costs(table, VLLM_CONTEXT))

    def righted(self) -> AdaptiveVerification:
        """The same policy with the costs that steps have."""
        return AdaptiveVerification(self.table, self.spread)
