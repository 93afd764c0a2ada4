"""Speedups of a row of a schedule under another acceptance or another step time than assumed."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from medusa_sim.plan.row_cells import RowCells
from medusa_sim.step.drafter.medusa import Medusa
from medusa_sim.step.step import speculative_step

SENSITIVITY = 0.10
"""Acceptance is moved by this share up and down."""


@dataclass(frozen=True, eq=False)
class Sensitivity:
    """A row's speedup with other acceptance or a longer step, and the acceptance at which it breaks even."""

    row: RowCells

    def _speedup_if(self, times_as_long: float) -> float:
        """The speedup if the row's step took `times_as_long` times as long for each of its tokens."""
        place = (self.row.b, self.row.s, 0)
        own_us = float((self.row.cells.in_flight.step_us / self.row.cells.tokens_per_step)[place])
        longer_us = float(self.row.cells.token_us[place]) + own_us * (times_as_long - 1.0)
        return float(np.broadcast_to(self.row.cells.plain.token_us, self.row.cells.shape)[place]) / longer_us

    def _speedup_if_accepted(self, factor: float) -> float:
        tokens = float(self.row.tokens[self.row.configuration])
        scaled = (
            1.0 if self.row.option is None else self.row.option.scaled_tokens(self.row.candidates, factor)
        )
        return self._speedup_if(tokens / scaled)

    @property
    def speedup_acceptance_minus_10_percent(self) -> float:
        """The speedup with every accuracy a tenth lower."""
        return self._speedup_if_accepted(1.0 - SENSITIVITY)

    @property
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
        return self._speedup_if(float(step_us / self.row.steps_us[self.row.configuration]))

    @property
    def required_tokens_per_step(self) -> float | None:
        """Tokens per step at which the row, or of a plain row the best, breaks even; None where none does."""
        place, would = (self.row.b, self.row.s, 0), self.row.shown_cells
        own_us = float((would.in_flight.step_us / would.tokens_per_step)[place])
        plain_us = float(np.broadcast_to(would.plain.token_us, would.shape)[place])
        left_us = plain_us - float(would.token_us[place]) + own_us  # of a plain token, for the step
        return float(self.row.tokens[self.row.shown]) * own_us / left_us if left_us > 0.0 else None

    @property
    def required_acceptance_factor(self) -> float | None:
        """Factor on every accuracy that gives `required_tokens_per_step`; None where none does."""
        required = self.required_tokens_per_step
        option = self.row.every.configurations.option_of(self.row.shown)
        if required is None or option is None:
            return None
        return option.factor_for(int(self.row.every.configurations.candidates[self.row.shown]), required)
