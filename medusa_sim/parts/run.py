"""Parts computed here, one after another: all, or the shard of a machine that knows nothing of the others."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from medusa_sim.errors import UsageError, shown
from medusa_sim.parts.folder import PartFolder
from medusa_sim.parts.work import Work

Advance = Callable[[int, int], None]
"""Told (rows computed, rows to compute)."""
_SHARD = re.compile(r"([0-9]{1,9})/([0-9]{1,9})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Shard:
    """Every `count`-th part from the `number`-th on, counted from 1."""

    number: int = 1
    count: int = 1

    @classmethod
    def read(cls, text: str) -> Shard:
        """`3/8`. Raises UsageError for anything else."""
        match = _SHARD.fullmatch(text.strip())
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise UsageError(f"shard {shown(text)}: give i/n with i from 1 to n, as in 3/8")
        return cls(int(match[1]), int(match[2]))

    @property
    def name(self) -> str:
        """As its claim on a folder is called."""
        return f"shard-{self.number}-of-{self.count}"

    def parts(self, work: Work) -> range:
        """Numbers of its parts."""
        return range(self.number - 1, work.parts, self.count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What a run did. parts: written now; there: finished before; computed: rows."""

    parts: int
    there: int
    computed: int


def open_parts(folder: PartFolder, numbers: range, work: Work) -> tuple[list[int], int]:
    """(parts that are not finished, rows that these compute)."""
    missing = [number for number in numbers if not folder.is_done(number)]
    return missing, sum(map(work.computed, missing))


def run_here(work: Work, folder: PartFolder, shard: Shard, advance: Advance) -> Done:
    """Compute what a shard lacks. Raises OutputError where another client has it, and what parts raise."""
    numbers = shard.parts(work)
    with folder.claimed(shard.name):
        missing, rows = open_parts(folder, numbers, work)
        computed = 0
        for number in missing:
            folder.write(work, number)
            computed += work.computed(number)
            advance(computed, rows)
    return Done(parts=len(missing), there=len(numbers) - len(missing), computed=computed)
