"""Break-even: the batch and the context at which speculation stops paying, and in which direction.

Only what can be run is looked at: batches and contexts that fit in the GPU's memory, and contexts that the
model has positions for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from typing import Literal

import numpy as np

from medusa_sim.arrays import BoolArray, FloatArray, IntArray, Span
from medusa_sim.grid.cells import Cells
from medusa_sim.grid.surface import GrownPrompts, surface_at
from medusa_sim.plan.coarse_search import CoarseSearch, at_few_counts
from medusa_sim.plan.verdict import (
    KnownOdds,
    OddsAt,
    Stretch,
    drafting_spans,
    odds_of,
    stretches,
    with_exact_edges,
)
from medusa_sim.scenario.draft_options import DraftOption
from medusa_sim.scenario.scenario import Scenario

Direction = Literal["loses from", "pays from", "pays throughout", "loses throughout", "does not fit"]

SHORTEST_CONTEXT = 16
ENDLESS_CONTEXT = 1 << 40
"""The longest context where memory limits none: every layer keeps only a window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEven:
    """Where speculation pays, loses or is uncertain (`plan.verdict`), of the values that fit.

    known: what is certain and what is not, without gaps; empty where nothing fits. spans: in which drafts are
    made.
    """

    known: tuple[Stretch, ...] = ()
    spans: tuple[Span, ...] = ()

    @property
    def searched_from(self) -> int:
        """The first value that was searched."""
        return self.known[0].first if self.known else 1

    @property
    def searched_to(self) -> int:
        """The last value that fits, or the end of the search; 0 where nothing fits."""
        return self.known[-1].last if self.known else 0

    @property
    def edges(self) -> set[int]:
        """Values from which drafts are made, or no longer made."""
        return {edge for first, last in self.spans for edge in (first, last + 1)}

    @property
    def at(self) -> int | None:
        """The last edge inside what was searched; None where nothing changes."""
        inside = (edge for edge in self.edges if self.searched_from < edge <= self.searched_to)
        return max(inside, default=None)

    @property
    def direction(self) -> Direction:
        """What changes `at` there."""
        if not self.known:
            return "does not fit"
        if self.at is None:
            return "pays throughout" if self.spans else "loses throughout"
        return "pays from" if self.spans[-1].last == self.searched_to else "loses from"

    @property
    def loses_from(self) -> int | None:
        """Smallest value from which speculation no longer pays; None if it pays at the far end."""
        if self.direction == "loses throughout":
            return self.searched_from
        return self.at if self.direction == "loses from" else None

    def is_drafting(self, values: IntArray) -> BoolArray:
        """Whether drafts are made at each of some values."""
        inside = np.zeros(values.shape, dtype=np.bool_)
        for first, last in self.spans:
            inside |= (values >= first) & (values <= last)
        return inside


def find_break_even(known: KnownOdds, odds_at: OddsAt) -> BreakEven:
    """The stretches of whole numbers in which drafts pay, with exact ends.

    odds_at: gives the odds of numbers between those that are known.
    """
    exact = with_exact_edges(known, odds_at)
    found = stretches(exact)
    return BreakEven(known=found, spans=drafting_spans(exact, found))


def break_even_batches(
    coarse: Sequence[CoarseSearch], searched: Cells | None = None
) -> tuple[BreakEven, ...]:
    """For the length of each coarse search where speculation pays, among the batches that fit.

    searched: every count at some batches of these lengths. It decides there, and every count is priced
    between them too, so that no break-even contradicts a schedule made from it.
    """
    odds = None if searched is None else odds_of(searched)
    found = []
    for s, search in enumerate(coarse):
        if search.largest < 1:
            found.append(BreakEven())
            continue
        known = search.known
        if searched is not None and odds is not None:
            known = known.merged(KnownOdds(searched.surface.batch, odds[:, s]).within(1, search.largest))
        found.append(find_break_even(known, partial(_odds_between, search, searched)))
    return tuple(found)


