"""Speedups of a row of a schedule under another acceptance or another step than assumed.

Each time the server is priced anew (`ServerSteps.server_if`), as if that had been asked about.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from medusa_sim.arrays import FloatArray
from medusa_sim.plan.range_cell import RangeCell
from medusa_sim.step.drafter.medusa import Medusa
from medusa_sim.step.step import speculative_step

SENSITIVITY = 0.10
"""Acceptance is moved by this share up and down."""
_FACTORS, _ROUNDS = 24, 3
"""Factors tried in each round, and rounds; between the last two the speedup is taken as linear."""


def speedup_if_less_accepted(row: RangeCell) -> float:
    """The speedup with every accuracy 10 % lower."""
    return _speedup_if_accepted(row, 1.0 - SENSITIVITY)


def speedup_if_more_accepted(row: RangeCell) -> float:
    """The speedup with every accuracy 10 % higher."""
    return _speedup_if_accepted(row, 1.0 + SENSITIVITY)


def _speedup_if_accepted(row: RangeCell, factor: float) -> float:
    if row.option is None:
        return 1.0
    return float(_speedup_if(row, 1.0, row.option.emission_chances_if(row.candidates, factor)))


def speedup_heads_on_accepted_row(row: RangeCell) -> float | None:
    """The speedup if the heads ran after acceptance, on one row a request; None where they do already."""
    setting, option = row.surface.setting, row.option
    if setting.runtime.head_rows == "accepted" or option is None or not isinstance(option.drafter, Medusa):
        return None
    on_accepted = replace(setting.runtime, head_rows="accepted")
    setting = replace(setting, drafter=option.drafter, runtime=on_accepted)
    step_us = speculative_step(setting, row.batch_max, row.seq_len, row.candidates).time_us
    shorter = float(step_us / row.steps_us[row.configuration])
    return float(_speedup_if(row, shorter, option.emission_chances_if(row.candidates, 1.0)))


def required_acceptance_factor(row: RangeCell) -> float | None:
    """The factor on every accuracy at which the row breaks even, or, if it is plain, the best it could draft.

    0 where a step pays without its drafts; None where no acceptance breaks even.
    """
    option, candidates = row.speculative.option, row.speculative.candidates
    if option is None:
        return None
    return factor_to_break_even(
        lambda factors: _speedup_if(row, 1.0, option.emission_chances_if(candidates, factors)),
        option.most_factor(candidates),
    )


def required_tokens_per_step(row: RangeCell, factor: float | None) -> float | None:
    """Tokens per step with every accuracy `factor` times what it is; None where that or drafts are None."""
    option = row.speculative.option
    if option is None or factor is None:
        return None
    return option.scaled_tokens(row.speculative.candidates, factor)


def _speedup_if(row: RangeCell, times_as_long: float, emission_chances: FloatArray) -> FloatArray:
    """(...) speedups of what the row drafts, or would, if a step took `times_as_long` as it does.

    emission_chances: (..., tokens) probabilities that a step emits at least 1, 2, ... tokens.
    """
    cell = row.speculative
    cells, indices = cell.cells, (cell.b, cell.s, cell.k)
    step_us = float(cells.server_steps.steps.time_us[indices]) * times_as_long
    plain_us = cells.first(cells.baseline.server.token_us)[cell.b, cell.s, 0]
    return np.asarray(plain_us / cells.server_steps.server_if(*indices, step_us, emission_chances).token_us)


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
