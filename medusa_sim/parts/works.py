"""The works that are cut into parts: sweeps, by rows, and load tests, by scenario and rate.

Each part is computed from its number alone. A part of a load test has every policy at one rate, in pairs.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np

from medusa_sim import __version__
from medusa_sim.errors import UsageError
from medusa_sim.grid.axes import Grid
from medusa_sim.grid.sweep import Slices, SweepTable, sweep
from medusa_sim.load.answer import run_load
from medusa_sim.load.load_test import LoadTest, load_test
from medusa_sim.parts.folder import Description
from medusa_sim.parts.json_arguments import (
    Frozen,
    JsonArguments,
    digests,
    frozen,
    json_arguments,
    plain,
    scenario_of,
)
from medusa_sim.scenario.scenario import Scenario

if TYPE_CHECKING:
    import pyarrow as pa


PART_ROWS = 1 << 22
ALL_PART_ROWS = 1 << 20
"""Rows computed for a part at most (one batch and length are never cut): seconds of a core.

Fewer where all are written, which takes some 100 bytes a row.
"""
LEAST_PART_ROWS = 1 << 17
PARTS = 64
"""Parts that a work is cut into, as many processes have something to do; none is smaller than a tenth of a
second of a core, since each has a start of its own.
"""


class _Parts(msgspec.Struct, frozen=True, tag_field="kind", dict=True):
    """Rows in numbered parts. Equal descriptions give equal parts, on any machine and in any order."""

    def described(self, files: dict[str, str]) -> Description:
        """Its fields, with what its rows depend on beside them."""
        fields: Description = msgspec.json.decode(msgspec.json.encode(self))
        return {**fields, "version": __version__, "files": files}


class SweepParts(_Parts, frozen=True, tag="sweep"):
    """Cases (arguments of `Scenario` that JSON can hold) over a grid; parts by case, then batch, then length.

    counts: of each case, how many counts of the grid its acceptance describes; the others have no rows.
    all_rows: every row; else the best of each batch and length among the counts that fit, as one row.
    """

    cases: tuple[JsonArguments, ...]
    counts: tuple[int, ...]
    batch: tuple[int, ...]
    seq_len: tuple[int, ...]
    candidates: tuple[int, ...]
    all_rows: bool
    part_rows: int

    @classmethod
    def of(
        cls, scenarios: Sequence[Scenario], grid: Grid, *, all_rows: bool, part_rows: int | None = None
    ) -> SweepParts:
        """The parts of a sweep; part_rows: None takes what suits.

        Raises UsageError for scenarios made of objects that JSON cannot hold, CoverageError where a case
        describes no count of the grid.
        """
        counts = tuple(item.covered(grid.candidates).size for item in scenarios)
        share = grid.batch.size * grid.seq_len.size * sum(counts) // PARTS
        most = ALL_PART_ROWS if all_rows else PART_ROWS
        return cls(
            cases=tuple(json_arguments(item) for item in scenarios),
            counts=counts,
            batch=tuple(grid.batch.tolist()),
            seq_len=tuple(grid.seq_len.tolist()),
            candidates=tuple(grid.candidates.tolist()),
            all_rows=all_rows,
            part_rows=part_rows or min(max(share, LEAST_PART_ROWS), most),
        )

    @cached_property
    def grid(self) -> Grid:
        """The grid of every case."""
        return Grid.of(self.batch, self.seq_len, self.candidates)

    @cached_property
    def description(self) -> Description:
        """Cases, grid and what the numbers depend on beside them: the version and the files named."""
        return self.described(digests(self.cases))

    @property
    def parts(self) -> int:
        """How many there are, of all cases."""
        return self._ends[-1]

    @cached_property
    def _ends(self) -> tuple[int, ...]:
        """The first part behind each case."""
        return tuple(accumulate(slices.count for slices in self._slices))

    @cached_property
    def _slices(self) -> tuple[Slices, ...]:
        """How each case is cut."""
        return tuple(Slices.of(self.grid, counts, self.part_rows) for counts in self.counts)

    def _place(self, number: int) -> tuple[int, Grid, Slices]:
        """Case, its own grid and its slices of a part."""
        case = bisect_right(self._ends, number)
        slices = self._slices[case]
        batch, seq_len = slices.at(number - (self._ends[case - 1] if case else 0))
        own = Grid(
            batch=self.grid.batch[batch], seq_len=self.grid.seq_len[seq_len], candidates=self.grid.candidates
        )
        return case, own, slices

    def computed(self, number: int) -> int:
        """Rows that are computed for a part."""
        _, grid, slices = self._place(number)
        return grid.batch.size * grid.seq_len.size * slices.counts

    def tables(self, number: int) -> Iterator[pa.Table]:
        """The rows of a part."""
        case, grid, slices = self._place(number)
        for table in sweep([scenario_of(frozen(self.cases[case]))], grid):
            yield table.arrow() if self.all_rows else best_rows(table, slices.counts)


def best_rows(table: SweepTable, counts: int) -> pa.Table:
    """The best row of each batch and length: the largest speedup that fits, where none fits the largest.

    counts: rows that each batch and length has, one after another.
    """
    speedup = np.asarray(table.numbers["speedup"], dtype=np.float64).reshape(-1, counts)
    fits = np.asarray(table.numbers["fits_memory"], dtype=np.bool_).reshape(-1, counts)
    allowed = fits | ~fits.any(axis=1, keepdims=True)
    best = np.argmax(np.where(allowed, speedup, -np.inf), axis=1)
    return table.arrow().take(np.arange(best.size) * counts + best)


class LoadParts(_Parts, frozen=True, tag="load"):
    """Cases (arguments of `Scenario`) x rates, each with every policy.

    asked: further arguments of `load.load_test.load_test`; rates: requests a second (None: the source's own).
    requests: that one cell simulates, of all policies and seeds.
    """

    cases: tuple[JsonArguments, ...]
    rates: tuple[float | None, ...]
    asked: JsonArguments
    requests: int

    @classmethod
    def of(
        cls, scenarios: Sequence[Scenario], rates: Sequence[float] | None, asked: dict[str, Any]
    ) -> LoadParts:
        """The parts of a question.

        Raises UsageError or DataError for values that make no sense, and what a scenario cannot serve, before
        any part is begun.
        """
        given: JsonArguments = {name: plain(name, value) for name, value in asked.items()}
        first = load_test(scenarios[0], **given)
        counts = [
            test.sample.count for test in (first, *(replace(first, scenario=item) for item in scenarios[1:]))
        ]
        each = first.seeds * len(first.policies) * max(counts)
        return cls(
            cases=tuple(json_arguments(item) for item in scenarios),
            rates=(None,) if rates is None else tuple(rates),
            asked=given,
            requests=each,
        )

    @cached_property
    def description(self) -> Description:
        """Cases, rates and what is asked, with the version and the files named."""
        return self.described(digests(self.cases, **self.asked))

    @property
    def parts(self) -> int:
        """One for each case and rate."""
        return len(self.cases) * len(self.rates)

    def computed(self, number: int) -> int:
        """Requests that a part simulates, roughly."""
        del number
        return self.requests

    def tables(self, number: int) -> Iterator[pa.Table]:
        """A row for each policy of one case at one rate."""
        from medusa_sim.report.load.values import load_arrow

        case, rate = divmod(number, len(self.rates))
        test = _test(frozen(self.cases[case]), frozen(self.asked))
        chosen = self.rates[rate]
        yield load_arrow(run_load(test, None if chosen is None else (chosen,), search=False))


@lru_cache(maxsize=8)
def _test(case: Frozen, asked: Frozen) -> LoadTest:
    """The test of a case, whose table of steps is kept between rates."""
    return load_test(scenario_of(case), **dict(asked))


Work: TypeAlias = SweepParts | LoadParts


def work_of(description: Description) -> Work:
    """The work of a description; the same object for the same description, with what it has loaded.

    Raises UsageError for a description of none.
    """
    return _work(json.dumps(description, sort_keys=True))


@lru_cache(maxsize=4)
def _work(text: str) -> Work:
    try:
        work: Work = msgspec.json.decode(text, type=Work)
    except msgspec.ValidationError as error:
        raise UsageError(f"unknown kind of work ({error}); choose another folder") from error
    return work
