"""The cells of one set-up with one drafter, and its rows: columns are quantities, read from the cells."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from medusa_sim.arrays import BoolArray, FloatArray
from medusa_sim.grid.cells import Cells
from medusa_sim.grid.costs import usd_per_million_tokens
from medusa_sim.grid.quantities import scenario_values, values
from medusa_sim.grid.quantity import BY_NAME, with_unlisted
from medusa_sim.grid.surface import Surface
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.setups.quantities import COMPARE, OF_LOAD_TESTS
from medusa_sim.setups.question import SetupQuestion
from medusa_sim.setups.setup import NO_DRAFTER, SET_UP
from medusa_sim.units import US_PER_MS

OF_CELLS = tuple(
    name for name in COMPARE if name not in SET_UP and name in BY_NAME and BY_NAME[name].read is not None
)
"""Columns of one copy, whatever the number of copies."""


@dataclass(frozen=True)
class SetUpCells:
    """A set-up with one drafter, priced at every batch.

    cells: every count at one length, the best draft of each. plain: whether its rows are those of plain
    decoding, which the cells of any drafter hold, or those that draft.
    """

    cells: Cells
    plain: bool

    @classmethod
    def every(cls, surface: Surface, *, plain: bool) -> SetUpCells:
        """All draft lengths of a surface, or plain decoding there."""
        return cls(Cells.every(surface).by_count, plain)

    @property
    def scenario(self) -> Scenario:
        """Scenario that was priced."""
        return self.cells.scenario

    @property
    def set_up(self) -> dict[str, Any]:
        """SET_UP by name."""
        return scenario_values(self.scenario, *SET_UP) | ({"drafter": NO_DRAFTER} if self.plain else {})

    @cached_property
    def fits(self) -> BoolArray:
        """Whether a cell is meant, and fits in memory."""
        is_meant = (self.cells.drafts == 0) == self.plain
        return self.cells.spread(self.cells.fits & is_meant)

    def rows(self, asked: SetupQuestion, *, load_tests: bool = False) -> dict[str, Any]:
        """Columns of its rows: each batch that fits, with the draft length that emits most tokens.

        load_tests: with OF_LOAD_TESTS. Columns about all rows together (`sure`, `chosen`, ...) are added by
        `Comparison.for_target`.
        """
        cells, scenario = self.cells, self.scenario
        kept = np.flatnonzero(self.fits.any(axis=(1, 2)))
        places = np.where(self.fits, cells.tokens_per_s, -np.inf).argmax(axis=-1)[kept, 0]

        def at(value: FloatArray) -> FloatArray:
            return np.asarray(cells.spread(value)[kept, 0, places])

        names = (name for name in with_unlisted(OF_CELLS) if load_tests or name not in OF_LOAD_TESTS)
        rows = {name: at(value) for name, value in values(cells, names).items()}
        batch, rate, gpus = rows["batch"], at(cells.tokens_per_s), scenario.gpus
        further = asked.output_tokens - 1.0
        copies, carried = np.ones(batch.shape, dtype=np.int64), rate
        if asked.users is not None:
            copies = np.ceil(asked.users / batch).astype(np.int64)
        elif asked.rate is not None:
            copies = np.ceil(asked.rate * asked.output_tokens / rate).astype(np.int64)
            carried = np.full(rate.shape, asked.rate * asked.output_tokens) / copies
        usd = usd_per_million_tokens(scenario.usd_per_gpu_hour, gpus, carried)
        time_low, time_high = map(at, cells.bands.token_us.ratios())
        return {
            **{name: np.full(batch.shape, value) for name, value in self.set_up.items()},
            **rows,
            "gpus": copies * gpus,
            "replicas": copies,
            "usd_per_million_tokens": usd,
            "usd_per_million_tokens_low": usd * time_low,
            "usd_per_million_tokens_high": usd * time_high,
            # the prompt is in the time to the first token, and in no other
            "e2e_ms": rows["ttft_ms"] + further * at(cells.server.tpot_us) / US_PER_MS,
        }
