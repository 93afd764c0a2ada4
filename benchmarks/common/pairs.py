"""All pairs: rows in which every pair of values of two axes occurs, drawn while answers come in.

A row takes one value of each axis. It is answered, and covers all of its pairs, or refused. A pair is given
up only where it is the reason itself: it is the one pair of a refused row that no other row was answered
with, or TRIES rows were refused that had little else in common. What an unhappy neighbour refused is drawn
again beside others, so that no refusal eats what it does not concern.
"""

from __future__ import annotations

import collections
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, TypeAlias

TRIES = 4
"""Refused rows after which a pair is given up."""
_KNOWN_REFUSED = 50
"""How much a value loses in the choice where it makes a pair that is refused."""

Row: TypeAlias = tuple[int, ...]
"""The place of its value on each axis."""
Pair: TypeAlias = tuple[int, int, int, int]
"""An axis and a value's place on it, and another axis and value."""


class Pairs:
    """Every pair of values of two axes: answered, refused with the reason, or still to be drawn.

    The last axis comes in by the way until all pairs of the others are done.
    """

    def __init__(self, axes: Mapping[str, Sequence[Any]], seed: int) -> None:
        self.axes = {name: tuple(values) for name, values in axes.items()}
        self.answered: set[Pair] = set()
        self.refused: dict[Pair, str] = {}
        self._sizes = [len(values) for values in self.axes.values()]
        self._random = random.Random(seed)  # noqa: S311
        self._tries: collections.Counter[Pair] = collections.Counter()
        to_draw = list(self._every())
        self._random.shuffle(to_draw)
        to_draw.sort(key=lambda pair: pair[2] == len(self._sizes) - 1)
        self._to_draw = dict.fromkeys(to_draw)

    def _every(self) -> Iterator[Pair]:
        for (i, first), (j, second) in combinations(enumerate(self._sizes), 2):
            yield from ((i, a, j, b) for a in range(first) for b in range(second))

    @property
    def left(self) -> int:
        """Pairs that are neither answered nor refused."""
        return len(self._to_draw)

    def drawn(self, most: int) -> list[dict[str, Any]]:
        """At most so many rows, each with a pair of its own that is still to be drawn."""
        planned: set[Pair] = set()
        rows: list[dict[str, Any]] = []
        for pair in self._to_draw:
            if len(rows) == most:
                break
            if pair not in planned:
                row = self._row(pair, planned)
                planned.update(_pairs_of(row))
                rows.append({name: of[at] for (name, of), at in zip(self.axes.items(), row, strict=True)})
        return rows

    def _row(self, pair: Pair, planned: set[Pair]) -> Row:
        """A row with this pair: beside it what is new, where it was refused before what was answered."""
        chosen = {pair[0]: pair[1], pair[2]: pair[3]}
        again = self._tries[pair] > 0
        others = [axis for axis in range(len(self._sizes)) if axis not in chosen]
        self._random.shuffle(others)
        for axis in others:
            gains = []
            for value in range(self._sizes[axis]):
                beside = [_pair(axis, value, at, known) for at, known in chosen.items()]
                gains.append(sum(self._gain(each, planned, again=again) for each in beside))
            best = max(gains)
            chosen[axis] = self._random.choice([at for at, gain in enumerate(gains) if gain == best])
        return tuple(chosen[axis] for axis in range(len(self._sizes)))

    def _gain(self, pair: Pair, planned: set[Pair], *, again: bool) -> int:
        if pair in self.answered:
            return 1 if again else 0
        if pair in self.refused:
            return -_KNOWN_REFUSED
        if self._tries[pair]:
            return -self._tries[pair]
        return 0 if again or pair in planned else 1

    def was_answered(self, row: Mapping[str, Any]) -> None:
        """Its pairs are covered."""
        for pair in _pairs_of(self._places(row)):
            self.answered.add(pair)
            self.refused.pop(pair, None)
            self._to_draw.pop(pair, None)

    def was_refused(self, row: Mapping[str, Any], told: str) -> None:
        """One of its pairs, or more, is the reason."""
        suspects = [pair for pair in _pairs_of(self._places(row)) if pair not in self.answered]
        for pair in suspects:
            self._tries[pair] += 1
            if (len(suspects) == 1 or self._tries[pair] >= TRIES) and pair in self._to_draw:
                self.refused[pair] = told
                del self._to_draw[pair]

    def _places(self, row: Mapping[str, Any]) -> Row:
        return tuple(values.index(row[name]) for name, values in self.axes.items())

    def told(self) -> Iterator[str]:
        """How many pairs of each two axes are answered, refused and left, a line each."""
        names = tuple(self.axes)
        counts = {
            what: collections.Counter((names[pair[0]], names[pair[2]]) for pair in of)
            for what, of in (("answered", self.answered), ("refused", self.refused), ("left", self._to_draw))
        }
        for two in combinations(names, 2):
            told = ", ".join(f"{of[two]} {what}" for what, of in counts.items())
            yield f"{two[0]} x {two[1]}: {told}"


def _pair(axis: int, value: int, other: int, known: int) -> Pair:
    return (axis, value, other, known) if axis < other else (other, known, axis, value)


def _pairs_of(row: Row) -> Iterable[Pair]:
    return ((i, a, j, b) for (i, a), (j, b) in combinations(enumerate(row), 2))
