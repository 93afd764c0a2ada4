"""Every set-up priced at steady batches -> one table, its frontier, the set-up for the target and its reason.

A row is a set-up, a drafter and a batch of one copy of the model, with the draft length that is best there.
Its rates are those of `grid.sweep` for the same scenario, batch and count (`grid.surface`); what a rate or a
number of users adds is how many copies carry it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from math import erf, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from medusa_sim.acceptance.heads import NORMAL_90TH
from medusa_sim.arrays import BoolArray, FloatArray
from medusa_sim.doubts.of_scenario import first_token_doubts, scenario_doubts
from medusa_sim.errors import UsageError, unknown_name
from medusa_sim.grid.quantity import BY_NAME, with_unlisted
from medusa_sim.models.model import Model
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.setups.pricing import Refused
from medusa_sim.setups.quantities import COMPARE
from medusa_sim.setups.question import COLUMN, SURER, Measure, SetupQuestion
from medusa_sim.setups.setup import NO_DRAFTER, SET_UP
from medusa_sim.units import US_PER_S

if TYPE_CHECKING:
    import pandas as pd

_SPEED = "tokens_per_s_per_user"
TIMES = ("ttft_ms", "e2e_ms")
"""Columns that limits are held against as they are."""
LIMITS = ("tpot_ms", *TIMES, _SPEED, "sure")
"""Limits that `Comparison.for_target` may change."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Comparison:
    """The answer.

    table: every row, columns `setups.quantities.COMPARE`, OF_LOAD_TESTS among them where they were asked for.
    scenarios: what a row was priced with, by SET_UP.
    """

    model: Model
    question: SetupQuestion
    measure: Measure
    table: pd.DataFrame
    refused: tuple[Refused, ...]
    scenarios: dict[tuple[Any, ...], Scenario] = field(repr=False)

    def for_target(self, measure: Measure | None = None, **limits: float | None) -> Comparison:
        """The same set-ups under other limits (of `SetupQuestion`) or by another measure; nothing is priced.

        Raises UsageError for a limit that makes no sense, or a name that is none.
        """
        if unknown := [name for name in limits if name not in LIMITS]:
            raise UsageError(unknown_name("limit", unknown[0], LIMITS))
        asked = replace(self.question, **limits, **({} if measure is None else {"measure": measure}))  # type: ignore[arg-type]  # limits alone
        table = self.table.copy()
        compared = replace(self, question=asked, measure=measure or self.measure)
        measured = table[compared.column].to_numpy()
        worth = -measured if compared.less_is_better else measured
        speed, low, high = (table[f"{_SPEED}{end}"].to_numpy() for end in ("", "_low", "_high"))
        table["sure"] = sureness(asked, speed, low, high)
        table["meets_limits"] = table.sure >= asked.sure
        for name in TIMES:
            if (limit := getattr(asked, name)) is not None:
                table["meets_limits"] &= table[name] <= limit
        table["on_frontier"] = on_frontier(speed, worth)
        table["chosen"] = False
        places = np.flatnonzero(table.meets_limits.to_numpy() & np.isfinite(worth))
        if places.size:
            table.loc[int(places[np.lexsort((-speed[places], -worth[places]))[0]]), "chosen"] = True
        columns = [name for name in with_unlisted(COMPARE) if name in table]
        return replace(compared, table=table[columns])

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about all set-ups, each line once."""
        return tuple(dict.fromkeys(line for lines in self.warnings_by_set_up.values() for line in lines))

    @cached_property
    def warnings_by_set_up(self) -> dict[tuple[Any, ...], list[str]]:
        """The warnings of every set-up, by its `key`."""
        return {key: self.warnings_of(key) for key in self.scenarios}

    def warnings_of(self, key: tuple[Any, ...]) -> list[str]:
        """The warnings of the set-up of a `key`; of times to the first token where these are asked for.

        None is about drafts beyond those of its rows. A scenario that does not speculate names some drafter:
        what its drafts are accepted by is no matter.
        """
        scenario, plain = self.scenarios[key], key[SET_UP.index("drafter")] == NO_DRAFTER
        drafts = self.table.drafts[(self.table[list(SET_UP)] == list(key)).all(axis=1)]
        largest = 1 if plain else None if drafts.empty else 1 + int(drafts.max())
        limited = self.question.ttft_ms is not None or self.question.e2e_ms is not None
        return [
            *scenario_doubts(scenario, largest),
            *(first_token_doubts(scenario) if limited else ()),
        ]

    def most_requests(self, row: Any) -> int:
        """Requests that one copy of a row's set-up is told to hold at once.

        A number of users fills its batch. Requests that come at random at a rate are more than their mean
        now and then: the largest batch of the set-up that keeps the limits, so that none waits while there
        is room.
        """
        batch = int(row["batch"])
        if self.question.rate is None:
            return batch
        same = (self.table[list(SET_UP)] == list(self.key(row))).all(axis=1)
        return int(max(batch, *self.table.batch[same & self.table.meets_limits]))

    def busy(self, row: Any) -> float | None:
        """Share of what a row's copies carry, at most_requests each, that a rate needs; None without one."""
        if self.question.rate is None:
            return None
        same = (self.table[list(SET_UP)] == list(self.key(row))).all(axis=1)
        held = self.table[same & (self.table.batch <= self.most_requests(row))]
        carried = float((held.tokens_per_s_per_gpu * held.tp).max()) * int(row["replicas"])
        return self.question.rate * self.question.output_tokens / carried

    @staticmethod
    def key(row: Any) -> tuple[Any, ...]:
        """Values of SET_UP, which name the set-up of a row (a mapping or a row of the table)."""
        return tuple(row[name] for name in SET_UP)

    @property
    def column(self) -> str:
        """Column that is minimised, or maximised."""
        return COLUMN[self.measure]

    @property
    def less_is_better(self) -> bool:
        """Whether the column is minimised."""
        return BY_NAME[self.column].better == "less"

    @cached_property
    def frontier(self) -> pd.DataFrame:
        """Rows that nothing beats, the fastest stream first."""
        rows = self.table[self.table.on_frontier]
        return rows.sort_values("tokens_per_s_per_user", ascending=False, ignore_index=True)

    @cached_property
    def best(self) -> pd.DataFrame:
        """The best row of each set-up within the limits, the best set-up first."""
        allowed = self.table[self.table.meets_limits & self.table[self.column].notna()]
        order = allowed.sort_values(
            [self.column, "tokens_per_s_per_user"], ascending=[self.less_is_better, False]
        )
        return order.drop_duplicates(list(SET_UP), ignore_index=True)

    @cached_property
    def chosen(self) -> dict[str, Any] | None:
        """The best row within the limits; None where no set-up keeps them."""
        return _record(self.best)

    @cached_property
    def chosen_plain(self) -> dict[str, Any] | None:
        """The best row within the limits that does not speculate; None where none keeps them."""
        return _record(self.best[self.best.drafter == NO_DRAFTER])

    @cached_property
    def surer(self) -> Comparison:
        """The same set-ups where the speed that is asked for is to be kept with SURER."""
        return self.for_target(sure=max(SURER, self.question.sure))

    @cached_property
    def runners_up(self) -> pd.DataFrame:
        """Other set-ups whose interval reaches the chosen one's value, the best first."""
        best = self.best
        if self.chosen is None:
            return best
        low, high = f"{self.column}_low", f"{self.column}_high"
        near = best[low] <= self.chosen[high] if self.less_is_better else best[high] >= self.chosen[low]
        rows: pd.DataFrame = best[near].iloc[1:].reset_index(drop=True)
        return rows

    def scenario(self, row: Any) -> Scenario:
        """The scenario that priced a row (a mapping or a row of the table)."""
        return self.scenarios[self.key(row)]


