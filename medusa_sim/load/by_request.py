"""Policies that see requests: fewer drafts for those that accept few, at the cost of the rows of a step."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from medusa_sim.arrays import FloatArray, IntArray
from medusa_sim.load.kinds import hardness_of
from medusa_sim.load.policies import CONTEXT_STEPS, VLLM_CONTEXT, Budget, Costs, State
from medusa_sim.load.step_table import StepTable

_MOST_PRICED = 1024
"""Numbers of requests and lengths whose steps are kept."""


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
        self.hardness = hardness_of(tuple(table.rates.tolist()), spread)
        self.fresh = 0
        self._unknown = int(self.hardness.of(np.zeros((2, 1), dtype=np.int64))[0])
        gains = self._worth(self.hardness.gains)
        kinds, most = gains.shape
        self.alike = kinds == 1 and type(self).choose_each is BudgetByRequest.choose_each
        self._known: dict[tuple[int, int], int] = {}
        self._priced = lru_cache(maxsize=_MOST_PRICED)(self._price)
        # the drafts that are worth most, until each number of them, where no request drafts more than so many
        self._made = np.array([most] if self.whole else range(most + 1))
        own, depth = np.unravel_index(np.argsort(-gains, axis=None, kind="stable"), gains.shape)
        taken = (depth < self._made[:, None])[..., None] & (own[:, None] == np.arange(kinds))
        sums = [np.cumsum(each, axis=1) for each in (taken, taken * gains[own, depth][:, None])]
        drafts, gained = (np.pad(each, ((0, 0), (1, 0), (0, 0))).reshape(-1, kinds) for each in sums)
        changes = np.concatenate([[True], np.any(np.diff(drafts, axis=0), axis=1)])
        changes[:: own.size + 1] = True
        drafts, gained = drafts[changes], gained[changes]
        self._drafts = drafts.astype(np.int64)
        # by class, once, by request: where a choice stands in `_price`, and what `_value` weighs of it
        place = np.repeat(np.arange(self._made.size), own.size + 1)[changes]
        each = np.full(place.size, float(self.whole))
        stands = np.column_stack([drafts, place, place * table.drafts_max])
        self._sums = np.concatenate([stands, np.column_stack([gained, 0.0 * each, each])])

    def _worth(self, gains: FloatArray) -> FloatArray:
        """(classes, K) of every draft, from the probability that so many are accepted."""
        emitted = 1.0 + np.cumsum(np.pad(gains, ((0, 0), (1, 0))), axis=1)
        return np.diff(np.log(emitted), axis=1)

    def _value(self, gained: FloatArray, requests: int) -> FloatArray:
        """What lies highest above the logarithm of the time, of every request, where the number is right."""
        del requests
        return gained

    def _price(self, requests: int, place: int) -> FloatArray:
        """Logarithm of the time of steps by longest draft and drafts in all, in a row, times the requests."""
        asked = np.arange(requests * self.table.drafts_max + 1)
        each_s = self.costs.at(requests, place)
        seconds = self.table.unequal_s(asked, self._made[:, None], requests, each_s)
        return np.asarray(requests * np.log(seconds.ravel()))

    def choose(self, state: State) -> int:
        """The longest draft of requests of which nothing is known yet."""
        nothing = np.zeros(state.requests, dtype=np.int64)
        return int(self.choose_each(state, nothing, nothing).max())

    def at(self, requests: int, length: float, drafts: int, accepted: float | None, steps: int) -> int:
        """Drafts of every request where they are alike: looked up from the second time on."""
        del drafts, accepted, steps
        key = requests, self.costs.place(length)
        if key not in self._known:
            self._known[key] = int(self.each(requests, length, np.zeros((2, requests), dtype=np.int64)).max())
        return self._known[key]

    def choose_each(self, state: State, accepted: IntArray, tried: IntArray) -> IntArray:
        """(requests,) drafts of each, by how many that were tried before were accepted."""
        return self.each(state.requests, state.mean_length, np.stack([accepted, tried]))

    def each(self, requests: int, length: float, past: IntArray) -> IntArray:
        """`choose_each` by what it looks at."""
        own = self.hardness.of(past)
        counts = np.bincount(own, minlength=self._sums.shape[1])
        counts[-2], counts[-1] = 1, requests
        sums = np.asarray(self._sums.dot(counts), dtype=np.float64)
        choices = len(self._drafts)
        cost = self._priced(requests, self.costs.place(length)).take(sums[:choices].astype(np.int64))
        drafts = self._drafts[int((self._value(sums[choices:], requests) - cost).argmax())]
        self.fresh = drafts.item(self._unknown)
        return np.asarray(drafts.take(own))


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

    def _value(self, gained: FloatArray, requests: int) -> FloatArray:
        return np.asarray(requests * np.log(gained))

    @classmethod
    def profiled(cls, table: StepTable, spread: float) -> AdaptiveVerification:
        """With the table that vLLM makes."""
        return cls(table, spread, Costs(table, VLLM_CONTEXT))

    def righted(self) -> AdaptiveVerification:
        """The same policy with the costs that steps have."""
        return AdaptiveVerification(self.table, self.spread)
