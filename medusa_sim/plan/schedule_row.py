"""A row of a schedule: what a range of batches runs, beside other counts and with other acceptance."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from medusa_sim.plan import alternatives, sensitivity
from medusa_sim.plan.range_cell import RangeCell


@dataclass(frozen=True, kw_only=True, eq=False)
class ScheduleRow(RangeCell):
    """A range of batches with all that is known about it; each quantity is computed when it is first read."""

    best_candidates = cached_property(alternatives.best_candidates)
    best_speedup = cached_property(alternatives.best_speedup)
    near_best = cached_property(alternatives.near_best)
    best_ends_profile = cached_property(alternatives.best_ends_profile)
    chain_candidates = cached_property(alternatives.chain_candidates)
    chain_speedup = cached_property(alternatives.chain_speedup)
    free_candidates = cached_property(alternatives.free_candidates)
    next_count = cached_property(alternatives.next_count)
    held_by = cached_property(alternatives.held_by)
    cliff_after = cached_property(alternatives.cliff_after)
    quicker_larger = cached_property(alternatives.quicker_larger)
    speedup_acceptance_minus_10_percent = cached_property(sensitivity.speedup_if_less_accepted)
    speedup_acceptance_plus_10_percent = cached_property(sensitivity.speedup_if_more_accepted)
    speedup_heads_on_accepted_row = cached_property(sensitivity.speedup_heads_on_accepted_row)
    required_acceptance_factor = cached_property(sensitivity.required_acceptance_factor)

    @cached_property
    def required_tokens_per_step(self) -> float | None:
        """Tokens per step with `required_acceptance_factor`; None where no acceptance breaks even."""
        return sensitivity.required_tokens_per_step(self, self.required_acceptance_factor)
