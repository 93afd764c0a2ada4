"""Progress on stderr, for people, once something takes more than a second."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    import pyarrow as pa

_QUIET_S = 1.0
_EVERY_S = 0.2


def counted(tables: Iterable[pa.Table], total: int, unit: str) -> Iterator[pa.Table]:
    """Pass tables through and say how far of `total` they are: silent below 1 s and away from a terminal."""
    start = told = time.monotonic()
    done = 0
    drawn = False
    for table in tables:
        yield table
        done += table.num_rows
        now = time.monotonic()
        if now - start > _QUIET_S and now - told > _EVERY_S and sys.stderr.isatty():
            told, drawn = now, True
            rate = done / (now - start)
            told_now = f"{done:,} of {total:,} {unit} ({done / total:.0%}), {rate:,.0f}/s"
            click.echo(f"\r{told_now} ", err=True, nl=False)
    if drawn:
        click.echo(f"\r{done:,} {unit} in {time.monotonic() - start:.1f} s{' ' * 30}", err=True)
