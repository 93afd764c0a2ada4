"""One loop over the parts that are missing, whoever computes them: this process, others, a cluster."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from queue import SimpleQueue

from medusa_sim import __version__
from medusa_sim.errors import OutputError, UsageError, shown
from medusa_sim.parts.folder import PartFolder
from medusa_sim.parts.works import Work, work_of
from medusa_sim.report.formats import write_parquet
from medusa_sim.writing import atomic

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
        """Name of its claim on a folder."""
        return f"shard-{self.number}-of-{self.count}"

    def numbers(self, parts: int) -> range:
        """Its own of so many parts."""
        return range(self.number - 1, parts, self.count)


Advance = Callable[[int, int], None]
"""Told (rows computed, rows to compute)."""
Compute = Callable[[Path, list[int]], Iterator[int]]
"""Writes parts of a folder; their numbers, each as soon as it is written."""
SHARED = "give --out a folder that all machines share"


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """Result of a run. written: parts that were missing; kept: parts that were there; rows: computed."""

    written: int
    kept: int
    rows: int


def run_parts(
    work: Work, folder: PartFolder, compute: Compute, advance: Advance, shard: Shard | None = None
) -> Done:
    """Compute what a shard of the parts lacks (None: all).

    Raises OutputError where another client has the shard or a worker wrote elsewhere, and what parts raise.
    """
    shard = shard or Shard()
    numbers = shard.numbers(work.parts)
    with folder.claimed(shard.name):
        missing = [number for number in numbers if not folder.is_done(number)]
        rows, computed = sum(map(work.computed, missing)), 0
        for number in compute(folder.path, missing):
            if not folder.is_done(number):
                raise OutputError(
                    f"a worker wrote part {number}, which {folder.path} does not show; {SHARED}"
                )
            computed += work.computed(number)
            advance(computed, rows)
    return Done(written=len(missing), kept=len(numbers) - len(missing), rows=rows)


def write_part(path: Path, number: int) -> int:
    """Compute a part and write it, unless it is there; its number. The folder says of what work it is.

    Raises OutputError where the folder is not that of the client, its version is another or the part cannot
    be written, and what computing raises; leaves nothing then.
    """
    folder = PartFolder(path)
    if not folder.manifest.is_file():
        raise OutputError(f"a worker does not see {path}; {SHARED}")
    description = folder.description
    if description.get("version") != __version__:
        raise OutputError(
            f"a worker has medusa-sim {__version__}, the parts are of {description.get('version')}; install "
            "the same version on all"
        )
    work = work_of(description)
    if not folder.is_done(number):
        with atomic(folder.part(number)) as file:
            write_parquet(work.tables(number), file)
    return number


def compute_here(path: Path, numbers: list[int]) -> Iterator[int]:
    """In this process, one after another."""
    return (write_part(path, number) for number in numbers)


def compute_with(executor: Executor, ahead: int, path: Path, numbers: list[int]) -> Iterator[int]:
    """By an executor that has `ahead` parts at a time, so that any number of parts may follow."""
    waiting, finished = iter(numbers), SimpleQueue[Future[int]]()

    def submit(count: int) -> None:
        for number in islice(waiting, count):
            executor.submit(write_part, path, number).add_done_callback(finished.put)

    submit(ahead)
    for _ in numbers:
        yield finished.get().result()
        submit(1)
