"""How far a computation is: a bar on stderr with the time left, for people."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from medusa_sim.cli import say

if TYPE_CHECKING:
    import pyarrow as pa


QUIET_S = 1.0
_LINE_EVERY_S = 30.0


class Advance(Protocol):
    """What a computation tells of itself."""

    def __call__(self, done: int, total: int, left_s: float | None = None) -> None:
        """left_s: None where the time left follows from the pace so far."""


@contextmanager
def progress(unit: str) -> Iterator[Advance]:
    """A bar with the time left; silent below 1 s, a line every half minute away from a terminal."""
    if not sys.stderr.isatty():
        yield _line_by_line(unit)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (
        BarColumn(),
        TextColumn("{task.completed:,.0f} of {task.total:,.0f} " + unit),
        TextColumn("{task.fields[left]}"),
    )
    bar = Progress(*columns, console=Console(stderr=True))
    task = bar.add_task(unit, total=0, left="")
    start = time.monotonic()

    def advance(done: int, total: int, left_s: float | None = None) -> None:
        elapsed = time.monotonic() - start
        if elapsed > QUIET_S:
            bar.start()
        bar.update(task, completed=done, total=total, left=time_left(done, total, elapsed, left_s))

    try:
        yield advance
    finally:
        bar.stop()


def count_rows(tables: Iterable[pa.Table], total: int, unit: str) -> Iterator[pa.Table]:
    """Pass tables through and show how many of `total` rows have gone by."""
    with progress(unit) as advance:
        done = 0
        for table in tables:
            yield table
            done += table.num_rows
            advance(done, total)


def _line_by_line(unit: str) -> Advance:
    start = printed_at = time.monotonic()

    def advance(done: int, total: int, left_s: float | None = None) -> None:
        nonlocal printed_at
        now = time.monotonic()
        if now - printed_at >= _LINE_EVERY_S:
            printed_at = now
            say(f"{done:,} of {total:,} {unit}, {time_left(done, total, now - start, left_s)}")

    return advance


def time_left(done: int, total: int, elapsed_s: float, left_s: float | None = None) -> str:
    """`0:04 left`, at the pace so far where it is not known."""
    if left_s is None:
        left_s = elapsed_s * (total - done) / max(done, 1)
    whole = round(left_s)
    return f"{whole // 60}:{whole % 60:02d} left"
