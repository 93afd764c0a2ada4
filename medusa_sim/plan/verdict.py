"""Whether speculation pays, batch by batch, as far as that is known: it pays, it loses, or it is uncertain.

A batch pays where the 80 % interval of the best speedup lies above 1, loses where it lies at or below, and is
uncertain between. What a range says follows from its ends:

- an uncertain stretch between two that pay pays as well unless it is wider than both (by the ratio of its
  ends), one between two that lose loses;
- elsewhere it stays uncertain. Drafts are made in it from a side that pays up to the last batch before the
  predicted gain ends; where nothing pays, in the widest run of predicted gains (by the ratio of its ends).

A gain smaller than its uncertainty starts no range; a loss smaller than its uncertainty ends none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, NamedTuple, TypeVar

import numpy as np

from medusa_sim.arrays import FloatArray, IntArray, Span, joined
from medusa_sim.grid.cells import Cells

T = TypeVar("T")
Verdict = Literal["pays", "uncertain", "loses"]

LOSES, NO_GAIN, GAIN, PAYS = range(4)
"""Odds of a batch: certain of a loss, uncertain without and with a predicted gain, certain of a gain."""
_VERDICT: dict[int, Verdict] = {LOSES: "loses", NO_GAIN: "uncertain", GAIN: "uncertain", PAYS: "pays"}
_POINTS = 12
"""Values that are tried at once between two that differ."""

OddsAt = Callable[[IntArray], IntArray]
"""Odds of ascending whole numbers."""


def verdict_of(low: FloatArray, high: FloatArray) -> Verdict:
    """What is certain of gains with these 80 % intervals: that all pay, that none does, or neither."""
    if bool((low > 1.0).all()):
        return "pays"
    return "loses" if bool((high <= 1.0).all()) else "uncertain"


def odds_of(cells: Cells) -> IntArray:
    """(batches, lengths) odds of the best count that drafts and fits, by `Cells.speedup`."""
    by_count = cells.by_count
    if by_count.shape[-1] == 1 or not by_count.shape[0]:
        return np.full(by_count.shape[:2], LOSES)
    speedup = np.where(by_count.fits, by_count.speedup, 0.0)[..., 1:]
    best = np.argmax(speedup, axis=-1)[..., None]
    low, high = (
        np.take_along_axis(by_count.spread(end)[..., 1:], best, axis=-1)[..., 0]
        for end in by_count.speedup_band
    )
    of_best = np.take_along_axis(speedup, best, axis=-1)[..., 0]
    uncertain = np.where(of_best > 1.0, GAIN, NO_GAIN)
    odds = np.where(low > 1.0, PAYS, np.where(high <= 1.0, LOSES, uncertain))
    return np.where(of_best > 0.0, odds, LOSES)


class KnownOdds(NamedTuple):
    """Ascending whole numbers and the odds of each."""

    values: IntArray
    odds: IntArray

    def within(self, first: int, last: int) -> KnownOdds:
        """The part from `first` to `last`."""
        inside = (self.values >= first) & (self.values <= last)
        return KnownOdds(self.values[inside], self.odds[inside])

    def merged(self, other: KnownOdds) -> KnownOdds:
        """Values of both; where both have one, the odds are the other's."""
        values = np.union1d(self.values, other.values)
        odds = np.zeros(values.size, dtype=np.int64)
        for part in (self, other):
            odds[np.searchsorted(values, part.values)] = part.odds
        return KnownOdds(values, odds)


def with_exact_edges(known: KnownOdds, odds_at: OddsAt) -> KnownOdds:
    """Add values, with their odds from `odds_at`, until every change of odds is exact."""
    while True:
        values, odds = known
        changes = np.flatnonzero((odds[1:] != odds[:-1]) & (values[1:] - values[:-1] > 1))
        if not changes.size:
            return known
        between = np.unique(
            [np.linspace(values[i], values[i + 1], _POINTS + 2).astype(np.int64)[1:-1] for i in changes]
        )
        between = between[~np.isin(between, values)]
        known = known.merged(KnownOdds(between, odds_at(between)))


@dataclass(frozen=True, slots=True)
class Stretch:
    """Neighbouring whole numbers, `first` to `last`, with one verdict."""

    first: int
    last: int
    verdict: Verdict

    @property
    def span(self) -> Span:
        """These numbers."""
        return Span(self.first, self.last)


def stretches(known: KnownOdds) -> tuple[Stretch, ...]:
    """Stretches of values whose changes are found to the whole number."""
    verdicts = (_VERDICT[odds] for odds in known.odds.tolist())
    merged = [Stretch(*span, verdict) for verdict, span in runs_of_equals(known.values, verdicts)]
    at = 1
    while at < len(merged) - 1:
        before, here, after = merged[at - 1 : at + 2]
        is_between_equals = here.verdict == "uncertain" and before.verdict == after.verdict
        is_wider = here.span.width > max(before.span.width, after.span.width)
        if is_between_equals and not (before.verdict == "pays" and is_wider):
            merged[at - 1 : at + 2] = [Stretch(before.first, after.last, before.verdict)]
        else:
            at += 1
    return tuple(merged)


def drafting_spans(known: KnownOdds, found: Sequence[Stretch]) -> tuple[Span, ...]:
    """Every span in which drafts are made, one where stretches adjoin. found: the stretches."""
    paying = [stretch.span for stretch in found if stretch.verdict == "pays"]
    runs = runs_of_equals(known.values, known.odds.tolist())
    gaining = [run for odds, run in runs if odds == GAIN]
    if not paying:
        unsure = [stretch.span for stretch in found if stretch.verdict == "uncertain"]
        inside = [run for run in gaining if any(run.part_in(span) for span in unsure)]
        return (max(inside, key=lambda run: run.width),) if inside else ()
    before, after = {span.last + 1 for span in paying}, {span.first - 1 for span in paying}
    return joined([*paying, *(run for run in gaining if run.first in before or run.last in after)])


def runs_of_equals(values: IntArray, marks: Iterable[T]) -> Iterator[tuple[T, Span]]:
    """(mark, span) of neighbouring values with one mark."""
    for mark, group in groupby(zip(values.tolist(), marks, strict=True), key=lambda pair: pair[1]):
        members = [value for value, _ in group]
        yield mark, Span(members[0], members[-1])
