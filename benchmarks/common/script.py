"""What every script begins with: the root of the tree, its command line, and how a failure ends it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def command_line(doc: str | None, *, writes: str = "") -> argparse.ArgumentParser:
    """A parser whose help page begins with the script's docstring as it stands.

    writes: what of the tree the script writes, with `--write` alone: without it, it prints.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    if writes:
        parser.add_argument("--write", action="store_true", help=f"write {writes}")
    return parser


def ends_in_a_line(main: Callable[[], None]) -> None:
    """Run a script whose user may have given what cannot be: one line to standard error, exit code 1."""
    from medusa_sim.errors import MedusaSimError  # noqa: PLC0415  # a script may begin without the package

    try:
        main()
    except MedusaSimError as error:
        raise SystemExit(f"Error: {error}") from None
