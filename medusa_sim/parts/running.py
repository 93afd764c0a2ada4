"""Parts computed in this process, one after another: all, or those of a shard."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from medusa_sim.parts.folder import PartFolder
from medusa_sim.parts.shard import Shard
from medusa_sim.parts.work import Work

Advance = Callable[[int, int], None]
"""Told (rows computed, rows to compute)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """Result of a run. written: parts that were missing; kept: parts that were there; rows: computed."""

    written: int
    kept: int
    rows: int


def missing_parts(folder: PartFolder, numbers: range, work: Work) -> tuple[list[int], int]:
    """(parts that are not finished, rows that these compute)."""
    missing = [number for number in numbers if not folder.is_done(number)]
    return missing, sum(map(work.computed, missing))


def run_here(work: Work, folder: PartFolder, shard: Shard, advance: Advance) -> Done:
    """Compute what a shard lacks. Raises OutputError where another client has it, and what parts raise."""
    numbers = shard.parts(work)
    with folder.claimed(shard.name):
        missing, rows = missing_parts(folder, numbers, work)
        compute(work, folder, missing, rows, advance)
    return Done(written=len(missing), kept=len(numbers) - len(missing), rows=rows)


def compute(work: Work, folder: PartFolder, missing: list[int], rows: int, advance: Advance) -> None:
    """Compute these parts of so many rows, one after another."""
    computed = 0
    for number in missing:
        folder.write(work, number)
        computed += work.computed(number)
        advance(computed, rows)
