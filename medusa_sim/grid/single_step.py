"""One step of a scenario: the cell of one batch, length and count, with its kernels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from medusa_sim.grid.cell import Cell
from medusa_sim.grid.cells import price
from medusa_sim.grid.configurations import at_counts
from medusa_sim.scenario.draft_options import DraftOption
from medusa_sim.scenario.scenario import Scenario
from medusa_sim.step.breakdown import breakdown
from medusa_sim.step.setting import Setting

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, kw_only=True, eq=False)
class SingleStep(Cell):
    """A step at one batch and length; its attributes are the quantities of cells too (`grid.quantity`).

    tokens_per_step and its speedups are None where the acceptance does not describe the count.
    """

    @property
    def scenario(self) -> Scenario:
        """The scenario that was priced."""
        return self.cells.scenario

    @property
    def setting(self) -> Setting:
        """The setting that all steps share, with this step's drafter."""
        setting = self.cells.surface.setting
        return setting if self.option is None else replace(setting, drafter=self.option.drafter)

    @property
    def drafts(self) -> int:
        """Draft length that its tree uses (Medusa: heads to run); 0 of plain decoding."""
        return 0 if self.option is None else self.option.drafts(self.candidates)

    @property
    def time_us(self) -> float:
        """The whole step, microseconds."""
        return float(self.verify_step_us)

    @property
    def band_us(self) -> tuple[float, float]:
        """80 % interval of the step, microseconds."""
        return self.verify_low_us, self.verify_high_us

    def breakdown(self) -> pd.DataFrame:
        """Its kernels, gaps and waiting: see `medusa_sim.step.breakdown.breakdown`."""
        return breakdown(self.setting, self.batch, self.seq_len, self.candidates)

    def __str__(self) -> str:
        """One line: time, band and gain."""
        low, high = self.band_us
        gain = "" if self.step_speedup is None else f", {self.step_speedup:.2f}x"
        return (
            f"{self.candidates} candidates at batch {self.batch}, length {self.seq_len}: "
            f"{self.time_us:.0f} us (80 %: {low:.0f}-{high:.0f}), overhead {self.overhead:.2f}{gain}"
        )


def single_step(scenario: Scenario, batch: int, seq_len: int, candidates: int) -> SingleStep:
    """The step of a count (1: plain decoding), with the drafting that is best for it there.

    A count that the acceptance does not describe is timed with as many drafts as it has.
    """
    options: tuple[DraftOption, ...] = ()
    if candidates > 1:
        described = at_counts(scenario.options(candidates), np.asarray([candidates]))
        options = described or (_undescribed(scenario, candidates),)
    steps = price(scenario, [batch], [seq_len], options).by_count
    return SingleStep(cells=steps, b=0, s=0, k=1 if options else 0)


def _undescribed(scenario: Scenario, candidates: int) -> DraftOption:
    """A tree of unknown shape, spread over all depths; its tokens per step are unknown."""
    depth = min(candidates - 1, scenario.depth)
    width = -(-(candidates - 1) // depth)
    return DraftOption(
        drafter=scenario.drafting.drafter(depth, width),
        depth=depth,
        width=width,
        chain=False,
        candidates=np.asarray([candidates]),
        tokens_per_step=np.asarray([np.nan]),
        profile=scenario.profile,
    )
