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

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, NamedTuple, TypeVar

import numpy as np

from medusa_sim.arrays import FloatArray, IntArray
from medusa_sim.grid.cells import Cells

T = TypeVar("T")
Verdict = Literal["pays", "uncertain", "loses"]

LOSES, NO_GAIN, GAIN, PAYS = range(4)
"""Codes of a batch: certain of a loss, uncertain without and with a predicted gain, certain of a gain."""
_VERDICT: dict[int, Verdict] = {LOSES: "loses", NO_GAIN: "uncertain", GAIN: "uncertain", PAYS: "pays"}
_POINTS = 12
"""Values that are tried at once between two that differ."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Neighbouring whole numbers, `first` to `last`, with one verdict."""

    first: int
    last: int
    verdict: Verdict

    @property
    def width(self) -> float:
        """Ratio of its ends: as many times more requests as it spans."""
        return (self.last + 1) / self.first


def verdict_of(low: FloatArray, high: FloatArray) -> Verdict:
    """What is certain of gains with these 80 % intervals: that all pay, that none does, or neither."""
    if bool((low > 1.0).all()):
        return "pays"
    return "loses" if bool((high <= 1.0).all()) else "uncertain"


CodesAt = Callable[[IntArray], IntArray]
"""Verdict codes of ascending whole numbers."""


def verdict_codes(cells: Cells) -> IntArray:
    """(batches, lengths) codes of the best count that drafts and fits, by `Cells.speedup`."""
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
    codes = np.where(low > 1.0, PAYS, np.where(high <= 1.0, LOSES, uncertain))
    return np.where(of_best > 0.0, codes, LOSES)


class Coded(NamedTuple):
    """Ascending whole numbers and the code of each."""

    values: IntArray
    codes: IntArray

    def within(self, first: int, last: int) -> Coded:
        """The part from `first` to `last`."""
        inside = (self.values >= first) & (self.values <= last)
        return Coded(self.values[inside], self.codes[inside])

    def merged(self, other: Coded) -> Coded:
        """Values of both; where both have one, the code is the other's."""
        values = np.union1d(self.values, other.values)
        codes = np.zeros(values.size, dtype=np.int64)
        for part in (self, other):
            codes[np.searchsorted(values, part.values)] = part.codes
        return Coded(values, codes)


def with_exact_edges(coded: Coded, codes_at: CodesAt) -> Coded:
    """Add values, with their codes from `codes_at`, until every change of code is exact."""
    while True:
        values, codes = coded
        changes = np.flatnonzero((codes[1:] != codes[:-1]) & (values[1:] - values[:-1] > 1))
        if not changes.size:
            return coded
        between = np.unique(
            [np.linspace(values[i], values[i + 1], _POINTS + 2).astype(np.int64)[1:-1] for i in changes]
        )
        between = between[~np.isin(between, values)]
        coded = coded.merged(Coded(between, codes_at(between)))


def stretches(values: IntArray, codes: IntArray) -> tuple[Stretch, ...]:
    """Stretches of ascending values whose changes are found to the whole number."""
    verdicts = [_VERDICT[code] for code in codes.tolist()]
    merged = [Stretch(first, last, verdict) for verdict, first, last in runs_of_equals(values, verdicts)]
    at = 1
    while at < len(merged) - 1:
        before, here, after = merged[at - 1 : at + 2]
        is_between_equals = here.verdict == "uncertain" and before.verdict == after.verdict
        is_wider = here.width > max(before.width, after.width)
        if is_between_equals and not (before.verdict == "pays" and is_wider):
            merged[at - 1 : at + 2] = [Stretch(before.first, after.last, before.verdict)]
        else:
            at += 1
    return tuple(merged)


def drafting_spans(
    values: IntArray, codes: IntArray, found: Sequence[Stretch]
) -> tuple[tuple[int, int], ...]:
    """Every (first, last) in which drafts are made, one range where stretches adjoin."""
    verdicts = [None, *(stretch.verdict for stretch in found), None]
    paying = [(stretch.first, stretch.last) for stretch in found if stretch.verdict == "pays"]
    gaining = [(first, last) for code, first, last in runs_of_equals(values, codes.tolist()) if code == GAIN]
    if not paying:
        unsure = [stretch for stretch in found if stretch.verdict == "uncertain"]
        runs = [run for run in gaining if any(one.first <= run[0] <= one.last for one in unsure)]
        return (max(runs, key=lambda run: (run[1] + 1) / run[0]),) if runs else ()
    spans = list(paying)
    for stretch, before, after in zip(found, verdicts, verdicts[2:], strict=False):
        if stretch.verdict != "uncertain":
            continue
        from_left = [run for run in gaining if before == "pays" and run[0] == stretch.first]
        from_right = [run for run in gaining if after == "pays" and run[1] == stretch.last]
        spans += from_left + from_right
    joined: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        if joined and joined[-1][1] + 1 >= first:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return tuple(joined)


def runs_of_equals(values: IntArray, codes: Sequence[T]) -> Iterator[tuple[T, int, int]]:
    """(code, first, last) of neighbours with one code."""
    for code, group in groupby(zip(values.tolist(), codes, strict=True), key=lambda pair: pair[1]):
        members = [value for value, _ in group]
        yield code, members[0], members[-1]
