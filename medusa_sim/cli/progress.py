"""How far a computation is, with the time left, on stderr for people."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import click

from medusa_sim.cli import say

if TYPE_CHECKING:
    import pyarrow as pa

QUIET_S = 1.0
_LINE_EVERY_S = 30.0
_DRAWN_EVERY_S = 0.1
_CLEARED = "\r\x1b[K"
"""Takes the last line of a terminal away."""


class Advance(Protocol):
    """What a computation tells of itself."""

    def __call__(self, done: int, total: int, left_s: float | None = None) -> None:
        """left_s: None where the time left follows from the pace so far."""


@contextmanager
def progress(unit: str) -> Iterator[Advance]:
    """One line that changes after the first second; away from a terminal a line every half minute."""
    is_terminal, start = sys.stderr.isatty(), time.monotonic()
    every_s = _DRAWN_EVERY_S if is_terminal else _LINE_EVERY_S
    last = start - every_s if is_terminal else start

    def advance(done: int, total: int, left_s: float | None = None) -> None:
        nonlocal last
        now = time.monotonic()
        if now - start < QUIET_S or now - last < every_s:
            return
        last = now
        line = f"{done:,} of {total:,} {unit}, {time_left(done, total, now - start, left_s)}"
        if is_terminal:
            click.echo(f"{_CLEARED}{line}", err=True, nl=False)
        else:
            say(line)

    try:
        yield advance
    finally:
        if is_terminal and last > start:
            click.echo(_CLEARED, err=True, nl=False)


def count_rows(tables: Iterable[pa.Table], total: int, unit: str) -> Iterator[pa.Table]:
    """Pass tables through and show how many of `total` rows have gone by."""
    with progress(unit) as advance:
        done = 0
        for table in tables:
            yield table
            done += table.num_rows
            advance(done, total)


def time_left(done: int, total: int, elapsed_s: float, left_s: float | None = None) -> str:
    """`0:04 left`, at the pace so far where it is not known."""
    if left_s is None:
        left_s = elapsed_s * (total - done) / max(done, 1)
    whole = round(left_s)
    return f"{whole // 60}:{whole % 60:02d} left"