def _odds_between(search: CoarseSearch, searched: Cells | None, batch: IntArray) -> IntArray:
    """Odds at further batches: of every count between those that were searched, of few counts elsewhere."""
    is_between = np.zeros(batch.size, dtype=np.bool_)
    if searched is not None:
        first, last = searched.surface.batch[[0, -1]]
        is_between = (batch >= first) & (batch <= last)
    odds = np.empty(batch.size, dtype=np.int64)
    length = search.cells.surface.seq_len[[search.s]]
    for chosen, cells in ((is_between, searched), (~is_between, search.cells)):
        if cells is not None and chosen.any():
            options = cells.configurations.options
            odds[chosen] = _priced_odds(cells.scenario, batch[chosen], length, options)[:, 0]
    return odds


def _priced_odds(
    scenario: Scenario,
    batch: IntArray,
    length: IntArray | FloatArray,
    options: Sequence[DraftOption],
    grown: GrownPrompts | None = None,
) -> IntArray:
    """(batches, lengths) odds, of rising batches and lengths."""
    surface = surface_at(scenario, batch, length, options, grown=grown)
    surface = surface.with_batch_edges.with_length_edges
    odds = odds_of(Cells.every(surface))
    return odds[np.ix_(np.isin(surface.batch, batch), np.isin(surface.asked_len, length))]


def longest_context(
    scenario: Scenario, options: Sequence[DraftOption], batch: int, grown: GrownPrompts | None = None
) -> int:
    """Mean committed tokens up to which a batch with some drafting fits in memory; 0 if it never does.

    ENDLESS_CONTEXT where every layer keeps no more than a window. grown: see `Surface`.
    """
    surface = surface_at(scenario, [batch], [1], options, grown=grown)

    def fits(length: int) -> bool:
        at_length = replace(surface, asked_len=np.array([length]))
        return bool((at_length.max_batch[0, 1:] >= batch).any())

    longest, too_long = 0, ENDLESS_CONTEXT
    if fits(too_long):
        return too_long
    while too_long - longest > 1:
        middle = (longest + too_long) // 2
        longest, too_long = (middle, too_long) if fits(middle) else (longest, middle)
    return longest


def longest_searched(scenario: Scenario, length: int) -> int:
    """The longest context that is searched: the model's positions, or the question's where that is longer."""
    return max(scenario.model.max_seq_len, length)


def break_even_context(
    scenario: Scenario,
    options: Sequence[DraftOption],
    batch: int,
    longest: int,
    searched: Cells | None = None,
    grown: GrownPrompts | None = None,
) -> BreakEven:
    """Stretches of contexts, up to `longest`, by whether speculation pays at one batch.

    A long context can bring speculation back at a large batch: reading the KV cache then takes most of
    a step, and a verification step reads it once for all candidates. searched: every count at some lengths,
    of which the last batch is this one; it decides there. grown: see `Surface`; the shortest request
    has one token of prompt.
    """
    few = at_few_counts(options)
    start = SHORTEST_CONTEXT
    if scenario.traffic is not None and grown is not None:
        start = max(start, ceil(grown.answer_tokens + 1.0))
    end = min(longest, longest_context(scenario, few, batch, grown))
    if end < start:
        return BreakEven()
    steps = 1 + max(1, round(float(np.log2(end / start) * 4)))
    lengths = np.unique(np.rint(np.geomspace(start, end, steps)).astype(np.int64))

    def odds_at(length: IntArray) -> IntArray:
        return np.asarray(_priced_odds(scenario, np.asarray([batch]), length, few, grown)[0])

    known = KnownOdds(lengths, odds_at(lengths))
    if searched is not None:
        searched_lengths, first = np.unique(searched.surface.seq_len, return_index=True)
        every_count = KnownOdds(searched_lengths.astype(np.int64), odds_of(searched)[-1, first])
        known = known.merged(every_count.within(start, end))
    return find_break_even(known, odds_at)
