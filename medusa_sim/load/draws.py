"""Accepted drafts of a chain, drawn by position; whether a look-up finds any, drawn in runs.

    (L5)  P(found after found) = 1 - (1 - z) / r,  P(found after none) = z / r

z is the share of the steps in which drafts are found (`match_rate`), r how many times as long as of
independent steps runs are: a text that is being copied goes on being copied. A step verifies what was found.
"""

from __future__ import annotations

import numpy as np

from medusa_sim.arrays import BoolArray, FloatArray, IntArray
from medusa_sim.load.kinds import kinds_of, rates_by_kind
from medusa_sim.load.step_table import StepTable

_DRAWN = 1 << 16
"""Drawn at a time."""


class Draws:
    """Tokens that a step with a chain of K drafts emits: P(more than i) = rates[kind, i - 1].

    rates: (kinds, at least K); kinds: (requests,) which row is whose, where there are several.
    """

    def __init__(self, rates: FloatArray, drafts: int, seed: int, kinds: IntArray | None = None) -> None:
        self._falling = np.ascontiguousarray(rates[0, :drafts][::-1])
        self._rates = np.ascontiguousarray(rates[:, :drafts].T)
        self._kinds = kinds
        self._random = np.random.default_rng([seed, drafts])
        self._held: FloatArray | IntArray = np.empty(0)
        self._used = 0

    def take(self, steps: int, at: IntArray) -> IntArray:
        """(steps, requests) tokens that these requests emit, one more than drafts are accepted."""
        wanted = steps * at.size
        begin = self._used
        if begin + wanted > self._held.size:
            uniform = self._random.random(max(_DRAWN, wanted))
            self._held, begin = self._emitted(uniform) if self._kinds is None else uniform, 0
        self._used = begin + wanted
        taken = self._held[begin : self._used].reshape(steps, at.size)
        if self._kinds is None:
            return taken  # type: ignore[return-value]  # drawn by `_emitted`
        own = self._rates.take(self._kinds.take(at), axis=1)
        return np.asarray(np.add.reduce(taken < own[:, None, :], axis=0, dtype=np.int64) + 1)

    def _emitted(self, uniform: FloatArray) -> IntArray:
        """Of the one kind that there is."""
        below = np.searchsorted(self._falling, uniform, side="right")
        return np.asarray(self._falling.size + 1 - below, dtype=np.int64)

    def give_back(self, count: int) -> None:
        """The last `count` of what was taken were not needed."""
        self._used -= count


class Found:
    """Whether drafts are found for each request (L5). rate: (requests,) z of each; runs: r."""

    def __init__(self, rate: FloatArray, runs: float, seed: int) -> None:
        self._rate, self._stays = rate, 1.0 - 1.0 / runs
        self._random = np.random.default_rng([seed, 5])
        self._now = self._random.random(rate.size) < rate

    def take(self, steps: int, at: IntArray) -> BoolArray:
        """(steps, requests) of these requests; `left_at` says in which step they stay."""
        drawn = self._random.random((steps + 1, at.size))
        drawn[0] = 1.0
        anew = drawn >= self._stays
        found = drawn < self._stays + (1.0 - self._stays) * self._rate[at]
        found[0] = self._now[at]
        last = np.maximum.accumulate(np.where(anew, np.arange(steps + 1)[:, None], 0), axis=0)
        return np.asarray(np.take_along_axis(found, last, axis=0)[1:])

    def left_at(self, at: IntArray, found: BoolArray) -> None:
        """These requests go on from here."""
        self._now[at] = found


def drawn(table: StepTable, count: int, seed: int, spread: float) -> tuple[dict[int, Draws], Found | None]:
    """(draws by number of drafts, who finds drafts) of so many requests; None where drafts always are.

    spread: of the requests (L4). One whose first draft is accepted more often than others' are found finds
    more.
    """
    rates = rates_by_kind(table.rates, spread)
    kinds = None if len(rates) == 1 else kinds_of(count, seed)
    found: Found | None = None
    if table.drafts_max and table.match_rate < 1.0:
        rate = np.maximum(rates[:, :1], table.match_rate)
        rates = rates / rate
        each = np.zeros(count, dtype=np.int64) if kinds is None else kinds
        found = Found(rate[each, 0], table.match_runs, seed)
    return {drafts: Draws(rates, drafts, seed, kinds) for drafts in range(1, table.drafts_max + 1)}, found