def sureness(asked: SetupQuestion, speed: FloatArray, low: FloatArray, high: FloatArray) -> FloatArray:
    """(n,) probability that a stream is as fast as asked; 1 where nothing is.

    speed: tokens/s a user; low, high: the ends of its 80 % interval. Errors are taken as normal in the
    logarithm of the speed, on either side of it as wide as the interval is there.
    """
    ahead = np.log(speed * (asked.slowest_tpot_us / US_PER_S))
    half = np.maximum(np.where(ahead > 0.0, np.log(speed / low), np.log(high / speed)), 1e-9)
    return np.array(
        [0.5 + 0.5 * erf(distance) for distance in (ahead / half * (NORMAL_90TH / sqrt(2.0))).tolist()]
    )


def on_frontier(speed: FloatArray, worth: FloatArray) -> BoolArray:
    """(n,) whether no other row has at least this speed and this worth, and more of one of them.

    speed, worth: larger is better; nan is never on the frontier. Of equal rows the first is.
    """
    order = np.lexsort((-worth, -speed))
    order = order[np.isfinite(speed[order]) & np.isfinite(worth[order])]
    best_before = np.maximum.accumulate(np.concatenate([[-np.inf], worth[order]]))[:-1]
    is_best = np.zeros(speed.size, dtype=np.bool_)
    is_best[order] = worth[order] > best_before
    return is_best


def _record(rows: pd.DataFrame) -> dict[str, Any] | None:
    return None if rows.empty else dict(rows.iloc[0])
