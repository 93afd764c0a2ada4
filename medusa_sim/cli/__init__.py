"""Command line: parse, call, render, exit code. No formula lives here.

stdout is data, stderr is everything else. Exit 0: ok. 1: an expected failure, one line. 2: wrong
usage. 3: a check ran and missed its threshold. 130: interrupted.
"""

from __future__ import annotations

import signal
import sys

import click

from medusa_sim.cli.group import LazyGroup, examples

__all__ = ["cli", "main"]


@click.group(
    cls=LazyGroup,
    epilog=examples(
        "medusa-sim sweep --gpu h100-sxm --model llama-3-8b --batch 1..64",
        "medusa-sim sweep --batch 1..64 --report out",
    ),
)
@click.version_option(package_name="medusa-sim", prog_name="medusa-sim")
def cli() -> None:
    """How many candidate tokens should one speculative verification step carry, and what will it gain?"""


def main() -> None:
    """Entry point of the `medusa-sim` script."""
    # As Ctrl-C does it: half-written files are taken away before the process ends.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    cli.main(prog_name="medusa-sim")
