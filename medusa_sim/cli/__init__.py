"""Command line: parse, call, render, exit code. No formula lives here.

stdout is data, stderr is everything else. Exit 0: ok. 1: an expected failure, one line. 2: wrong
usage. 3: a check ran and missed its threshold. 130: interrupted.
"""

from __future__ import annotations

import io
import os
import signal
import sys

import click

from medusa_sim.cli.group import LazyGroup, examples

__all__ = ["cli", "main"]


@click.group(
    cls=LazyGroup,
    context_settings={"max_content_width": 120},
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
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores it
            signal.signal(number, lambda number, frame: sys.exit(128 + number))
    prepare_streams()
    # Figures are drawn into files; a notebook's backend is not installed everywhere.
    os.environ["MPLBACKEND"] = "agg"
    cli.main(prog_name="medusa-sim")


def prepare_streams() -> None:
    """Let stdout and stderr take any text, and stand for them where the shell closed them.

    Otherwise the first file that is opened would become standard output.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            # Writing to a stdout that is open for reading fails, and the failure is told where it matters.
            while (handle := os.open(os.devnull, os.O_WRONLY if name == "stderr" else os.O_RDONLY)) < number:
                pass
            if handle != number:
                os.close(handle)
            setattr(sys, name, os.fdopen(number, "w" if number else "r", encoding="utf-8", closefd=False))
        elif number and isinstance(stream := getattr(sys, name), io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
