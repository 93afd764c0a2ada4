"""A coarse search of batches: a few counts at every batch to 64 and every 2 % beyond."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from medusa_sim.arrays import IntArray, every_to
from medusa_sim.grid.cells import Cells
from medusa_sim.grid.configurations import PLAIN, at_counts
from medusa_sim.grid.surface import in_groups, surface_at
from medusa_sim.plan.verdict import KnownOdds, odds_of
from medusa_sim.scenario.draft_options import DraftOption
from medusa_sim.scenario.scenario import Scenario

BATCHES_SEARCHED = 1024
EVERY_COARSE_TO = 64
_COARSE_RATIO = 1.0201
"""Beyond the first batches every 2 % is tried, about 140 of them up to BATCHES_SEARCHED, then every one
around a change."""
_FEW_COUNTS = np.asarray([*range(2, 11), 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 128, 192, 256])
"""Near break-even the best counts are small."""
_NO_BATCHES: IntArray = np.empty(0, dtype=np.int64)


def at_few_counts(options: Sequence[DraftOption]) -> tuple[DraftOption, ...]:
    """The options with the few counts of a coarse search alone."""
    return at_counts(options, _FEW_COUNTS)


@dataclass(frozen=True, kw_only=True, eq=False)
class CoarseSearch:
    """A coarse search of one length: a few counts, at batches that the full search leaves out.

    batches: those at which break-even is looked for. cells: the few counts there, at batches that were asked
    for besides (`coarse_searches`) and at those that bands need (`Surface.with_batch_edges`); the length has
    index s in them. largest: the largest batch that fits with any drafting, at most BATCHES_SEARCHED or what
    was asked.
    """

    batches: IntArray
    cells: Cells
    s: int
    largest: int

    @property
    def known(self) -> KnownOdds:
        """Odds at `batches`."""
        there = np.isin(self.cells.surface.batch, self.batches)
        return KnownOdds(self.batches, np.asarray(odds_of(self.cells)[there, self.s]))


def coarse_searches(
    scenario: Scenario,
    few: Sequence[DraftOption],
    seq_len: IntArray,
    searched: IntArray = _NO_BATCHES,
    more: Sequence[IntArray] = (),
) -> tuple[CoarseSearch, ...]:
    """A coarse search of each length.

    few: ways of drafting with the counts that are looked at. searched: batches at which every count is priced
    anyway. more: further batches of each length.
    """
    end = max(BATCHES_SEARCHED, int(searched.max(initial=0)))
    fitting = surface_at(scenario, [1], seq_len, few).max_batch[:, PLAIN + 1 :].max(axis=-1, initial=0)
    largest = np.minimum(fitting, end)
    tried = np.union1d(every_to(EVERY_COARSE_TO, 1, end, _COARSE_RATIO), largest[largest > 0])
    left_out = tried[~np.isin(tried, searched)]
    found: list[CoarseSearch] = []
    for group in in_groups(seq_len.size):
        batches = np.unique(np.concatenate([left_out[left_out <= largest[group].max()], *more[group]]))
        batches = batches[~np.isin(batches, searched)]
        cells = Cells.every(surface_at(scenario, batches, seq_len[group], few).with_batch_edges)
        found += [
            CoarseSearch(batches=left_out[left_out <= largest[s]], cells=cells, s=at, largest=int(largest[s]))
            for at, s in enumerate(range(seq_len.size)[group])
        ]
    return tuple(found)
