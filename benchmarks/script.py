"""What every script begins with: the root of the tree, and its command line."""

from __future__ import annotations

import argparse
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def command_line(doc: str | None) -> argparse.ArgumentParser:
    """A parser whose help page begins with the script's docstring as it stands."""
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
