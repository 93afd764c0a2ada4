"""Speedups of a row of a schedule under another acceptance or another step time than assumed."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from medusa_sim.plan.row_cells import RowCells
from medusa_sim.step.drafter.medusa import Medusa
from medusa_sim.step.step import speculative_step

SENSITIVITY = 0.10
"""Acceptance is moved by this share up and down."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Sensitivity(RowCells):
    """A row's speedup with other acceptance or a longer step, and the acceptance at which it breaks even."""

    def _speedup_if(self, times_as_long: float) -> float:
        """The speedup if the row's step took `times_as_long` times as long for each of its tokens."""
        place = (self.b, self.s, 0)
        own_us = float((self.cells.in_flight.step_us / self.cells.tokens_per_step)[place])
        longer_us = float(self.cells.token_us[place]) + own_us * (times_as_long - 1.0)
        return float(np.broadcast_to(self.cells.plain.token_us, self.cells.shape)[place]) / longer_us

    def _speedup_if_accepted(self, factor: float) -> float:
        tokens = float(self._tokens[self._configuration])
        scaled = 1.0 if self._option is None else self._option.scaled_tokens(self.candidates, factor)
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
        on_accepted = self._surface.setting.runtime.head_rows == "accepted"
        if self._option is None or not isinstance(self._option.drafter, Medusa) or on_accepted:
            return None
        setting = replace(
            self._surface.setting,
            drafter=self._option.drafter,
            runtime=replace(self._surface.setting.runtime, head_rows="accepted"),
        )
        step_us = speculative_step(setting, self.batch_max, self.seq_len, self.candidates).time_us
        return self._speedup_if(float(step_us / self._steps_us[self._configuration]))

    @property
    def required_tokens_per_step(self) -> float | None:
        """Tokens per step at which the row, or of a plain row the best, breaks even; None where none does."""
        place, would = (self.b, self.s, 0), self._shown_cells
        own_us = float((would.in_flight.step_us / would.tokens_per_step)[place])
        plain_us = float(np.broadcast_to(would.plain.token_us, would.shape)[place])
        left_us = plain_us - float(would.token_us[place]) + own_us  # of a plain token, for the step
        return float(self._tokens[self._shown]) * own_us / left_us if left_us > 0.0 else None

    @property
    def required_acceptance_factor(self) -> float | None:
        """Factor on every accuracy that gives `required_tokens_per_step`; None where none does."""
        required = self.required_tokens_per_step
        option = self.every.configurations.option_of(self._shown)
        if required is None or option is None:
            return None
        return option.factor_for(int(self.every.configurations.candidates[self._shown]), required)
