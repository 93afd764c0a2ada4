"""Speedups of a row of a schedule under another acceptance or another step time than assumed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from medusa_sim.arrays import FloatArray
from medusa_sim.grid.cells import Cells
from medusa_sim.plan.row_cells import RowCells
from medusa_sim.step.drafter.medusa import Medusa
from medusa_sim.step.step import speculative_step

SENSITIVITY = 0.10
"""Acceptance is moved by this share up and down."""
_FACTORS, _ROUNDS = 24, 4
"""Factors that are tried at once between two, and how often: what is left between the last two is linear."""


@dataclass(frozen=True, eq=False)
class Sensitivity:
    """A row's speedup with other acceptance or a longer step, and the acceptance at which it breaks even."""

    row: RowCells

    def _speedup_if(self, cells: Cells, step_us: float, emission_chances: FloatArray) -> FloatArray:
        """(...) speedup of the cell here, if a step took so long and emitted 1, 2, ... tokens so often."""
        plain_us = np.broadcast_to(cells.plain.token_us, cells.shape)[self.row.b, self.row.s, 0]
        served = cells.served_if(self.row.b, self.row.s, 0, step_us, emission_chances)
        return np.asarray(plain_us / served.token_us)

    def _speedup_if_accepted(self, factor: float) -> float:
        if self.row.option is None:
            return 1.0
        step_us = float(self.row.cells.in_flight.step_us[self.row.b, self.row.s, 0])
        emission_chances = self.row.option.emission_chances_if(self.row.candidates, factor)
        return float(self._speedup_if(self.row.cells, step_us, emission_chances))

    @cached_property
    def speedup_acceptance_minus_10_percent(self) -> float:
        """The speedup with every accuracy a tenth lower."""
        return self._speedup_if_accepted(1.0 - SENSITIVITY)

    @cached_property
    def speedup_acceptance_plus_10_percent(self) -> float:
        """The speedup with every accuracy a tenth higher."""
        return self._speedup_if_accepted(1.0 + SENSITIVITY)

    @property
    def speedup_heads_on_accepted_row(self) -> float | None:
        """The speedup if the heads ran after acceptance, on one row a request; None where they do already."""
        on_accepted = self.row.surface.setting.runtime.head_rows == "accepted"
        if self.row.option is None or not isinstance(self.row.option.drafter, Medusa) or on_accepted:
            return None
        setting = replace(
            self.row.surface.setting,
            drafter=self.row.option.drafter,
            runtime=replace(self.row.surface.setting.runtime, head_rows="accepted"),
        )
        step_us = speculative_step(setting, self.row.batch_max, self.row.seq_len, self.row.candidates).time_us
        shorter = float(step_us / self.row.steps_us[self.row.configuration])
        own_us = float(self.row.cells.in_flight.step_us[self.row.b, self.row.s, 0])
        emission_chances = self.row.option.emission_chances_if(self.row.candidates, 1.0)
        return float(self._speedup_if(self.row.cells, own_us * shorter, emission_chances))

    @cached_property
    def required_acceptance_factor(self) -> float | None:
        """The factor on every accuracy at which the row, or of a plain row the best, breaks even.

        0 where a step pays without its drafts; None where no acceptance breaks even.
        """
        option = self.row.every.configurations.option_of(self.row.shown)
        if option is None:
            return None
        count = int(self.row.every.configurations.candidates[self.row.shown])
        step_us = float(self.row.shown_cells.in_flight.step_us[self.row.b, self.row.s, 0])

        def speedup_if(factors: FloatArray) -> FloatArray:
            return self._speedup_if(self.row.shown_cells, step_us, option.emission_chances_if(count, factors))

        return factor_to_break_even(speedup_if, option.most_factor(count))

    @property
    def required_tokens_per_step(self) -> float | None:
        """Tokens per step with `required_acceptance_factor`; None where no acceptance breaks even."""
        option = self.row.every.configurations.option_of(self.row.shown)
        factor = self.required_acceptance_factor
        if option is None or factor is None:
            return None
        return option.scaled_tokens(int(self.row.every.configurations.candidates[self.row.shown]), factor)


def factor_to_break_even(speedup_if: Callable[[FloatArray], FloatArray], most: float) -> float | None:
    """The least factor up to `most` from which a speedup is at least 1; None where none is.

    speedup_if: of ascending factors, with which it rises.
    """
    is_loss = bool(speedup_if(np.ones(1))[0] < 1.0)
    factors = np.geomspace(1.0, most, _FACTORS) if is_loss else np.linspace(0.0, 1.0, _FACTORS)
    for _ in range(_ROUNDS):
        speedups = speedup_if(factors)
        if speedups[-1] < 1.0:
            return None
        first = int(np.argmax(speedups >= 1.0))
        if first == 0:
            return float(factors[0])
        ends = slice(first - 1, first + 1)
        low, high = factors[ends]
        factors = np.linspace(low, high, _FACTORS)
    return float(np.interp(1.0, speedups[ends], [low, high]))
